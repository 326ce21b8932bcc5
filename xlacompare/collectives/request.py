"""What a framework is asked to run: one collective over a mesh of ranks, on buffers of a known size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Request:
    """One collective.

    Ranks of a mesh are counted row by row: rank = row * columns + column. A collective along `axis` 0 joins the ranks
    of a column, along `axis` 1 those of a row; `axis` None joins all of them.

    Attributes:
      collective: Name in the table: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute",
        "broadcast", "barrier".
      dtype: NumPy name, or "bfloat16".
      count: Elements that each rank passes in, pad included; 0 for a barrier.
      mesh: Extent of each axis: (ranks,) or (rows, columns).
      axis: Axis of the mesh, None for the whole mesh.
      reduction: "sum", "mean", "max", "min" for all_reduce and reduce_scatter, else "".
      pairs: ppermute: (source, destination) within each group, counted from 0. A rank that is no destination gets
        zeros.
      root: broadcast: place of the source within each group.
      placement: "out_of_place" (input and output differ), or "in_place" (the output overwrites the input).
    """

    collective: str
    dtype: str
    count: int
    mesh: tuple[int, ...]
    axis: int | None = None
    reduction: str = ""
    pairs: tuple[tuple[int, int], ...] = ()
    root: int = 0
    placement: str = "out_of_place"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a request to a worker and for a record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Inverse of `to_dict`, also after JSON."""
        chosen = dict(values)
        chosen["mesh"] = tuple(chosen["mesh"])
        chosen["pairs"] = tuple((int(a), int(b)) for a, b in chosen.get("pairs", ()))
        return cls(**chosen)
