"""Does each bar between jax and torch_xla move for its own cause, and for no other?

Question: plant a known cause in one place of torch_xla's side (its program, its XLA, its host) and take the bars of the
same launch without it away. Which bars changed?

    python -m experiments.planted_bars --output_dir=experiments/results/planted_bars
    python -m experiments.planted_bars --records=experiments/results/planted_bars    (only the table)

Runtime on 2 cores: 6 to 8 minutes. Leave the machine alone meanwhile. Every variant has two steps and four replays of
its own, also on the side where nothing is planted, so that a change of a bar is measured twice and not a difference of
the same numbers. Printed: planted cause, bar, change [95% interval over launches], verdict. `moved`: the interval
leaves 0 and the change is above the margin; `left`: TOST at the margin, 3% of torch_xla's unplanted step, says that it
is not.
Expected: each cause moves its own bar. An XLA flag that costs the two programs unlike amounts is no pure effect of the
build: half the inequality moves lowering, and as much "program fits runtime", which the report then says.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from absl import flags

from xlacompare import command, frameworks, workloads
from xlacompare.core import bars, config, estimates, plan, record, samples, verdict
from xlacompare.core import cell as cells
from xlacompare.launch import campaign, grid, planted

LAUNCHES = flags.DEFINE_integer("launches", 4, "Launches.", lower_bound=2)
CELL_S = flags.DEFINE_float("cell_s", 0.6, "Seconds inside timed blocks, per cell and launch.")
WORKLOAD = flags.DEFINE_string("workload", "transformer", "Workload.")
VARIANTS = flags.DEFINE_list("variants", None, "Which causes to plant; default: all.")
RECORDS = flags.DEFINE_string("records", None, "Only print the table of records that an earlier run left here.")
OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder for the records; default: a new one.")

SIDES = ("jax", "torch_xla")
MARGIN = 0.03
PACKAGE = "experiments.planted_torch_xla"
BASE = "matched"
# Variant -> (what is planted on torch_xla's side, the bar that it belongs to).
PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "transposes": ({"transposes": 6}, bars.LOWERING),
    "no fusion emitters": ({planted.XLA_FLAGS: "--xla_cpu_use_fusion_emitters=false"}, bars.BUILD),
    "no fusion": ({planted.XLA_FLAGS: "--xla_disable_hlo_passes=fusion"}, bars.BUILD),
    "sleep": ({planted.SLEEP_S: 0.002}, bars.HOST),
}


def members(chosen: list[str]) -> list[cells.Cell]:
    """Steps and replays of all variants."""
    workload = workloads.load_workload(WORKLOAD.value, "tiny")
    rest = (workload.name, "tiny", "float32", workload.batch_size, workload.optimizer.name)
    steps = []
    for label in (BASE, *chosen):
        changed = tuple(sorted(PLANTED[label][0].items())) if label != BASE else ()
        steps += [cells.Cell(name, "compiled", *rest, label, changed if name == SIDES[1] else ()) for name in SIDES]
    return steps + grid.replays(steps)


class Said(campaign.Progress):
    """What happens, on standard error."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def phase(self, text: str, done: float, total: float) -> None:
        self.say(text)


def measured(folder: pathlib.Path, chosen: list[str]) -> list[Mapping[str, Any]]:
    """Runs the launches."""
    os.environ[frameworks.EXTRA_VARIABLE] = f"{SIDES[1]}={PACKAGE}"
    run = config.RunConfig(
        SIDES, ("compiled",), (WORKLOAD.value,), launches=LAUNCHES.value, cell_s=CELL_S.value, replay=True
    )
    everything = grid.Grid(tuple(members(chosen)), ())
    return list(campaign.execute(run, everything, folder, "planted", sys.argv, Said()).records)


def squares(records: list[Mapping[str, Any]]) -> dict[str, bars.Square]:
    """Times by variant; only launches that have all.

    Raises:
      ValueError: A variant has no bars.
    """
    found, replays = samples.collect(records), samples.collect(records, "replay")
    steps: dict[str, dict[str, cells.Cell]] = {}
    for entry in found.values():
        steps.setdefault(entry.cell.label, {})[entry.cell.framework] = entry.cell
    common = set.intersection(*(set(entry.launches) for entry in (*found.values(), *replays.values())))
    for entry in (*found.values(), *replays.values()):
        entry.launches = {launch: entry.launches[launch] for launch in sorted(common)}
    made = {}
    for label, sides in steps.items():
        times = bars.square(sides[SIDES[1]], sides[SIDES[0]], found, replays)
        if isinstance(times, str):
            raise ValueError(f"{label}: {times}")
        made[label] = times
    return made


def judged(change: estimates.Estimate, margin_s: float) -> str:
    """One word on a change of a bar."""
    if verdict.tost_p(change, margin_s) <= plan.OVERALL_ALPHA:
        return f"left (TOST p {verdict.tost_p(change, margin_s):.2g})"
    if abs(change.mean) > margin_s and not change.low <= 0 <= change.high:
        return "moved"
    return "undecided"


def table(found: Mapping[str, bars.Square]) -> str:
    """What each planted cause changed."""
    base = found[BASE]
    step_s = float(base.step_a.mean())
    margin_s = MARGIN * step_s
    step, margin = f"torch_xla's step {1e3 * step_s:.2f} ms", f"margin {MARGIN:.0%}: {1e3 * margin_s:.2f} ms"
    lines = [f"{WORKLOAD.value}, {len(base.step_a)} launches; {step}; {margin}"]
    lines.append(f"{'planted in torch_xla':<22}{'bar':<24}{'change, ms [95% interval]':<32}verdict")
    lines += [_row("nothing (the bars)", name, values, "") for name, values in base.terms().items()]
    for label, times in found.items():
        if label == BASE:
            continue
        total = times.step_a - base.step_a - (times.step_b - base.step_b)
        lines.append(_row(label, "T_torch_xla - T_jax", total, ""))
        for name, values in times.terms().items():
            change = values - base.terms()[name]
            said = judged(estimates.t_interval(change), margin_s)
            lines.append(_row(label, name, change, f"{said}{' <- its own' if PLANTED[label][1] == name else ''}"))
        lines += [f"{'':<22}{note}" for note in bars.notes(SIDES[1], SIDES[0], times)]
    return "\n".join(lines)


def _row(label: str, name: str, values: samples.Values, said: str) -> str:
    found = estimates.t_interval(values)
    change = f"{1e3 * found.mean:+.2f} [{1e3 * found.low:+.2f}, {1e3 * found.high:+.2f}]"
    return f"{label:<22}{name:<24}{change:<32}{said}".rstrip()


def body() -> int:
    """Measures, or reads, and prints."""
    chosen = VARIANTS.value or list(PLANTED)
    if RECORDS.value:
        found = list(record.read(pathlib.Path(RECORDS.value)).records)
    else:
        folder = pathlib.Path(OUTPUT_DIR.value or tempfile.mkdtemp(prefix="planted_bars_"))
        found = measured(folder, chosen)
    sys.stdout.write(table(squares(found)) + "\n")
    return 0


if __name__ == "__main__":
    command.launch(body)
