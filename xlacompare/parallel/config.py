"""What a parallel run was asked to do: one frozen object, validated when it is made, written into the records."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare.collectives import config as collective_config
from xlacompare.core import config, errors
from xlacompare.parallel import arms, table
from xlacompare.workloads import spec


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """A run.

    Attributes:
      compilers: Compiler arms; empty: the first of each framework's strategy.
      modes: Ways to run a transport; empty: the first of each framework's strategy.
      num_ranks: Ranks in a row.
      launches: Fresh worlds per framework; 0 leaves the number to the stopping plan and the budget.
      target_ci, margin, budget_s, batch_size, optimizer, gate_steps: As in the main job (`core.config.RunConfig`).
      cell_s: Seconds inside timed blocks per cell and launch.
      min_block_s: Least seconds of a block.
      num_cores: Cores that the ranks share, None: all that this process may use.
      deadline_s: Seconds after which a silent rank counts as hanging.
      profile: Whether a few steps of `real` are traced by each framework's own profiler, after the timing.
      settings: Settings of strategies ("bucket_mb") with another value than the matched one, sorted by name.
      planted: Causes to plant, "name=value,name=value" each: every cell gets a twin with it in the same world.
    """

    frameworks: tuple[str, ...]
    strategies: tuple[str, ...] = ("dp",)
    communications: tuple[str, ...] = ("real", "elided", "token", "serial", "alone", "alone_token")
    compilers: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("mlp",)
    preset: str = "tiny"
    dtypes: tuple[str, ...] = ("float32",)
    batch_size: int | None = None
    optimizer: str | None = None
    transports: tuple[str, ...] = ("gloo",)
    modes: tuple[str, ...] = ()
    num_ranks: int = 2
    launches: int = 3
    target_ci: float | None = None
    margin: float = 0.05
    budget_s: float | None = None
    cell_s: float = 1.0
    min_block_s: float = 0.05
    platform: str = "cpu"
    num_cores: int | None = None
    deadline_s: float = 300.0
    gate_steps: int = 4
    seed: int = 0
    profile: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    planted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises BadInputError for values that cannot work."""
        for name in ("frameworks", "strategies", "communications", "workloads", "dtypes", "transports"):
            config.check_distinct(name, getattr(self, name))
        for name in ("compilers", "modes", "planted"):
            if getattr(self, name):
                config.check_distinct(name, getattr(self, name))
        config.check_known("compiler", self.compilers, config.COMPILERS)
        config.check_known("strategy", self.strategies, tuple(table.STRATEGIES))
        config.check_known("communication arm", self.communications, arms.ARMS)
        config.check_known("transport", self.transports, collective_config.TRANSPORTS)
        config.check_known("mode", self.modes, collective_config.MODES)
        config.check_known("dtype", self.dtypes, spec.DTYPES)
        config.check_known("platform", (self.platform,), config.PLATFORMS)
        for name in ("cell_s", "min_block_s", "deadline_s"):
            config.check_seconds(name, getattr(self, name))
        if self.num_ranks < 2:
            raise errors.BadInputError(f"--num_devices={self.num_ranks}: a strategy is for two ranks at the least")
        if self.num_cores is not None and self.num_cores < 1:
            raise errors.BadInputError(f"--num_cores={self.num_cores}: must be greater than 0")
        config.check_plan(self.launches, self.target_ci, self.budget_s, self.margin)
        config.check_seed(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {**dataclasses.asdict(self), "settings": dict(self.settings)}
