"""Training over ranks: `python -m xlacompare.run --strategy=dp ...`. Reads flags, wires, prints.

Under torchrun, mpirun, srun or on a TPU pod every started process joins as a rank; that of rank 0 writes and prints.
Exit codes are those of `run`; 3 where an arm did other work than it must.
"""

from __future__ import annotations

from typing import Any

import rich.console
from absl import flags

from xlacompare import run_collectives
from xlacompare.core import config as core_config
from xlacompare.core import errors, machine
from xlacompare.launch import campaign, membership, parallel_campaign, parallel_grid
from xlacompare.parallel import arms, config, table

DEFAULTS = config.ParallelConfig(("jax",))
ONLY_HERE = ("communication", "bucket_mb", "planted", "profile")
# Flags of other jobs too, whose default is another one here.
OTHER_DEFAULT = ("cell_s", "min_block_s", "deadline_s", "num_cores")
BUCKET = "bucket_mb"


def define_flags() -> None:
    """Defines the flags that the other jobs have not. A function: absl's flags are global."""
    flags.DEFINE_list("strategy", [], f"Train over ranks, split by: {', '.join(table.STRATEGIES)}.")
    flags.DEFINE_list(
        "communication", list(DEFAULTS.communications), f"Communication arms of --strategy: {', '.join(arms.ARMS)}."
    )
    flags.DEFINE_boolean(
        "profile",
        DEFAULTS.profile,
        "Of --strategy: trace a few steps of `real` by each framework's profiler as a second opinion; the traces stay "
        "in the output's folder `traces`, for Perfetto and XProf.",
    )
    flags.DEFINE_float(BUCKET, None, "Of --strategy: MB of gradients reduced together, where that is a choice.")
    flags.DEFINE_multi_string(
        "planted",
        [],
        "Of --strategy, for experiments: every cell also with this cause, name=value,... (slow_rank=1:0.005, "
        "planted_link=200mbit, sleep_s=0.001, repeat_every=10); may be repeated.",
    )


def read_config(started: int | None = None) -> config.ParallelConfig:
    """The configuration that the flags ask for.

    Args:
      started: Ranks that a launcher started; None without one.

    Raises:
      BadInputError: With the one line to print.
    """
    values = flags.FLAGS
    if values.bucket_mb is not None and not values.bucket_mb > 0:
        raise errors.BadInputError(f"--{BUCKET}={values.bucket_mb:g}: must be greater than 0")
    made = config.ParallelConfig(
        frameworks=tuple(values.framework),
        strategies=tuple(values.strategy),
        communications=tuple(values.communication),
        compilers=tuple(values.compiler) if values["compiler"].present else (),
        workloads=tuple(values.workload),
        preset=values.preset,
        dtypes=tuple(values.dtype),
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        transports=tuple(values.transport),
        modes=tuple(values.mode),
        num_ranks=run_collectives.read_mesh(started)[0],
        launches=core_config.default_launches(len(values.framework)) if values.launches is None else values.launches,
        target_ci=values.target_ci,
        margin=values.margin,
        budget_s=values.budget_s,
        platform=values.platform,
        seed=values.seed,
        profile=values.profile,
        settings=() if values.bucket_mb is None else ((BUCKET, values.bucket_mb),),
        planted=tuple(values.planted),
        **{name: _of_all(name) for name in OTHER_DEFAULT},
    )
    available = len(machine.available_cores())
    if made.num_cores is not None and made.num_cores > available:
        raise errors.BadInputError(f"--num_cores={made.num_cores}: this process may use {available}")
    return made


def _of_all(name: str) -> Any:
    """A flag of other jobs too: what was given, else the default of this one."""
    flag = flags.FLAGS[name]
    return flag.value if flag.present else getattr(DEFAULTS, name)


def check(chosen: config.ParallelConfig) -> None:
    """Refuses what the flags alone do not show: a framework that is not installed, a batch that does not divide.

    Raises:
      XlacompareError: With the one line to print.
    """
    parallel_grid.expand(chosen)


def body(
    chosen: config.ParallelConfig,
    me: membership.Membership | None,
    progress: campaign.Progress,
    console: rich.console.Console,
) -> dict[Any, str]:
    """Runs a configuration and prints; returns the cells that failed, with their status.

    Arguments: as `run_collectives.body`.
    """
    grid = parallel_grid.expand(chosen)
    return run_collectives.measured(
        me, console, lambda *rest: parallel_campaign.execute(chosen, grid, *rest[:3], progress, rest[3])
    )
