"""The collective job: `python -m xlacompare.run --collective=all_reduce,all_gather ...`. Reads flags, wires, prints.

Under torchrun, mpirun, srun or on a TPU pod every started process joins as a rank; that of rank 0 writes and prints.
Exit codes are those of `run`; 3 where a value was wrong.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import rich.console
from absl import flags

from xlacompare.collectives import config, mesh, sizes, table
from xlacompare.core import errors, machine, record
from xlacompare.launch import campaign, collective_campaign, collective_grid, joining, membership
from xlacompare.report import render

DEFAULTS = config.CollectiveConfig(("jax",))
# Flags of this job alone.
ONLY_HERE = ("sizes", "reduction", "mesh", "axis", "pattern", "root", "placement")
# Flags of other jobs too, whose default is another one here.
OTHER_DEFAULT = ("launches", "cell_s", "min_block_s", "deadline_s", "num_cores")
DEFAULT_DEVICES = 2


def define_flags() -> None:
    """Defines the flags that the main job has not. A function: absl's flags are global."""
    flags.DEFINE_list("collective", [], f"Measure collectives instead of steps: {', '.join(table.TABLE)}.")
    flags.DEFINE_string("sizes", "1KiB:64MiB:4", "first:last:factor or a list, in nccl-tests' meaning of size.")
    flags.DEFINE_list("transport", ["gloo"], f"What carries the bytes: {', '.join(config.TRANSPORTS)}.")
    flags.DEFINE_list("mode", [], f"Ways to run it: {', '.join(config.MODES)}; default: each framework's first.")
    flags.DEFINE_integer("num_devices", None, "Ranks in a row; default: 2, or what the launcher started.")
    flags.DEFINE_string("mesh", None, "Ranks as rows and columns, like 2x2.")
    flags.DEFINE_integer("axis", None, "Axis of --mesh that the collectives run along; default: all ranks.")
    flags.DEFINE_list("reduction", ["sum"], f"Of all_reduce and reduce_scatter: {', '.join(table.REDUCTIONS)}.")
    flags.DEFINE_multi_string("pattern", ["ring"], "Of ppermute: ring, shift:2 or pairs:0>1,1>0; may be repeated.")
    flags.DEFINE_integer("root", 0, "Of broadcast: the source's place in its group.")
    flags.DEFINE_list("placement", ["out_of_place"], f"{' or '.join(table.PLACEMENTS)}, or both.")


def read_config(started: int | None = None) -> config.CollectiveConfig:
    """The configuration that the flags ask for.

    Args:
      started: Ranks that a launcher started; None without one.

    Raises:
      BadInputError: With the one line to print.
    """
    values = flags.FLAGS
    for name in values.collective:
        table.get(name)
    shape = read_mesh(started)
    made = config.CollectiveConfig(
        frameworks=tuple(values.framework),
        collectives=tuple(values.collective),
        transports=tuple(values.transport),
        sizes=sizes.parse(values.sizes),
        mesh=shape,
        axis=values.axis,
        modes=tuple(values.mode),
        dtypes=tuple(values.dtype),
        reductions=tuple(values.reduction),
        patterns=tuple(values.pattern),
        root=values.root,
        placements=tuple(values.placement),
        margin=values.margin,
        target_ci=values.target_ci,
        budget_s=values.budget_s,
        platform=values.platform,
        seed=values.seed,
        **{name: _of_both(name) for name in OTHER_DEFAULT},
    )
    available = len(machine.available_cores())
    if made.num_cores is not None and made.num_cores > available:
        raise errors.BadInputError(f"--num_cores={made.num_cores}: this process may use {available}")
    if "ppermute" in made.collectives:
        for pattern in made.patterns:
            mesh.parse_pattern(pattern, made.group_size)
    return made


def _of_both(name: str) -> Any:
    """A flag of other jobs too: what was given, else the default of this one."""
    flag = flags.FLAGS[name]
    return flag.value if flag.present else getattr(DEFAULTS, name)


def read_mesh(started: int | None) -> tuple[int, ...]:
    """Ranks of the run from --mesh, --num_devices and what a launcher started.

    Raises:
      BadInputError: They contradict each other.
    """
    values = flags.FLAGS
    shape = mesh.parse_mesh(values.mesh) if values.mesh is not None else None
    if values.num_devices is not None and values.num_devices < 1:
        raise errors.BadInputError(f"--num_devices={values.num_devices}: the least is 1")
    if shape is None:
        shape = (values.num_devices or started or DEFAULT_DEVICES,)
    elif values.num_devices not in (None, mesh.size(shape)):
        raise errors.BadInputError(
            f"--mesh={values.mesh} has {mesh.size(shape)} ranks, --num_devices={values.num_devices}; give one of them"
        )
    if started not in (None, mesh.size(shape)):
        raise errors.BadInputError(
            f"the launcher started {started} ranks, --mesh or --num_devices asks for {mesh.size(shape)}; "
            "leave them out, or start as many"
        )
    return shape


def check(chosen: config.CollectiveConfig) -> None:
    """Refuses what the flags alone do not show: a framework that is not installed, or has no collectives.

    Raises:
      XlacompareError: With the one line to print.
    """
    collective_grid.expand(chosen)


def join(me: membership.Membership, read: Callable[[int], Any]) -> int:
    """The life of a launched process that is not rank 0; returns its exit code.

    Bad flags end it before it waits for rank 0, in silence: rank 0 has the same flags and says it.

    Args:
      me: This process.
      read: Reads the flags of the job, given the number of ranks.
    """
    try:
        read(me.size)
    except errors.BadInputError as error:
        return error.exit_code
    return joining.serve(me)


@contextlib.contextmanager
def shown_if_interrupted(folder: pathlib.Path, run_id: str) -> Iterator[None]:
    """Prints what an interrupted run has measured, when the interrupt has ended everything else."""
    try:
        yield
    except KeyboardInterrupt:
        found = record.of_run(record.read(folder).records, run_id) if (folder / record.FILE_NAME).exists() else []
        if any(item["kind"] in ("cell", "collective", "parallel") for item in found):
            sys.stdout.write(render.of_records(found, flags.FLAGS.format, flags.FLAGS.expert))
            sys.stderr.write(f"records: {folder / record.FILE_NAME}\n")
        raise


def body(
    chosen: config.CollectiveConfig,
    me: membership.Membership | None,
    progress: campaign.Progress,
    console: rich.console.Console,
) -> dict[Any, str]:
    """Runs a configuration and prints; returns the cells that failed, with their status.

    Args:
      chosen: The configuration.
      me: This process among those that a launcher started (its rank 0); None without a launcher.
      progress: Who watches.
      console: For what is no report.
    """
    return measured(me, console, lambda *rest: collective_campaign.execute(chosen, *rest[:3], progress, rest[3]))


class Campaign(Protocol):
    """What a job over ranks made."""

    records: list[dict[str, Any]]
    failed: dict[Any, str]


def measured(
    me: membership.Membership | None, console: rich.console.Console, execute: Callable[..., Campaign]
) -> dict[Any, str]:
    """Runs a job over ranks into a folder and prints its report; returns the cells that failed, with their status.

    Args:
      me: This process among those that a launcher started (its rank 0); None without a launcher.
      console: For what is no report.
      execute: Takes folder, run's name, command line and launcher.
    """
    values = flags.FLAGS
    stamp = datetime.datetime.now().strftime("%Y%m%dT%H%M%S")
    run_id = f"{stamp}-{uuid.uuid4().hex[:6]}"
    folder = pathlib.Path(values.output_dir or pathlib.Path("runs") / run_id)
    with shown_if_interrupted(folder, run_id), joining.launcher_of(me, folder) as launcher:
        made = execute(folder, run_id, sys.argv, launcher)
    sys.stdout.write(render.of_records(made.records, values.format, values.expert))
    console.print(f"records: {folder / record.FILE_NAME}", style="dim", highlight=False)
    return made.failed
