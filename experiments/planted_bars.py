"""Does each bar between jax and torch_xla move for its own cause, and for no other?

Question: plant a known cause in one place (jax's program, jax's XLA, torch_xla's host) and take the bars of the
same launch without it away. Which bars changed?

    python -m experiments.planted_bars --output_dir=experiments/results/planted_bars
    python -m experiments.planted_bars --records=experiments/results/planted_bars    (only the table)

Runtime on 2 cores: 6 to 10 minutes. Leave the machine alone meanwhile. Every variant has two steps and four replays of
its own, also on the side where nothing is planted, so that a change of a bar is measured twice and not a difference of
the same numbers. The host bar is printed by side as well: where nothing is planted there, its change is what two
measurements of one step differ by (torch_xla's: up to 2% of its step), and the host bar holds that. Printed: planted
cause, bar, change as a share of torch_xla's unplanted step of the same launch [95% interval over launches], verdict.
`moved`: the interval leaves 0 and the change is above the margin, 3% of the step; `left`: TOST at the margin says that
it is not.
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

SIDES = ("jax", "torch_xla")
MARGIN = 0.03
PACKAGE = "experiments.planted_jax"
BASE = "matched"
# Variant -> (where it is planted, what, the bar that it belongs to). Programs and XLA's flags are planted on the side
# with little host time. Flags need a process of their own, and host times of two processes differ by more than the
# margin. torch_xla traces what is planted in its program at every step, which would be host time; jax traces it once.
PLANTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "transposes": ("jax", {"transposes": 8}, bars.LOWERING),
    "no fusion emitters": ("jax", {planted.XLA_FLAGS: "--xla_cpu_use_fusion_emitters=false"}, bars.BUILD),
    "no fusion": ("jax", {planted.XLA_FLAGS: "--xla_disable_hlo_passes=fusion"}, bars.BUILD),
    "sleep": ("torch_xla", {planted.SLEEP_S: 0.002}, bars.HOST),
}


def members(name: str, chosen: list[str]) -> list[cells.Cell]:
    """Steps and replays of all variants."""
    workload = workloads.load_workload(name, "tiny")
    rest = (workload.name, "tiny", "float32", workload.batch_size, workload.optimizer.name)
    steps = []
    for label in (BASE, *chosen):
        where, what, _ = PLANTED.get(label, ("", {}, ""))
        for side in SIDES:
            changed = tuple(sorted(what.items())) if side == where else ()
            steps.append(cells.Cell(side, "compiled", *rest, label, changed))
    return steps + grid.replays(steps)


class Said(campaign.Progress):
    """What happens, on standard error."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def phase(self, text: str, done: float, total: float) -> None:
        self.say(text)


def measured(run: config.RunConfig, folder: pathlib.Path, chosen: list[str]) -> list[Mapping[str, Any]]:
    """Runs the launches."""
    os.environ[frameworks.EXTRA_VARIABLE] = f"{SIDES[0]}={PACKAGE}"
    everything = grid.Grid(tuple(members(run.workloads[0], chosen)), ())
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


def judged(change: estimates.Estimate) -> str:
    """What is said of a bar's change, a share of the step."""
    p_value = verdict.tost_p(change, MARGIN)
    if p_value <= plan.OVERALL_ALPHA:
        return f"left (TOST p {p_value:.2g})"
    if abs(change.mean) > MARGIN and not change.low <= 0 <= change.high:
        return "moved"
    return f"undecided (TOST p {p_value:.2g})"


def table(found: Mapping[str, bars.Square]) -> str:
    """What each planted cause changed."""
    base = found[BASE]
    step_ms = 1e3 * float(base.step_a.mean())
    said = f"torch_xla's step {step_ms:.2f} ms, margin {MARGIN:.0%} of it ({MARGIN * step_ms:.2f} ms)"
    lines = [f"{len(base.step_a)} launches; {said}"]
    lines.append(f"{'planted':<21}{'bar':<22}{'ms':>7}  {'% of the step [95%]':<24}verdict of the change")
    lines += [_row("nothing (the bars)", name, values, base.step_a) for name, values in base.terms().items()]
    for label, times in found.items():
        if label == BASE:
            continue
        total = times.step_a - base.step_a - (times.step_b - base.step_b)
        lines.append(_row(label, "T_torch_xla - T_jax", total, base.step_a))
        for name, values in (times.terms() | _hosts(times)).items():
            change = values - (base.terms() | _hosts(base))[name]
            own = " <- its own" if PLANTED[label][2] == name else ""
            verdict_of_it = judged(estimates.t_interval(change / base.step_a)) + own
            lines.append(_row(label, name, change, base.step_a, "" if name == bars.DISPATCH else verdict_of_it))
        lines += [f"{'':<21}{note}" for note in bars.notes(SIDES[1], SIDES[0], times)]
    return "\n".join(lines)


def _hosts(times: bars.Square) -> dict[str, samples.Values]:
    """What the host bar is the difference of."""
    return {f"  host of {SIDES[1]}": times.step_a - times.aa, f"  host of {SIDES[0]}": times.step_b - times.bb}


def _row(label: str, name: str, values: samples.Values, step_s: samples.Values, said: str = "") -> str:
    """Launches differ in speed, so that shares of the same launch's step vary less than milliseconds."""
    found = estimates.t_interval(100 * values / step_s)
    share = f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{label:<21}{name:<22}{1e3 * float(values.mean()):>+7.2f}  {share:<24}{said}".rstrip()


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_integer("launches", 5, "Launches.", lower_bound=2)
    flags.DEFINE_float("cell_s", 0.6, "Seconds inside timed blocks, per cell and launch.")
    flags.DEFINE_string("workload", "transformer", "Workload.")
    flags.DEFINE_multi_enum("variants", list(PLANTED), list(PLANTED), "Which causes to plant.")
    flags.DEFINE_string("records", None, "Only print the table of records that an earlier run left here.")
    flags.DEFINE_string("output_dir", None, "Folder for the records; default: a new one.")


def body() -> int:
    """Measures, or reads, and prints."""
    values = flags.FLAGS
    if values.records:
        found = list(record.read(pathlib.Path(values.records)).records)
    else:
        folder = pathlib.Path(values.output_dir or tempfile.mkdtemp(prefix="planted_bars_"))
        run = config.RunConfig(
            SIDES, ("compiled",), (values.workload,), launches=values.launches, cell_s=values.cell_s, replay=True
        )
        found = measured(run, folder, values.variants)
    sys.stdout.write(table(squares(found)) + "\n")
    return 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
