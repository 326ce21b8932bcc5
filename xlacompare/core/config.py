"""What a run was asked to do: one frozen object, validated when it is made, written into the records."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from xlacompare.core import errors, plugin, xla_options

COMPILERS = ("eager", "captured", "compiled", "openxla", "inductor_model", "nofusion", "opt0")
PLATFORMS = ("cpu", "gpu", "tpu")
SETTINGS_MODES = ("matched", "shipped", "both")
MOST_SECONDS = 1e6  # eleven days; a socket's timeout ends far above it, a typing error does not
MOST_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A run. Its defaults are those of the flags, but for those that follow from others (`default_launches`, ...).

    Attributes:
      launches: Fresh processes per framework; 0 leaves the number to the stopping plan and the budget.
      target_ci: Half-width of the headline's interval at which the stopping plan stops, as a share (0.02 = 2%).
      margin: Share below which a difference between frameworks counts as negligible, fixed before the first sample;
        0: none does.
      budget_s: Seconds that the whole run may take (it decides the number of planned looks), None: no limit.
      cell_s: Seconds inside timed blocks per cell and launch.
      min_block_s: Least seconds of a block.
      num_cores: Cores that each worker is pinned to, and threads that its framework is told to use.
      deadline_s: Seconds after which a worker that does not answer counts as hanging.
      pjrt_plugin: Path or package of the PJRT plugin that every framework runs on, as it was given; "": each its own.
      plugin: What was found there.
      replay: Whether every framework's program is also run in every framework's XLA, for the bars by program.
      ablate_flags: XLA options to change one at a time, "name=value" each; `xla_options.TABLE`: the platform's own.
      gate_steps: Steps of the gate's loss trace, and batches that a run cycles through.
    """

    frameworks: tuple[str, ...]
    compilers: tuple[str, ...] = ("eager", "compiled")
    workloads: tuple[str, ...] = ("mlp",)
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
    pjrt_plugin: str = ""
    plugin: plugin.PjrtPlugin | None = None
    replay: bool = False
    ablate_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises BadInputError for values that cannot work."""
        for name in ("frameworks", "compilers", "workloads", "dtypes"):
            check_distinct(name, getattr(self, name))
        check_known("compiler", self.compilers, COMPILERS)
        check_known("platform", (self.platform,), PLATFORMS)
        check_known("settings", (self.settings,), SETTINGS_MODES)
        for name in ("cell_s", "min_block_s", "deadline_s"):
            check_seconds(name, getattr(self, name))
        _positive("num_cores", self.num_cores)
        if self.batch_size is not None:
            _positive("batch_size", self.batch_size)
        check_plan(self.launches, self.target_ci, self.budget_s, self.margin)
        check_seed(self.seed)
        if self.ablate_flags and self.settings != "matched":
            raise errors.BadInputError("--ablate_flags needs --settings=matched: it changes one thing at a time")
        xla_options.chosen(self.ablate_flags, self.platform)
        if self.itemise and self.settings != "both":
            raise errors.BadInputError(
                "--itemise needs --settings=both: it changes one setting at a time from matched to shipped"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)


def default_launches(num_frameworks: int) -> int:
    """Launches without --launches: the least for a comparison of frameworks; arms are compared inside a process."""
    return 3 if num_frameworks > 1 else 2


def default_cores(available: int) -> int:
    """Cores of a worker without --num_cores: one is left to the parent and the system."""
    return max(1, available - 1)


def check_plan(launches: int, target_ci: float | None, budget_s: float | None, margin: float) -> None:
    """Refuses flags of the stopping plan that cannot work, or that would be ignored in silence.

    Raises:
      BadInputError: Names the flag.
    """
    if target_ci is not None:
        _positive("target_ci", target_ci)
    if budget_s is not None:
        check_seconds("budget_s", budget_s)
    if not 0 <= margin < math.inf:
        raise errors.BadInputError(f"--margin={margin:g}: give a share like 0.05 (5%), or 0 for no margin")
    if launches < 0:
        raise errors.BadInputError(f"--launches={launches}: give a number of launches, or 0 for the stopping plan")
    for name, value in (("target_ci", target_ci), ("budget_s", budget_s)):
        if launches and value is not None:
            raise errors.BadInputError(f"--{name}={value:g} is of planned looks; it needs --launches=0")


def check_seconds(name: str, value: float) -> None:
    """Refuses seconds that no clock or socket takes.

    Raises:
      BadInputError: Names the flag.
    """
    _positive(name, value)
    if value > MOST_SECONDS:
        raise errors.BadInputError(f"--{name}={value:g}: the most is {MOST_SECONDS:g} seconds")


def check_seed(seed: int) -> None:
    """Refuses a seed that a generator does not take.

    Raises:
      BadInputError: Names the flag.
    """
    if not 0 <= seed <= MOST_SEED:
        raise errors.BadInputError(f"--seed={seed}: give a number from 0 to {MOST_SEED}")


def check_distinct(name: str, values: tuple[str, ...]) -> None:
    """Refuses an empty list, and one that names a thing twice.

    Raises:
      BadInputError: Names the flag.
    """
    if not values:
        raise errors.BadInputError(f"--{name.rstrip('s')} is empty; give at least one")
    if len(set(values)) != len(values):
        raise errors.BadInputError(f"--{name.rstrip('s')} names {', '.join(values)}: one is named twice")


def check_known(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuses a name that is not in the table.

    Raises:
      BadInputError: Names the value and the table.
    """
    for value in values:
        if value not in known:
            raise errors.BadInputError(f"unknown {name} {value!r}; known: {', '.join(known)}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise errors.BadInputError(f"--{name}={value:g}: must be greater than 0 and finite")
