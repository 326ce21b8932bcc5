"""How often is a verdict of xlacompare wrong? Simulation with noise resampled from real records.

Question: of A/A comparisons, how many are called different; how often does the interval cover; is a planted 5% found?
Command:  python experiments/error_rates.py --records=runs/<run>/records.jsonl --output_dir=runs/error_rates
          python experiments/error_rates.py --synthetic          (no records: AR(1) noise with spikes)
Runtime:  under a minute on one core.
Expected: false `difference` 3.5-6.5% and coverage 93-97% in both procedures. Below 3.5% where the launches differ by less
          than 3%: `no difference larger than 5%` then ends most A/A plans at the first look, before the later looks had
          their chance of a false difference. Coverage under a planted effect is up to 98%: an interval that must hold at
          every look is wider than one look needs.

What is simulated: the procedures are the product's own (`pairs`, `statistics`, `plan`, `verdict`), the noise is this.
Noise of blocks: the blocks of two cells of one framework in one launch, each divided by its mean, in the pairs in which
they were measured (one cell alone: its consecutive blocks, the order of each two pairs by a coin). Every simulated run
draws a series and joins circular moving blocks of it, `BLOCK_LENGTH` pairs long, which keeps the correlation.
Noise of launches: logarithms of a cell's mean block in each launch, centred, times sqrt(k / (k - 1)) for k launches; drawn
by the smoothed bootstrap that keeps the variance (Silverman and Young 1987), as k is small: (e + h s z) / sqrt(1 + h^2), z
normal, s their standard deviation, h = 1.06 k^(-1/5). These means already hold the noise of their blocks; the blocks of a
simulated launch are drawn on top, so that the simulated noise is, if anything, larger than the real one.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import itertools
import json
import math
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags
from numpy.typing import NDArray

from xlacompare.core import pairs, plan, record, schedule, statistics, verdict

# Fixed before the first run and never changed since.
SEED_IN_PROCESS, SEED_BETWEEN, SEED_SYNTHETIC = 20250101, 20250102, 20250103
RUNS = 2000
PLANTED = 1.05
PAIRS_IN_PROCESS = 80  # 5 s of pairs of 30 ms blocks
PAIRS_PER_LAUNCH = 24  # 1.5 s
BLOCK_LENGTH = 10  # pairs
MIN_PAIRS, MIN_LAUNCHES = 12, 3
FALSE_SHARE, COVERAGE = (0.035, 0.065), (0.93, 0.97)

_RECORDS = flags.DEFINE_multi_string("records", [], "Record files, or run folders, to take the noise from.")
_SYNTHETIC = flags.DEFINE_bool("synthetic", False, "Synthetic noise of several kinds instead of records.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "", "Where runs.csv (one row per run) and summary.json go.")

Values = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of a population.

    Attributes:
      name: For the report.
      series: Pairs of block times in the order of time, each side with mean 1: [pairs, 2].
      launches: Per cell, centred logarithms of the launch means, [launches].
      shuffled: Whether sides must be dealt by a coin (both columns are one cell).
    """

    name: str
    series: list[Values]
    launches: list[Values]
    shuffled: bool = False


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


def load(paths: Sequence[str]) -> Noise:
    """Noise of the `cell` records of some files; main blocks without a compile, disturbed ones included."""
    found: dict[tuple[str, str], dict[int, dict[str, list[dict[str, Any]]]]] = {}
    for number, path in enumerate(paths):
        for entry in record.read(pathlib.Path(path)).records:
            if entry.get("kind") == "cell" and entry.get("status") == "ok" and entry.get("blocks"):
                cell = entry["cell"]
                key = (cell["framework"], "/".join(str(cell[k]) for k in ("workload", "preset", "dtype", "label")))
                launch = found.setdefault(key, {}).setdefault(number * 100_000 + entry["launch"], {})
                launch[cell["compiler"]] = blocks_of(entry["blocks"])
    noise = Noise("records", [], [])
    for launches in found.values():
        for arms in launches.values():
            noise.series.extend(_series(list(arms.values())))
        for arm in {name for arms in launches.values() for name in arms}:
            means = [np.mean([_step(b) for b in arms[arm]]) for arms in launches.values() if arms.get(arm)]
            if len(means) >= MIN_LAUNCHES:
                noise.launches.append(centred(np.log(means)))
    if not noise.series or not noise.launches:
        raise app.UsageError(
            f"these records hold {len(noise.series)} series of {MIN_PAIRS} pairs and {len(noise.launches)} cells of "
            f"{MIN_LAUNCHES} launches; at least one of each is needed: --launches=8 of xlacompare.run, say"
        )
    return noise


def blocks_of(blocks: Any) -> list[dict[str, Any]]:
    """Main blocks in the order of time, from a list of blocks or from a mapping of columns."""
    if isinstance(blocks, dict):
        blocks = [dict(zip(blocks, row)) for row in zip(*blocks.values())]
    main = [b for b in blocks if b.get("series", "main") == "main" and b.get("mode", "block") == "block"]
    return [b for b in main if not b.get("compiles")]


def _step(block: dict[str, Any]) -> float:
    return float(block["total_s"]) / block["n"]


def _series(arms: list[list[dict[str, Any]]]) -> Iterator[Values]:
    """Pairs of neighbouring blocks of each two arms of one launch; of an only arm its consecutive blocks."""
    if len(arms) == 1:
        steps = np.array([_step(b) for b in arms[0]])
        arms_steps = [(steps[0 : len(steps) // 2 * 2 : 2], steps[1::2])]
    else:
        arms_steps = [_matched(a, b) for a, b in itertools.combinations(arms, 2)]
    for a, b in arms_steps:
        if len(a) >= MIN_PAIRS:
            yield np.stack([a / a.mean(), b / b.mean()], axis=1)


def _matched(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> tuple[Values, Values]:
    """Pairs by visit and order within it: A B B A gives (A B) and (A B)."""
    sides = []
    for blocks in (a, b):
        visits = collections.defaultdict(list)
        for number, block in enumerate(blocks):
            visits[block.get("visit", number)].append(_step(block))
        sides.append(visits)
    rows = [pair for visit in sides[0] if visit in sides[1] for pair in zip(sides[0][visit], sides[1][visit])]
    values = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def centred(logs: Values) -> Values:
    """Residuals about the mean, scaled to the variance of what they were drawn from."""
    return np.asarray((logs - logs.mean()) * math.sqrt(logs.size / (logs.size - 1)))


def synthetic() -> Iterator[Noise]:
    """Noise with known correlation: AR(1) blocks per arm, a part shared by the pair, 2% spikes; launch sd 2-7%."""
    for number, (rho, launch_sd) in enumerate([(0.0, 0.02), (0.0, 0.04), (0.3, 0.04), (0.5, 0.04), (0.5, 0.07)]):
        rng = np.random.default_rng([SEED_SYNTHETIC, number])
        series = []
        for _ in range(30):
            shocks = rng.standard_normal((400, 2)) + (rng.random((400, 2)) < 0.02) * rng.exponential(8, (400, 2))
            walk = np.zeros_like(shocks)
            for t in range(1, len(walk)):
                walk[t] = rho * walk[t - 1] + shocks[t]
            x = 1 + 0.02 * (walk - walk.mean(axis=0))
            series.append(x / x.mean(axis=0))
        launches = [centred(rng.normal(0, launch_sd, 12)) for _ in range(8)]
        yield Noise(f"rho {rho}, launches {launch_sd:.0%}", series, launches)


def draw_blocks(noise: Noise, n: int, count: int, rng: np.random.Generator) -> Values:
    """Block noise by the circular moving-block bootstrap, each run from one series: [count, n, 2]."""
    drawn = np.empty((count, n, 2))
    for run, which in enumerate(rng.integers(len(noise.series), size=count)):
        series = noise.series[which]
        starts = rng.integers(len(series), size=-(-n // BLOCK_LENGTH))
        index = (starts[:, None] + np.arange(BLOCK_LENGTH)).ravel()[:n] % len(series)
        drawn[run] = series[index]
        if noise.shuffled:
            flipped = [first for first, _ in schedule.abba(n, rng)]
            drawn[run] = np.where(np.array(flipped)[:, None] == 1, drawn[run][:, ::-1], drawn[run])
    return drawn


def draw_launches(noise: Noise, n: int, count: int, rng: np.random.Generator) -> Values:
    """Launch effects (logarithms), each run from one cell, by the smoothed bootstrap: [count, n, 2]."""
    drawn = np.empty((count, n, 2))
    for run, which in enumerate(rng.integers(len(noise.launches), size=count)):
        residuals = noise.launches[which]
        h = 1.06 * residuals.size**-0.2
        smooth = h * residuals.std() * rng.standard_normal((n, 2))
        drawn[run] = (rng.choice(residuals, (n, 2)) + smooth) / math.sqrt(1 + h * h)
    return drawn


def in_process(noise: Noise, planted: float, rng: np.random.Generator) -> Iterator[Run]:
    """One process of fixed duration: `block_pair_interval`, one look."""
    blocks = draw_blocks(noise, PAIRS_IN_PROCESS, RUNS, rng)
    fixed = plan.in_process(PAIRS_IN_PROCESS)
    for run in range(RUNS):
        found = verdict.judge(pairs.block_pair_interval(planted * blocks[run, :, 0], blocks[run, :, 1]), fixed)
        yield _row("in_process", noise, planted, fixed.margin, run, found, "last look")


def between(noise: Noise, planted: float, margin: float, rng: np.random.Generator) -> Iterator[Run]:
    """Paired launches: the whole sequential plan with its stopping."""
    steps = plan.sequential(margin=margin)
    effects = draw_launches(noise, steps.last, RUNS, rng)
    blocks = draw_blocks(noise, PAIRS_PER_LAUNCH, RUNS * steps.last, rng).mean(axis=1).reshape(effects.shape)
    times = np.exp(effects) * blocks * np.array([planted, 1.0])
    for run in range(RUNS):
        for n in range(1, steps.last + 1):
            if not steps.is_look(n):
                continue
            estimate = statistics.paired_t_log(times[run, :n, 0], times[run, :n, 1])
            found = verdict.judge(estimate, steps)
            decision = plan.should_stop(steps, n, found.estimate, found.decided)
            if decision.stop:
                yield _row("between_launches", noise, planted, margin, run, found, decision.reason)
                break


def _row(
    procedure: str, noise: Noise, planted: float, margin: float, run: int, found: verdict.Verdict, stop: str
) -> Run:
    ratio, low, high = found.estimate.ratio()
    covered = low <= planted <= high
    return Run(
        procedure, noise.name, planted, margin, run, found.kind, ratio, low, high, covered, found.estimate.n, stop
    )


def simulate(noise: Noise) -> list[Run]:
    """All runs of one noise; each part has a stream of its own, so that none moves when another changes."""
    rows: list[Run] = []
    for number, planted in enumerate((1.0, PLANTED)):
        rows += in_process(noise, planted, np.random.default_rng([SEED_IN_PROCESS, number]))
        for margin in (plan.MARGIN_BETWEEN, 0.0):
            rows += between(noise, planted, margin, np.random.default_rng([SEED_BETWEEN, number]))
    return rows


def summarise(rows: Sequence[Run]) -> list[dict[str, Any]]:
    """Shares per procedure, noise, margin and planted effect, with the standard error of the first."""
    keyed: dict[tuple[Any, ...], list[Run]] = {}
    for row in rows:
        keyed.setdefault((row.procedure, row.noise, row.margin, row.planted), []).append(row)
    summary = []
    for (procedure, name, margin, planted), members in keyed.items():
        share = {kind: sum(r.kind == kind for r in members) / len(members) for kind in ("difference", "no_difference")}
        summary.append(
            {
                "procedure": procedure,
                "noise": name,
                "margin": margin,
                "planted": planted,
                "runs": len(members),
                **share,
                "coverage": sum(r.covered for r in members) / len(members),
                "mean_n": sum(r.n for r in members) / len(members),
            }
        )
    return summary


def _verdict_line(row: dict[str, Any]) -> str:
    null = row["planted"] == 1.0
    good = COVERAGE[0] <= row["coverage"] <= COVERAGE[1]
    if null:
        good = good and FALSE_SHARE[0] <= row["difference"] <= FALSE_SHARE[1]
    label = "false difference" if null else "found"
    return (
        f"{row['procedure']:16} margin {row['margin']:<4} planted {row['planted'] - 1:.0%}  {row['noise']:24} "
        f"{label:16} {row['difference']:6.1%}  no_difference {row['no_difference']:6.1%}  coverage {row['coverage']:.1%}  "
        f"n {row['mean_n']:5.1f}  {'within' if good else 'outside'} targets"
    )


def write(folder: pathlib.Path, rows: Sequence[Run], summary: Sequence[dict[str, Any]]) -> None:
    """Writes every run and the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "runs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Run))
        writer.writerows(dataclasses.astuple(row) for row in rows)
    (folder / "summary.json").write_text(json.dumps(list(summary), indent=1) + "\n")


def describe(noise: Noise) -> str:
    """What the noise is like, in one line."""
    spread = sorted(float(x.std()) for x in noise.launches)
    correlation = sorted(pairs.autocorrelation(s[:, 0] - s[:, 1]) for s in noise.series)
    return (
        f"{noise.name}: {len(noise.series)} series of {min(map(len, noise.series))}-{max(map(len, noise.series))} pairs, "
        f"lag-1 correlation {correlation[0]:.2f} to {correlation[-1]:.2f}; {len(noise.launches)} cells, standard deviation "
        f"of launches {spread[0]:.1%} to {spread[-1]:.1%}"
    )


def main(argv: Sequence[str]) -> None:
    """Simulates, prints the shares, writes every run."""
    del argv
    if _SYNTHETIC.value == bool(_RECORDS.value):
        raise app.UsageError("give --records or --synthetic")
    start = time.perf_counter()
    rows: list[Run] = []
    for noise in synthetic() if _SYNTHETIC.value else [load(_RECORDS.value)]:
        print(describe(noise))
        rows += simulate(noise)
    summary = summarise(rows)
    for row in summary:
        print(_verdict_line(row))
    if _OUTPUT_DIR.value:
        write(pathlib.Path(_OUTPUT_DIR.value), rows, summary)
    print(f"{len(rows)} runs in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    app.run(main)
