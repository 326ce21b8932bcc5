"""From `cell` records to samples: which blocks count, per launch, and which blocks of two arms are neighbours.

A block during which something was compiled is no sample. A disturbed visit (others used the cores) was run again and is
left out as well, by what the machine said and not by how long it took; both stay in the record. Slow blocks stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlacompare.core import cell as cells

Values = NDArray[np.float64]
# With the machine to itself the median was 0.00 in 12 launches of jax, torch_xla and torch (their threads wait for each
# other during up to 62% of a visit), with one busy process on each of 2 cores it was 0.30-0.32 in 6.
MAX_LOST_SHARE = 0.15
MAX_DISTURBED_SHARE = 0.5  # of the blocks that are used
MIN_UNDISTURBED = 4  # with fewer undisturbed blocks than this, all blocks are used, and the report says so


@dataclasses.dataclass(frozen=True)
class LaunchSamples:
    """The samples of one cell in one launch, in the order of time.

    Attributes:
      process: Process id: arms with the same one are compared inside it.
      step_s: Seconds a step of each block, [blocks].
      keys: (visit, half) of each block: what its neighbour in another arm has as well.
      dispatch_s: Seconds a step until dispatch returned, [blocks].
      host_s: CPU seconds a step of the dispatching thread, [blocks].
      stepwise: (seconds a step with a fence after every step, the same of its neighbour block), [pairs] each.
      num_disturbed, num_compiled: Blocks that others disturbed, and during which something was compiled.
      num_disturbed_used: Disturbed blocks that are samples all the same, because too few others are there.
      lost_share: Median share of their visits' time that others took at most, see `foreign.ForeignCpu.lost_share`; None
        where unknown.
    """

    process: int | None
    step_s: Values
    keys: list[tuple[int, int]]
    dispatch_s: Values
    host_s: Values
    stepwise: tuple[Values, Values]
    num_disturbed: int
    num_compiled: int
    num_disturbed_used: int = 0
    lost_share: float | None = None

    @property
    def mean_s(self) -> float:
        """Mean seconds a step."""
        return float(self.step_s.mean())


@dataclasses.dataclass
class CellSamples:
    """All records of one cell."""

    cell: cells.Cell
    records: list[dict[str, Any]]
    launches: dict[int, LaunchSamples]

    @property
    def status(self) -> str:
        """`ok`, or how the cell failed: a failure in any launch is the cell's status."""
        failed = [record["status"] for record in self.records if record["status"] != "ok"]
        return failed[0] if failed else "ok"

    @property
    def reason(self) -> str:
        """One line for a cell without a time."""
        if self.status == "ok" and not self.launches and self.num_compiled:
            return "something was compiled during every block, so that none is a sample"
        return next((record["reason"] for record in self.records if record["status"] != "ok"), "")

    @property
    def num_compiled(self) -> int:
        """Blocks of all launches during which something was compiled."""
        return sum(count > 0 for record in self.records for count in record["blocks"].get("compiles", ()))

    @property
    def timed(self) -> bool:
        """Whether a time may be printed: a cell that failed anywhere has none, whatever it measured before."""
        return self.status == "ok" and bool(self.launches)

    @property
    def busy(self) -> bool:
        """Whether others had the cores during most of what is used: the times hold, but not what they are made of.

        A step's time is the clock's, its host part is CPU time: what others take is in the first only, and would be
        booked to the device.
        """
        launches = list(self.launches.values())
        used, disturbed = sum(s.step_s.size for s in launches), sum(s.num_disturbed_used for s in launches)
        shares = [s.lost_share for s in launches if s.lost_share is not None]
        lost = float(np.median(shares)) if shares else 0.0
        return disturbed > MAX_DISTURBED_SHARE * used or lost > MAX_LOST_SHARE


def collect(records: Iterable[Mapping[str, Any]], kind: str = "cell") -> dict[str, CellSamples]:
    """Cells (or "replay"s) by id, in the order of the records."""
    found: dict[str, CellSamples] = {}
    for record in records:
        if record["kind"] != kind:
            continue
        cell = cells.Cell.from_dict(record["cell"])
        entry = found.setdefault(cell.id, CellSamples(cell, [], {}))
        entry.records.append(dict(record))
        if record["status"] == "ok" and record["launch"] is not None and record["blocks"]:
            samples = launch_samples(record)
            if samples.step_s.size:
                entry.launches[record["launch"]] = samples
    return found


def launch_samples(record: Mapping[str, Any]) -> LaunchSamples:
    """The samples of one record."""
    blocks = record["blocks"]
    step_s = np.asarray(blocks["total_s"]) / np.asarray(blocks["n"])
    dispatch_s = np.asarray(blocks["dispatch_s"]) / np.asarray(blocks["n"])
    host_s = np.asarray(blocks["host_s"]) / np.asarray(blocks["n"])
    compiled = np.asarray(blocks["compiles"]) > 0
    disturbed = np.asarray(blocks["disturbed"], dtype=bool)
    main = np.asarray([series == "main" for series in blocks["series"]])
    valid = main & ~compiled & ~disturbed
    if valid.sum() < MIN_UNDISTURBED:
        valid = main & ~compiled
    return LaunchSamples(
        process=record["start"].get("pid"),
        step_s=step_s[valid],
        keys=[key for key, good in zip(_keys(blocks, main), valid, strict=True) if good],
        dispatch_s=dispatch_s[valid],
        host_s=host_s[valid],
        stepwise=_stepwise(blocks, step_s, ~main & ~compiled),
        num_disturbed=int((main & disturbed).sum()),
        num_compiled=int(compiled.sum()),
        num_disturbed_used=int((valid & disturbed).sum()),
        lost_share=_lost_share(blocks, valid),
    )


def _lost_share(blocks: Mapping[str, list[Any]], valid: NDArray[np.bool_]) -> float | None:
    shares = blocks.get("lost_share", [None] * valid.size)  # records made by hand and older ones have no such column
    known = [share for share, good in zip(shares, valid, strict=True) if good and share is not None]
    return float(np.median(known)) if known else None


def _keys(blocks: Mapping[str, list[Any]], main: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(visit, 0 or 1): the first or the second block of this cell in the visit."""
    seen: dict[int, int] = {}
    keys = []
    for visit, is_main in zip(blocks["visit"], main, strict=True):
        half = seen.get(visit, 0) if is_main else 0
        if is_main:
            seen[visit] = half + 1
        keys.append((visit, half))
    return keys


def _stepwise(blocks: Mapping[str, list[Any]], step_s: Values, chosen: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Neighbours of a stepwise visit: block, stepwise, stepwise, block."""
    pairs: dict[tuple[int, str], list[float]] = {}
    for visit, mode, seconds, good in zip(blocks["visit"], blocks["mode"], step_s, chosen, strict=True):
        if good:
            pairs.setdefault((visit, mode), []).append(float(seconds))
    fenced, plain = [], []
    for (visit, mode), values in pairs.items():
        neighbours = pairs.get((visit, "block"), [])
        if mode == "stepwise" and len(values) == len(neighbours):
            fenced += values
            plain += neighbours
    return np.asarray(fenced), np.asarray(plain)


def neighbours(a: LaunchSamples, b: LaunchSamples) -> tuple[Values, Values]:
    """Seconds a step of the blocks of two arms that were measured next to each other, in the order of time."""
    index = {key: i for i, key in enumerate(b.keys)}
    both = [(i, index[key]) for i, key in enumerate(a.keys) if key in index]
    return a.step_s[[i for i, _ in both]], b.step_s[[j for _, j in both]]


def common_launches(a: CellSamples, b: CellSamples) -> list[int]:
    """Launches in which both were measured: a launch of one side ran beside the same launch of the other."""
    return sorted(set(a.launches) & set(b.launches))
