"""A cell of a collective run: one collective, size and placement through one framework and transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class CollectiveCell:
    """One point; hashable, the same text in flags, records and messages.

    Attributes:
      size_bytes: The size that was asked for, in the table's meaning of size (nccl-tests' convention).
      count: Elements that each rank passes in, pad included.
      pad_bytes: Bytes of the size that are pad, added so that the ranks divide it.
      axis: Axis of the mesh, None for all ranks.
      pattern: ppermute: name of the pairs ("ring", "pairs:0>1,1>0"); else "".
    """

    framework: str
    transport: str
    mode: str
    collective: str
    reduction: str
    dtype: str
    size_bytes: int
    count: int
    pad_bytes: int
    mesh: tuple[int, ...]
    axis: int | None = None
    pattern: str = ""
    root: int = 0
    placement: str = "out_of_place"
    platform: str = "cpu"

    @property
    def series(self) -> str:
        """What a sweep over sizes has in common, whichever the framework."""
        mesh = "x".join(map(str, self.mesh))
        along = "" if self.axis is None else f".{self.axis}"
        kind = "".join(f"/{part}" for part in (self.reduction, self.pattern) if part)
        return f"{self.collective}{kind}/{self.dtype}/{mesh}{along}/{self.placement}"

    @property
    def comparison(self) -> str:
        """What must be equal for two cells to be compared; the transport is part of it."""
        return f"{self.series}/{self.size_bytes}B/{self.transport}/{self.platform}"

    @property
    def id(self) -> str:
        """Unique readable name inside a run."""
        return f"{self.framework}/{self.mode}/{self.comparison}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {**dataclasses.asdict(self), "mesh": list(self.mesh)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CollectiveCell:
        """Inverse of `to_dict`."""
        known = {field.name for field in dataclasses.fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        chosen["mesh"] = tuple(chosen["mesh"])
        return cls(**chosen)
