"""Does the report find what is planted, on this machine? `python -m xlacompare.selftest`.

Trains a small model over two ranks and plants causes of known size beside it: extra work, a sleeping host, a
slower rank, an extra collective, a slower link (--link, root), fusion off, a compilation, a wrong epsilon. Prints
planted against reported, and whether everything else was left alone. About two minutes.
Exit codes: 0 all found, or undecided; 1 a cell could not be measured; 2 bad input; 5 a cause was not found, or another
effect moved; 130 interrupted.
"""

from __future__ import annotations

import datetime
import pathlib
import sys
import uuid
from collections.abc import Sequence

import rich.box
import rich.console
import rich.markup
import rich.table
from absl import flags

from xlacompare import command, run_steps
from xlacompare.core import errors, record
from xlacompare.core import planted_causes as causes
from xlacompare.launch import link as links
from xlacompare.launch import selftest

STYLES = {
    "found": "green",
    "yes": "green",
    "not found": "red",
    "not measured": "red",
    "moved": "red",
    "undecided": "yellow",
}
COVERAGE = "python -m experiments.effect_coverage (how often the intervals cover, by simulation)"


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    flags.DEFINE_string("framework", None, "Framework; default: the first that is installed and trains over ranks.")
    flags.DEFINE_string("transport", "gloo", "How the ranks exchange bytes.")
    flags.DEFINE_string("workload", "transformer", "What is trained.")
    flags.DEFINE_string("preset", "tiny", "Its size.")
    flags.DEFINE_bool("thorough", False, f"Longer cells, three launches, narrower limits. See also {COVERAGE}.")
    flags.DEFINE_bool(
        "link", False, "Ranks on a link of known rate, and a slower one planted: root, namespaces and tc."
    )
    flags.DEFINE_float("deadline_s", 300.0, "Seconds after which a silent rank counts as hanging.")
    flags.DEFINE_string("output_dir", None, "Folder for records and logs; default: runs/TIME.")


def to_text(rows: Sequence[causes.Row], plan: selftest.Plan, width: int | None = None) -> str:
    """The table; notes below it, one a line.

    Args:
      rows: Of `Plan.rows`.
      plan: What was run.
      width: Columns; the terminal's, or 120 where the output is none.
    """
    titles = ("planted", "must show in", "planted size", "reported [95%]", "found?", "all else left alone?")
    table = rich.table.Table(*titles, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        said = [f"[{STYLES.get(word, 'default')}]{word or '-'}[/]" for word in (row.found, row.left)]
        values = [row.planted, row.where, row.size, row.reported]
        table.add_row(*(rich.markup.escape(value) for value in values), *said)
    console = rich.console.Console(width=width or (None if sys.stdout.isatty() else 120), highlight=False)
    run, limits = plan.run, plan.limits
    about = (
        f"{run.frameworks[0]}/{plan.compiler}, dp {run.workloads[0]} {run.preset} on {run.num_ranks} ranks over "
        f"{run.transports[0]}; {run.launches} launch{'es' if run.launches > 1 else ''}. found: the interval leaves 0 "
        f"and reaches the planted size give or take {limits.tolerance:.0%}; left alone: two one-sided tests at "
        f"{limits.margin:.0%} of the step"
    )
    with console.capture() as captured:
        console.print(about, markup=False)
        console.print(table)
        for row in rows:
            if row.note:
                console.print(f"{row.planted}: {row.note}", markup=False, soft_wrap=True)
        console.print(verdict(rows), markup=False, soft_wrap=True)
    return captured.get()


def verdict(rows: Sequence[causes.Row]) -> str:
    """The last line."""
    planted = [row for row in rows if row.found != "left out"]
    found = sum(row.found == "found" for row in planted)
    failed = [row.planted for row in planted if row.failed]
    unsure = [row.planted for row in planted if not row.failed and "undecided" in (row.found, row.left)]
    parts = [f"{found} of {len(planted)} planted causes found"]
    parts += [f"not found, or another effect moved: {', '.join(failed)}"] if failed else []
    broken = [row.planted for row in planted if row.found == "not measured"]
    parts += [f"not measured: {', '.join(broken)}"] if broken else []
    parts += [f"undecided: {', '.join(unsure)} (a quieter machine or --thorough decides)"] if unsure else []
    return "; ".join(parts)


def exit_code(rows: Sequence[causes.Row]) -> int:
    """What is undecided fails nothing; a cell that could not be measured does, as in `run`."""
    if any(row.failed for row in rows):
        return errors.EXIT_SELFTEST
    return errors.EXIT_FAILED_CELL if any(row.found == "not measured" for row in rows) else errors.EXIT_OK


def body() -> int:
    """Runs and prints; returns the exit code."""
    values = flags.FLAGS
    no_link = links.why_not() if values.link else "only with --link (root, namespaces, tc)"
    if no_link is None and values.transport != "gloo":
        no_link = f"a link is for gloo, not for {values.transport}"
    name = values.framework or selftest.usual_framework()
    about = {"workloads": (values.workload,), "transports": (values.transport,), "preset": values.preset}
    plan = selftest.make(name, values.thorough, no_link, **about, deadline_s=values.deadline_s)
    run_id = f"{datetime.datetime.now().strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = pathlib.Path(values.output_dir or pathlib.Path("runs") / run_id)
    try:
        with run_steps.TerminalProgress(rich.console.Console(stderr=True), "start") as progress:
            records = selftest.execute(plan, folder, run_id, sys.argv, progress)
    except KeyboardInterrupt:
        if (folder / record.FILE_NAME).exists():
            sys.stdout.write(to_text(plan.rows(record.of_run(record.read(folder).records, run_id)), plan))
        raise
    rows = plan.rows(records)
    sys.stdout.write(to_text(rows, plan))
    sys.stderr.write(f"records: {folder / record.FILE_NAME}\n")
    if values.thorough:
        sys.stdout.write(f"Coverage: {COVERAGE}\n")
    return exit_code(rows)


if __name__ == "__main__":
    define_flags()
    command.launch(body)
