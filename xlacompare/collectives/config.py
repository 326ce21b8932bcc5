"""What a collective run was asked to do: one frozen object, validated when it is made, written into the records."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from xlacompare.collectives import table
from xlacompare.core import config, errors

TRANSPORTS = ("inprocess", "gloo", "mpi", "nccl", "ici")
MODES = ("process", "spmd", "threads")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32")


@dataclasses.dataclass(frozen=True)
class CollectiveConfig:
    """A run.

    Attributes:
      sizes: Sizes in bytes, nccl-tests' meaning of size per collective.
      mesh: Ranks, or (rows, columns).
      axis: Axis of a 2-D mesh that the collective runs along; None for all ranks.
      modes: Ways to run a transport; empty: each framework's first one.
      patterns: ppermute: "ring", "shift:k" or "pairs:0>1,1>0".
      root: broadcast: place of the source within each group.
      launches: Fresh worlds per framework; 0 leaves the number to the stopping plan and the budget.
      target_ci, margin, budget_s: As in the main job (`core.config.RunConfig`).
      cell_s: Seconds inside timed blocks per cell and launch.
      min_block_s: Least seconds of a block.
      num_cores: Cores that the ranks share, None: all that this process may use.
      deadline_s: Seconds after which a silent rank counts as hanging.
    """

    frameworks: tuple[str, ...]
    collectives: tuple[str, ...] = ("all_reduce",)
    transports: tuple[str, ...] = ("gloo",)
    sizes: tuple[int, ...] = (1024, 1 << 20)
    mesh: tuple[int, ...] = (2,)
    axis: int | None = None
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    reductions: tuple[str, ...] = ("sum",)
    patterns: tuple[str, ...] = ("ring",)
    root: int = 0
    placements: tuple[str, ...] = ("out_of_place",)
    launches: int = 1
    target_ci: float | None = None
    margin: float = 0.05
    budget_s: float | None = None
    cell_s: float = 0.2
    min_block_s: float = 0.02
    platform: str = "cpu"
    num_cores: int | None = None
    deadline_s: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises BadInputError for values that cannot work."""
        for name in ("frameworks", "collectives", "transports", "dtypes", "reductions", "patterns", "placements"):
            config.check_distinct(name, getattr(self, name))
        config.check_known("transport", self.transports, TRANSPORTS)
        config.check_known("mode", self.modes, MODES)
        config.check_known("placement", self.placements, table.PLACEMENTS)
        config.check_known("reduction", self.reductions, table.REDUCTIONS)
        config.check_known("dtype", self.dtypes, DTYPES)
        config.check_known("platform", (self.platform,), config.PLATFORMS)
        for name in ("cell_s", "min_block_s", "deadline_s"):
            config.check_seconds(name, getattr(self, name))
        if self.num_cores is not None and self.num_cores < 1:
            raise errors.BadInputError(f"--num_cores={self.num_cores}: must be greater than 0")
        config.check_plan(self.launches, self.target_ci, self.budget_s, self.margin)
        config.check_seed(self.seed)
        if not self.sizes or min(self.sizes) < 1 or len(set(self.sizes)) != len(self.sizes):
            raise errors.BadInputError("--sizes must be positive and different; write first:last:factor or a list")
        self._check_mesh()

    def _check_mesh(self) -> None:
        if len(self.mesh) not in (1, 2) or min(self.mesh) < 1:
            raise errors.BadInputError(f"--mesh={self.mesh}: give ranks (4) or rows and columns (2x2)")
        if self.axis is not None and not (len(self.mesh) == 2 and self.axis in (0, 1)):
            raise errors.BadInputError(f"--axis={self.axis} needs a mesh of two axes (--mesh=2x2), and is 0 or 1")
        if not 0 <= self.root < self.group_size:
            raise errors.BadInputError(f"--root={self.root}: a group has {self.group_size} ranks, from 0 on")

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return math.prod(self.mesh)

    @property
    def group_size(self) -> int:
        """Ranks that take part in one collective."""
        return self.num_ranks if self.axis is None else self.mesh[self.axis]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)
