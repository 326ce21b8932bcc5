"""How often is a verdict wrong? Simulation: the product's own procedures on noise resampled from records (`noise`).

Question: of A/A comparisons, how many are called different; how often does the interval cover; is a planted 5% found?

    python -m experiments.error_rates --records=FOLDER_OF_A_RUN --output_dir=experiments/results/error_rates
    python -m experiments.error_rates --synthetic          (no records needed: AR(1) blocks with spikes)

Runtime: 15 s for records, 60 s for the five synthetic noises, one core.
Procedures, 2000 A/A and 2000 planted runs of each:
  in_process        80 block pairs (5 s), one look
  unlike_arms       the same, but each side keeps the noise of its own cell (coverage of real arm pairs)
  between_launches  paired launches with the whole sequential plan and its stopping; margin 5%, and without a margin
Expected: false `difference` 3.5-6.5%, coverage 93-97%, with these exceptions. Where launches differ by less than 3%,
`no difference larger than 5%` ends most A/A plans at the first look, and the later looks never have their share of
false differences (2-3% in all). Under a planted effect the interval between launches covers in 97-98%: it is made to
hold at every look; the pooled coverage is that of both. Unlike arms with bursts of foreign load in short series: up to
8%.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import noise, tables
from xlacompare import command
from xlacompare.core import errors, estimates, pairs, plan, verdict

# Fixed before the first run and never changed since.
SEED_IN_PROCESS, SEED_BETWEEN = 20250101, 20250102
RUNS = 2000
EFFECTS = (1.0, 1.05)
PAIRS_IN_PROCESS = 80  # 5 s of pairs of 30 ms blocks
PAIRS_PER_LAUNCH = 24  # 1.5 s
FALSE_SHARE, COVERAGE = (0.035, 0.065), (0.93, 0.97)

RECORDS = flags.DEFINE_multi_string("records", [], "Record files, or folders of runs, to take the noise from.")
SYNTHETIC = flags.DEFINE_bool("synthetic", False, "Synthetic noise of several kinds instead of records.")
OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder for runs.csv (one row per run) and summary.json.")


@dataclasses.dataclass(frozen=True)
class Run:
    """One simulated comparison: a row of runs.csv. Ratios are time(a) / time(b)."""

    procedure: str
    noise: str
    planted: float
    margin: float
    run: int
    kind: str
    ratio: float
    low: float
    high: float
    covered: bool
    n: int
    stop: str


def in_process(source: noise.Noise, planted: float, dealt: bool, rng: np.random.Generator) -> Iterator[Run]:
    """One process of fixed duration: an interval over block pairs, one look."""
    blocks = noise.draw_blocks(source, PAIRS_IN_PROCESS, RUNS, rng, dealt)
    chosen = plan.in_process(PAIRS_IN_PROCESS)
    for run in range(RUNS):
        found = verdict.judge(pairs.block_pair_interval(planted * blocks[run, :, 0], blocks[run, :, 1]), chosen)
        yield _row("in_process" if dealt else "unlike_arms", source, planted, chosen.margin, run, found, "last look")


def between(source: noise.Noise, planted: float, margin: float, rng: np.random.Generator) -> Iterator[Run]:
    """Paired launches: the whole sequential plan with its stopping."""
    chosen = plan.sequential(margin=margin)
    effects = noise.draw_launches(source, chosen.last, RUNS, rng)
    blocks = noise.draw_blocks(source, PAIRS_PER_LAUNCH, RUNS * chosen.last, rng)
    times = np.exp(effects) * blocks.mean(axis=1).reshape(effects.shape) * np.array([planted, 1.0])
    for run in range(RUNS):
        yield _row("between_launches", source, planted, margin, run, *_sequence(times[run], chosen))


def _sequence(times: noise.Values, chosen: plan.Plan) -> tuple[verdict.Verdict, str]:
    """Launch after launch until the plan stops: times are [launches, 2]."""
    n: int | None = chosen.next_look(0)
    while n is not None:
        found = verdict.judge(estimates.paired_t_log(times[:n, 0], times[:n, 1]), chosen)
        decision = plan.should_stop(chosen, n, found.estimate, found.decided)
        if decision.stop:
            return found, decision.reason
        n = chosen.next_look(n)
    raise AssertionError("a plan stops at its last look")


def _row(
    procedure: str, source: noise.Noise, planted: float, margin: float, run: int, found: verdict.Verdict, stop: str
) -> Run:
    ratio, low, high = found.estimate.ratio()
    covered = low <= planted <= high
    n = found.estimate.n
    return Run(procedure, source.name, planted, margin, run, found.kind, ratio, low, high, covered, n, stop)


def simulate(source: noise.Noise) -> list[Run]:
    """All runs of one noise. Each part has a stream of its own, so that none moves when another changes."""
    rows: list[Run] = []
    for number, planted in enumerate(EFFECTS):
        for dealt in (True, False):
            rows += in_process(source, planted, dealt, np.random.default_rng([SEED_IN_PROCESS, number]))
        for margin in (plan.MARGIN_BETWEEN, 0.0):
            rows += between(source, planted, margin, np.random.default_rng([SEED_BETWEEN, number]))
    return rows


def summarise(rows: Sequence[Run]) -> list[dict[str, Any]]:
    """Shares of the A/A and the planted runs of each procedure, noise and margin."""
    keyed: dict[tuple[str, str, float], list[Run]] = {}
    for row in rows:
        keyed.setdefault((row.noise, row.procedure, row.margin), []).append(row)
    return [
        {
            "noise": source,
            "procedure": procedure,
            "margin": margin,
            "false_difference": _share(members, 0, "difference"),
            "no_difference": _share(members, 0, "no_difference"),
            "found": _share(members, 1, "difference"),
            "false_no_difference": _share(members, 1, "no_difference"),
            "coverage": [_share(members, which, "covered") for which in (0, 1)],
            "pooled_coverage": float(np.mean([r.covered for r in members])),
            "mean_n": [float(np.mean([r.n for r in members if r.planted == planted])) for planted in EFFECTS],
        }
        for (source, procedure, margin), members in keyed.items()
    ]


def _share(rows: Sequence[Run], effect: int, what: str) -> float:
    chosen = [r for r in rows if r.planted == EFFECTS[effect]]
    return float(np.mean([r.covered if what == "covered" else r.kind == what for r in chosen]))


def line(row: dict[str, Any]) -> str:
    """A row of the summary as text, and whether it meets the targets."""
    null, planted = row["coverage"]
    good = FALSE_SHARE[0] <= row["false_difference"] <= FALSE_SHARE[1]
    good = good and COVERAGE[0] <= row["pooled_coverage"] <= COVERAGE[1]
    return (
        f"{row['procedure']:16} margin {row['margin']:4.0%}: false difference {row['false_difference']:.1%}, "
        f"no_difference {row['no_difference']:.1%}; planted 5% found {row['found']:.1%}; coverage A/A {null:.1%}, "
        f"planted {planted:.1%}, pooled {row['pooled_coverage']:.1%}; "
        f"n {row['mean_n'][0]:.1f} and {row['mean_n'][1]:.1f}; {'in' if good else 'OUT OF'} target\n"
    )


def write(folder: pathlib.Path, rows: Sequence[Run], summary: Sequence[dict[str, Any]]) -> None:
    """Writes every run and the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder / "runs.csv", Run, rows, digits=5)
    (folder / "summary.json").write_text(json.dumps(list(summary), indent=1) + "\n", encoding="utf-8")


def body() -> int:
    """Simulates, prints the shares, writes every run."""
    if SYNTHETIC.value == bool(RECORDS.value):
        raise errors.BadInputError("give either --records or --synthetic")
    start = time.perf_counter()
    rows: list[Run] = []
    for source in noise.synthetic() if SYNTHETIC.value else [noise.load(RECORDS.value)]:
        made = simulate(source)
        sys.stdout.write(source.describe() + "\n")
        sys.stdout.writelines(line(row) for row in summarise(made))
        sys.stdout.flush()
        rows += made
    if OUTPUT_DIR.value:
        write(pathlib.Path(OUTPUT_DIR.value), rows, summarise(rows))
    sys.stdout.write(f"{len(rows)} runs in {time.perf_counter() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    command.launch(body)
