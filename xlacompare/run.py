"""The main job: `python -m xlacompare.run --framework=jax,torch_xla,torch`. Reads flags, wires, prints.

With --collective it is the collective job of `run_collectives`.

Exit codes: 0 all cells measured; 1 a cell crashed, hung or ran out of memory; 2 bad input; 3 a gate failed;
130 interrupted. Records are in the output folder in every case.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import sys
import uuid
from typing import Any

import rich.console
import rich.progress
from absl import flags

from xlacompare import command, frameworks, run_collectives, workloads
from xlacompare.core import analysis, config, errors, machine, record
from xlacompare.launch import campaign, grid, membership
from xlacompare.report import render


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    flags.DEFINE_list("framework", ["jax"], f"Frameworks: {', '.join(frameworks.FRAMEWORKS)}.")
    flags.DEFINE_list("compiler", ["eager", "compiled"], f"Compiler arms: {', '.join(config.COMPILERS)}.")
    flags.DEFINE_list("workload", ["mlp"], f"Workloads: {', '.join(workloads.WORKLOADS)}.")
    flags.DEFINE_string("preset", "tiny", f"Size of the workloads: {', '.join(workloads.PRESETS)}.")
    flags.DEFINE_list("dtype", ["float32"], "float32, float64, bfloat16 (float32 parameters, bfloat16 compute).")
    flags.DEFINE_integer("batch_size", None, "Examples per step; default: the preset's.")
    flags.DEFINE_string("optimizer", None, "sgd (momentum) or adamw; default: the workload's.")
    flags.DEFINE_integer(
        "launches",
        None,
        "Fresh processes per framework; 0: planned looks after 6, 10, 16, 24 launches. Default: 3, the least for a "
        "comparison of frameworks; 2 for one framework, whose arms are compared inside a process.",
    )
    flags.DEFINE_float("target_ci", None, "Half-width of the intervals (0.02 = 2%) at which planned looks stop.")
    flags.DEFINE_float("budget_s", None, "Seconds for the run; fixes the number of planned looks (--launches=0).")
    flags.DEFINE_float("margin", 0.05, "Share below which a difference between frameworks counts as negligible.")
    flags.DEFINE_float("cell_s", 1.0, "Seconds inside timed blocks, per cell and launch.")
    flags.DEFINE_float("min_block_s", 0.03, "Least seconds of a block.")
    flags.DEFINE_enum("settings", "matched", list(config.SETTINGS_MODES), "Matched, the frameworks' own, or both.")
    flags.DEFINE_bool("itemise", False, "With --settings=both: one setting at a time.")
    flags.DEFINE_enum("platform", "cpu", list(config.PLATFORMS), "Where the steps run.")
    flags.DEFINE_integer("num_cores", None, "Cores and threads per worker; default: all but one, at least one.")
    flags.DEFINE_float("deadline_s", 300.0, "Seconds after which a silent worker counts as hanging.")
    flags.DEFINE_integer("seed", 0, "Seed of parameters, batches and orders.")
    flags.DEFINE_string("output_dir", None, "Folder for records and logs; default: runs/TIME.")
    flags.DEFINE_enum(
        "format", "text", list(render.COLLECTIVE_FORMATS), "What is printed at the end; nccl: collectives."
    )
    flags.DEFINE_bool("expert", False, "Also print expert arms, percentiles and definitions.")
    run_collectives.define_flags()


def read_config() -> config.RunConfig:
    """The configuration that the flags ask for.

    Raises:
      BadInputError: With the one line to print.
    """
    values = flags.FLAGS
    available = len(machine.available_cores())
    num_cores = values.num_cores if values.num_cores is not None else max(1, available - 1)
    if num_cores > available:
        raise errors.BadInputError(f"--num_cores={num_cores}: this process may use {available}")
    return config.RunConfig(
        frameworks=tuple(values.framework),
        compilers=tuple(values.compiler),
        workloads=tuple(values.workload),
        preset=values.preset,
        dtypes=tuple(values.dtype),
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        launches=values.launches if values.launches is not None else (3 if len(values.framework) > 1 else 2),
        target_ci=values.target_ci,
        margin=values.margin,
        budget_s=values.budget_s,
        cell_s=values.cell_s,
        min_block_s=values.min_block_s,
        settings=values.settings,
        itemise=values.itemise,
        platform=values.platform,
        num_cores=num_cores,
        deadline_s=values.deadline_s,
        seed=values.seed,
    )


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


def exit_code(failed: dict[Any, str]) -> int:
    """The worst that happened: a failed gate before a lost worker."""
    statuses = set(failed.values())
    if "mismatch" in statuses:
        return errors.EXIT_MISMATCH
    return errors.EXIT_FAILED_CELL if statuses & {"hang", "crash", "out_of_memory"} else errors.EXIT_OK


def body() -> int:
    """Runs what the flags say; returns the exit code."""
    values, console = flags.FLAGS, rich.console.Console(stderr=True)
    run_collectives.check_flags(bool(values.collective))
    if values.collective:
        me = membership.detect(os.environ)
        if me is not None and me.rank > 0:
            return run_collectives.join(me)
        asked = run_collectives.read_config(me.size if me else None)
        with TerminalProgress(console, "start") as progress:
            return exit_code(run_collectives.body(asked, me, progress, console))
    chosen = read_config()
    cells = grid.expand(chosen)
    stamp = datetime.datetime.now().strftime("%Y%m%dT%H%M%S")
    run_id = f"{stamp}-{uuid.uuid4().hex[:6]}"
    folder = pathlib.Path(values.output_dir or pathlib.Path("runs") / run_id)
    with TerminalProgress(console) as progress:
        made = campaign.execute(chosen, cells, folder, run_id, sys.argv, progress)
    sys.stdout.write(render.render(analysis.summarise(made.records), values.format, expert=values.expert))
    console.print(f"records: {folder / record.FILE_NAME}", style="dim", highlight=False)
    return exit_code(made.failed)


if __name__ == "__main__":
    define_flags()
    command.launch(body)
