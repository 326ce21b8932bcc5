"""The main job: `python -m xlacompare.run` without --collective and --strategy. Reads flags, wires, prints.

`run` says what for. All jobs' flags are known at once, and each job refuses those of the others.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.progress
from absl import flags

from xlacompare import frameworks, run_collectives, run_parallel, workloads
from xlacompare.core import analysis, config, errors, machine, plan, plugin, record, xla_options
from xlacompare.graph import plugins
from xlacompare.launch import campaign, grid, membership
from xlacompare.report import render


class OptionsParser(flags.ListParser):
    """A list that may be left out: absl then hands over "true", or "false" for --noablate_flags."""

    def parse(self, argument: str | list[str]) -> list[str]:
        """The items."""
        bare = {"true": [xla_options.TABLE], "false": []}
        found: list[str] = bare[argument] if argument in ("true", "false") else super().parse(argument)
        return found


def options_flag() -> flags.Flag[list[str]]:
    """--ablate_flags: boolean for absl, which takes those without a value."""
    about = (
        "XLA options to change one at a time against the default: alone (or =table) those that matter on the platform, "
        "else a list of name=value. For jax and torch_xla."
    )
    return flags.Flag(OptionsParser(), None, "ablate_flags", [], about, boolean=True)


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    usual = config.RunConfig(("jax",))  # the printed command (report.advice) leaves out what equals it
    flags.DEFINE_list("framework", list(usual.frameworks), f"Frameworks: {', '.join(frameworks.FRAMEWORKS)}.")
    flags.DEFINE_list("compiler", list(usual.compilers), f"Compiler arms: {', '.join(config.COMPILERS)}.")
    flags.DEFINE_list("workload", list(usual.workloads), f"Workloads: {', '.join(workloads.WORKLOADS)}.")
    flags.DEFINE_string("preset", usual.preset, f"Size of the workloads: {', '.join(workloads.PRESETS)}.")
    flags.DEFINE_list("dtype", list(usual.dtypes), "float32, float64, bfloat16 (float32 parameters, bfloat16 compute).")
    flags.DEFINE_integer("batch_size", None, "Examples per step; default: the preset's.")
    flags.DEFINE_string("optimizer", None, "sgd (momentum) or adamw; default: the workload's.")
    flags.DEFINE_integer(
        "launches",
        None,
        "Fresh processes per framework; 0: planned looks after 6, 10, 16, 24 launches. Default: 3, the least for a "
        "comparison of frameworks; 2 for one framework, whose arms are compared inside a process.",
    )
    flags.DEFINE_float("target_ci", None, "Half-width (0.02 = 2%) at which planned looks stop (--launches=0).")
    flags.DEFINE_float("budget_s", None, "Seconds for the run; fixes the number of planned looks (--launches=0).")
    flags.DEFINE_float(
        "margin",
        usual.margin,
        "Share below which a difference between frameworks counts as negligible; 0: none does. Between arms of one "
        f"framework it is {plan.MARGIN_IN_PROCESS:g}.",
    )
    flags.DEFINE_float("cell_s", usual.cell_s, "Seconds inside timed blocks, per cell and launch.")
    flags.DEFINE_float("min_block_s", usual.min_block_s, "Least seconds of a block.")
    flags.DEFINE_enum("settings", usual.settings, list(config.SETTINGS_MODES), "Matched, the frameworks' own, or both.")
    flags.DEFINE_bool("itemise", False, "With --settings=both: one setting at a time.")
    flags.DEFINE_flag(options_flag())
    flags.DEFINE_enum("platform", usual.platform, list(config.PLATFORMS), "Where the steps run.")
    flags.DEFINE_string(
        "pjrt_plugin",
        None,
        "PJRT plugin that every framework runs on, as path or package: one XLA build under all front ends.",
    )
    flags.DEFINE_bool(
        "replay",
        False,
        "Also run each program in each framework's XLA without its Python: the gap as host, lowering and XLA build.",
    )
    flags.DEFINE_integer("num_cores", None, "Cores and threads per worker; default: all but one, at least one.")
    flags.DEFINE_float("deadline_s", usual.deadline_s, "Seconds after which a silent worker counts as hanging.")
    flags.DEFINE_integer("seed", usual.seed, "Seed of parameters, batches and orders.")
    flags.DEFINE_string("output_dir", None, "Folder for records and logs; default: runs/TIME.")
    flags.DEFINE_string(
        "save_program", None, "Folder for the cells' programs; see python -m xlacompare.program --help."
    )
    flags.DEFINE_enum(
        "format", "text", list(render.COLLECTIVE_FORMATS), "What is printed at the end; nccl: collectives."
    )
    flags.DEFINE_bool("expert", False, "Also print expert arms, percentiles and definitions.")
    run_collectives.define_flags()
    run_parallel.define_flags()


# Flags of training steps, on one device or over ranks; of one device alone; of whatever has ranks.
OF_STEPS = ("compiler", "workload", "preset", "batch_size", "optimizer")
ONE_DEVICE = ("settings", "itemise", "save_program", "ablate_flags", "pjrt_plugin", "replay")
OVER_RANKS = ("transport", "mode", "num_devices")
GIVE_COLLECTIVE, GIVE_STRATEGY = "--collective=all_reduce,all_gather", "--strategy=dp"


def check_flags() -> None:
    """Refuses flags of another job than the one that is asked for: they would be ignored in silence.

    Raises:
      BadInputError: Names the flag.
    """
    values = flags.FLAGS
    if values.collective and values.strategy:
        raise errors.BadInputError("--collective and --strategy are two jobs; give one of them")
    if values.collective:
        nothing = "means nothing with --collective"
        _refuse((*OF_STEPS, *ONE_DEVICE), f"is of training steps; it {nothing}")
        _refuse(run_parallel.ONLY_HERE, f"is of training over ranks; it {nothing}")
        return
    if values.strategy:
        _refuse(run_collectives.ONLY_HERE, "is of collectives; it means nothing with --strategy")
        _refuse(ONE_DEVICE, "is of steps on one device; it means nothing with --strategy")
    else:
        _refuse(run_collectives.ONLY_HERE, f"is of collectives; give {GIVE_COLLECTIVE}")
        _refuse(run_parallel.ONLY_HERE, f"is of training over ranks; give {GIVE_STRATEGY}")
        _refuse(OVER_RANKS, f"is of several ranks; give {GIVE_COLLECTIVE} or {GIVE_STRATEGY}")
    if values.format not in render.FORMATS:
        raise errors.BadInputError(f"--format={values.format} is of collectives; give {GIVE_COLLECTIVE}")


def _refuse(names: Sequence[str], why: str) -> None:
    given = [name for name in names if flags.FLAGS[name].present]
    if given:
        raise errors.BadInputError(f"--{given[0]} {why}")


def read_config() -> config.RunConfig:
    """The configuration that the flags ask for.

    Raises:
      BadInputError: With the one line to print.
    """
    values = flags.FLAGS
    available = len(machine.available_cores())
    num_cores = values.num_cores if values.num_cores is not None else config.default_cores(available)
    if num_cores > available:
        raise errors.BadInputError(f"--num_cores={num_cores}: this process may use {available}")
    chosen = shared_plugin(values.pjrt_plugin, values.platform, values.deadline_s)
    return config.RunConfig(
        frameworks=tuple(values.framework),
        compilers=tuple(values.compiler),
        workloads=tuple(values.workload),
        preset=values.preset,
        dtypes=tuple(values.dtype),
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        launches=values.launches if values.launches is not None else config.default_launches(len(values.framework)),
        target_ci=values.target_ci,
        margin=values.margin,
        budget_s=values.budget_s,
        cell_s=values.cell_s,
        min_block_s=values.min_block_s,
        settings=values.settings,
        itemise=values.itemise,
        ablate_flags=tuple(values.ablate_flags),
        platform=values.platform,
        num_cores=num_cores,
        deadline_s=values.deadline_s,
        seed=values.seed,
        pjrt_plugin=values.pjrt_plugin or "",
        plugin=chosen,
        replay=values.replay,
    )


def shared_plugin(text: str | None, platform: str, deadline_s: float) -> plugin.PjrtPlugin | None:
    """The plugin of --pjrt_plugin, tried in a child process before anything else starts.

    Raises:
      BadInputError: It is not there, is no PJRT plugin, is of another API version or platform, or does not answer.
    """
    if not text:
        return None
    config.check_seconds("deadline_s", deadline_s)
    found = plugins.examine(plugins.resolve(text), deadline_s)
    found.check_platform(platform)
    return found


class TerminalProgress(campaign.Progress):
    """Progress with the remaining time, on standard error so that standard output stays a report."""

    def __init__(self, console: rich.console.Console, first: str = "gate") -> None:
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(),
        )
        self._bar = rich.progress.Progress(*columns, console=console, transient=True, speed_estimate_period=3600)
        self._task = self._bar.add_task(first, total=None)

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(text, style="dim", highlight=False, soft_wrap=True, markup=False)

    def phase(self, text: str, done: float, total: float) -> None:
        """Moves the bar; the remaining time follows from the cells done so far."""
        self._bar.update(self._task, description=text, completed=done, total=total)


def program_folder() -> pathlib.Path | None:
    """The folder of --save_program, made now: hours later is too late to find that it cannot be.

    Raises:
      BadInputError: It cannot be made.
    """
    if flags.FLAGS.save_program is None:
        return None
    folder = pathlib.Path(flags.FLAGS.save_program).absolute()  # workers write there
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInputError(f"--save_program={folder}: cannot be made: {error.strerror}") from None
    return folder


def exit_code(failed: dict[Any, str]) -> int:
    """The worst that happened: a failed gate before a lost worker."""
    statuses = set(failed.values())
    if "mismatch" in statuses:
        return errors.EXIT_MISMATCH
    return errors.EXIT_FAILED_CELL if statuses & {"hang", "crash", "out_of_memory"} else errors.EXIT_OK


def body() -> int:
    """Runs what the flags say; returns the exit code."""
    values, console = flags.FLAGS, rich.console.Console(stderr=True)
    check_flags()
    if values.collective or values.strategy:
        job: Any = run_collectives if values.collective else run_parallel
        me = membership.detect(os.environ)
        if me is not None and me.rank > 0:
            return run_collectives.join(me, job.read_config)
        asked = job.read_config(me.size if me else None)
        job.check(asked)  # before a bar is drawn, which would leave a line behind
        with TerminalProgress(console, "start") as progress:
            return exit_code(job.body(asked, me, progress, console))
    chosen = read_config()
    cells = grid.expand(chosen)
    programs = program_folder()
    stamp = datetime.datetime.now().strftime("%Y%m%dT%H%M%S")
    run_id = f"{stamp}-{uuid.uuid4().hex[:6]}"
    folder = pathlib.Path(values.output_dir or pathlib.Path("runs") / run_id)
    with run_collectives.shown_if_interrupted(folder, run_id), TerminalProgress(console) as progress:
        made = campaign.execute(chosen, cells, folder, run_id, sys.argv, progress, programs)
    sys.stdout.write(render.render(analysis.summarise(made.records), values.format, expert=values.expert))
    console.print(f"records: {folder / record.FILE_NAME}", style="dim", highlight=False)
    return exit_code(made.failed)
