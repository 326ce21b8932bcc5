"""What every importer makes: one record for each figure that a tool printed, and the one line that refuses the rest."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from xlacompare.core import collective_cell as cells
from xlacompare.core import errors

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Told:
    """What the user says of a file where the tool does not print it; None: not said.

    Attributes:
      name: File name, for messages and records.
      transport: What carried the bytes.
      num_devices: Ranks.
      collective: Our name of the collective.
    """

    name: str
    transport: str | None = None
    num_devices: int | None = None
    collective: str | None = None

    def need(self, flag: str, found: Any, why: str) -> Any:
        """What the file says, else what the user says.

        Raises:
          BadInputError: Neither does.
        """
        value = found if found is not None else getattr(self, flag)
        if value is None:
            raise errors.BadInputError(f"{self.name}: {why}; give --{flag}")
        return value


@dataclasses.dataclass(frozen=True)
class Figure:
    """One time that a tool printed; conventions are ours: nccl-tests' sizes, seconds.

    Attributes:
      wrong: Wrong values by the tool's own check; None: not checked.
      note: What the tool means by its time.
      percentiles: p50_s, p95_s, p99_s of single iterations, where the tool prints such.
    """

    collective: str
    dtype: str
    size_bytes: int
    seconds: float
    ranks: int
    transport: str
    reduction: str = ""
    root: int = 0
    placement: str = "out_of_place"
    wrong: int | None = None
    note: str = ""
    percentiles: dict[str, float] = dataclasses.field(default_factory=dict)


def count_of(figure: Figure) -> int:
    """Elements that each rank passes in."""
    elements = figure.size_bytes // ITEM_BYTES[figure.dtype]
    return elements // figure.ranks if figure.collective == "all_gather" else elements


def to_record(figure: Figure, tool: str, version: str, told: Told) -> dict[str, Any]:
    """A `collective` record of one launch with one block."""
    cell = cells.CollectiveCell(
        framework=tool,
        transport=figure.transport,
        mode="process",
        collective=figure.collective,
        reduction=figure.reduction,
        dtype=figure.dtype,
        size_bytes=figure.size_bytes,
        count=count_of(figure),
        pad_bytes=0,
        mesh=(figure.ranks,),
        pattern="ring" if figure.collective == "ppermute" else "",
        root=figure.root,
        placement=figure.placement,
        platform="gpu" if figure.transport == "nccl" else "cpu",
    )
    bad = figure.wrong is not None and figure.wrong > 0
    return {
        "kind": "collective",
        "comparison": cell.comparison,
        "launch": 0,
        "cell": cell.to_dict(),
        "status": "mismatch" if bad else "ok",
        "reason": f"{tool} found {figure.wrong} wrong values" if bad else "",
        "values": {"checked": None, "wrong": figure.wrong, "message": ""},
        "lowering": {"source": "none", "ops": [], "findings": [], "wire_bytes": None, "fingerprint": None},
        "compile": {},
        "fence": None,
        "copy_s": None,
        "blocks": {} if bad else _one_block(figure.seconds),
        "iterations": {"total_s": [], "dispatch_s": [], "skew_s": []},
        "ranks": [],
        "oversubscribed": False,
        "launcher": "",
        "imported": {"tool": tool, "version": version, "file": told.name, "note": figure.note, **figure.percentiles},
        "environment": {"checked": {"imported": tool, "transport": figure.transport}},
    }


def _one_block(seconds: float) -> dict[str, list[Any]]:
    return {
        "visit": [0], "position": [0], "series": ["main"], "mode": ["block"], "n": [1], "start_s": [0.0],
        "total_s": [seconds], "dispatch_s": [None], "host_s": [None], "compiles": [0], "disturbed": [False],
        "skew_s": [None],
    }  # fmt: skip


def whole(text: str, what: str, told: Told, line: int) -> int:
    """A whole number of a table.

    Raises:
      BadInputError: It is none.
    """
    if not text.lstrip("-").isdigit():
        raise errors.BadInputError(f"{told.name}:{line}: {what} {text!r} is no whole number")
    return int(text)


def positive(text: str, what: str, told: Told, line: int) -> float:
    """A positive finite number of a table.

    Raises:
      BadInputError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise errors.BadInputError(f"{told.name}:{line}: {what} {text!r} is no positive number")
    return value
