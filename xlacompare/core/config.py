"""What a run was asked to do: one frozen object, validated when it is made, written into the records."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare.core import errors

COMPILERS = ("eager", "captured", "compiled", "openxla", "inductor_model", "nofusion", "opt0")
PLATFORMS = ("cpu", "gpu", "tpu")
SETTINGS_MODES = ("matched", "shipped", "both")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A run.

    Attributes:
      launches: Fresh processes per framework; 0 leaves the number to the stopping plan and the budget.
      target_ci: Half-width of the headline's interval at which the stopping plan stops, as a share (0.02 = 2%).
      margin: Share below which a difference counts as negligible, fixed before the first sample.
      budget_s: Seconds that the whole run may take (it decides the number of planned looks), None: no limit.
      cell_s: Seconds inside timed blocks per cell and launch.
      min_block_s: Least seconds of a block.
      num_cores: Cores that each worker is pinned to, and threads that its framework is told to use.
      deadline_s: Seconds after which a worker that does not answer counts as hanging.
      gate_steps: Steps of the gate's loss trace, and batches that a run cycles through.
    """

    frameworks: tuple[str, ...]
    compilers: tuple[str, ...] = ("eager", "compiled")
    workloads: tuple[str, ...] = ("mlp", "convnet", "transformer")
    preset: str = "tiny"
    dtypes: tuple[str, ...] = ("float32",)
    batch_size: int | None = None
    optimizer: str | None = None
    launches: int = 3
    target_ci: float | None = None
    margin: float = 0.05
    budget_s: float | None = None
    cell_s: float = 1.0
    min_block_s: float = 0.03
    settings: str = "matched"
    itemise: bool = False
    platform: str = "cpu"
    num_cores: int = 1
    deadline_s: float = 300.0
    gate_steps: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises BadInputError for values that cannot work."""
        for name in ("frameworks", "compilers", "workloads", "dtypes"):
            _non_empty(name, getattr(self, name))
        _known("compiler", self.compilers, COMPILERS)
        _known("platform", (self.platform,), PLATFORMS)
        _known("settings", (self.settings,), SETTINGS_MODES)
        for name in ("cell_s", "min_block_s", "deadline_s", "margin", "num_cores"):
            _positive(name, getattr(self, name))
        for name in ("target_ci", "budget_s"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.batch_size is not None:
            _positive("batch_size", self.batch_size)
        if self.launches < 0:
            raise errors.BadInputError(
                f"--launches={self.launches}: give a number of launches, or 0 for the stopping plan"
            )
        if self.itemise and self.settings != "both":
            raise errors.BadInputError(
                "--itemise needs --settings=both: it changes one setting at a time from matched to shipped"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)


def _non_empty(name: str, values: tuple[str, ...]) -> None:
    if not values:
        raise errors.BadInputError(f"--{name.rstrip('s')} is empty; give at least one")
    if len(set(values)) != len(values):
        raise errors.BadInputError(f"--{name.rstrip('s')} names {', '.join(values)}: one is named twice")


def _known(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise errors.BadInputError(f"unknown {name} {value!r}; known: {', '.join(known)}")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise errors.BadInputError(f"--{name}={value:g}: must be greater than 0")
