"""What a rank is asked to build: one training step of a strategy, under one compiler and one communication arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xlacompare.core.census import LoweredCollective


@dataclasses.dataclass(frozen=True)
class Request:
    """One parallel step.

    Attributes:
      strategy: Name in `table.STRATEGIES`.
      communication: Name in `arms.ARMS`.
      compiler: Compiler arm of the framework ("eager", "compiled", ...).
      dtype: As of a workload: "float32", "float64", "bfloat16".
      num_ranks: Ranks of the mesh.
      settings: Build settings of the framework and of the strategy ("bucket_mb"), as sorted pairs.
      schedule: For arms without compute: the collectives of the census of `real` under the same compiler, in order.
    """

    strategy: str
    communication: str
    compiler: str
    dtype: str
    num_ranks: int
    settings: tuple[tuple[str, Any], ...] = ()
    schedule: tuple[LoweredCollective, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a request to a worker and for a record."""
        values = dataclasses.asdict(self)
        return {**values, "settings": dict(self.settings), "schedule": [item.to_dict() for item in self.schedule]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Inverse of `to_dict`, also after JSON."""
        chosen = dict(values)
        chosen["settings"] = tuple(sorted(dict(values.get("settings", {})).items()))
        chosen["schedule"] = tuple(LoweredCollective.from_dict(item) for item in values.get("schedule", ()))
        return cls(**chosen)
