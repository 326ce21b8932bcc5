"""From `collective` records to samples: which blocks and iterations of which cell count, per launch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlacompare.core import collective_cell as cells
from xlacompare.core import samples

Values = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class LaunchSamples:
    """The samples of one cell in one launch, in the order of time; every time is the maximum over ranks.

    Attributes:
      operation_s: Seconds an operation of each block, [blocks].
      dispatch_s: The same until dispatch returned, [blocks].
      iterations_s, skew_s: Of single iterations, [iterations].
      num_disturbed, num_disturbed_used, num_compiled: As in `core.samples`.
    """

    operation_s: Values
    dispatch_s: Values
    iterations_s: Values
    skew_s: Values
    num_disturbed: int
    num_disturbed_used: int
    num_compiled: int

    @property
    def mean_s(self) -> float:
        """Mean seconds an operation."""
        return float(self.operation_s.mean())


@dataclasses.dataclass
class CellSamples:
    """All records of one cell."""

    cell: cells.CollectiveCell
    records: list[dict[str, Any]]
    launches: dict[int, LaunchSamples]

    @property
    def status(self) -> str:
        """`ok`, or how the cell failed: a failure in any launch is the cell's status."""
        return next((record["status"] for record in self.records if record["status"] != "ok"), "ok")

    @property
    def reason(self) -> str:
        """One line for a cell without a time."""
        if self.status == "ok" and not self.launches:
            return "no block without a compilation: none is a sample"
        return str(next((r.get("reason", "") for r in self.records if r["status"] != "ok"), ""))

    @property
    def timed(self) -> bool:
        """Whether a time may be printed: a cell that failed anywhere has none, whatever it measured before."""
        return self.status == "ok" and bool(self.launches)

    @property
    def imported(self) -> str:
        """The tool whose output this is; "" for our own."""
        return str(self.records[-1].get("imported", {}).get("tool", ""))


def collect(records: Iterable[Mapping[str, Any]]) -> dict[str, CellSamples]:
    """Cells by id, in the order of the records."""
    found: dict[str, CellSamples] = {}
    for record in records:
        if record["kind"] != "collective":
            continue
        cell = cells.CollectiveCell.from_dict(record["cell"])
        entry = found.setdefault(cell.id, CellSamples(cell, [], {}))
        entry.records.append(dict(record))
        if record["status"] == "ok" and record["launch"] is not None and record.get("blocks"):
            made = launch_samples(record)
            if made.operation_s.size:
                entry.launches[record["launch"]] = made
    return found


def launch_samples(record: Mapping[str, Any]) -> LaunchSamples:
    """The samples of one record: blocks during which something was compiled are none, slow ones stay."""
    blocks, n = record["blocks"], np.asarray(record["blocks"]["n"], dtype=np.float64)
    compiled = np.asarray(blocks["compiles"]) > 0
    disturbed = np.asarray(blocks["disturbed"], dtype=bool)
    main = np.asarray([series == "main" for series in blocks["series"]], dtype=bool)
    valid = main & ~compiled & ~disturbed
    if valid.sum() < samples.MIN_UNDISTURBED:
        valid = main & ~compiled
    iterations = record.get("iterations") or {}
    return LaunchSamples(
        operation_s=(np.asarray(blocks["total_s"], dtype=np.float64) / n)[valid],
        dispatch_s=known((np.asarray(blocks["dispatch_s"], dtype=np.float64) / n)[valid]),
        iterations_s=np.asarray(iterations.get("total_s") or (), dtype=np.float64),
        skew_s=known(iterations.get("skew_s") or ()),
        num_disturbed=int((main & disturbed).sum()),
        num_disturbed_used=int((valid & disturbed).sum()),
        num_compiled=int(compiled.sum()),
    )


def known(values: Iterable[float | None]) -> Values:
    """The values that are there."""
    return np.asarray([value for value in values if value is not None and math.isfinite(value)], dtype=np.float64)


def common_launches(a: CellSamples, b: CellSamples) -> list[int]:
    """Launches in which both were measured, one beside the other."""
    return sorted(set(a.launches) & set(b.launches))
