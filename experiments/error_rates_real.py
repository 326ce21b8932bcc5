"""How often is a verdict wrong on a real machine?

Question: run the whole procedure on two cells that are the same (A/A), and on two of which one does a known share more
work. How often does it say `difference`?

    python -m experiments.error_rates_real --study=one_process --runs=100 --output_dir=experiments/results/error_rates
    python -m experiments.error_rates_real --study=one_process --runs=40 --planted_every=20
    python -m experiments.error_rates_real --study=between --runs=20
    python -m experiments.error_rates_real --study=between --runs=20 --planted_every=10

Runtime on 2 cores: 15, 6, 15 and 15 minutes. Leave the machine alone meanwhile. Seeds are the number of the run; every
run is a row of the table, none is left out. The planted cell runs every n-th step twice, so that its work is exactly
1 + 1/n times that of the other. The cells of all runs are
also written as those of one run, a launch each, into FOLDER/STUDY-KIND: noise for `experiments.error_rates --records`.
Expected: A/A in one process at most 9 of 100 `difference`, planted 5% at least 36 of
40; between processes at most 4 of 20 (a smoke test: 20 runs cannot show more), planted 10% at least 18 of 20 where
launches differ by 4% at most.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import flags

from xlacompare import command, workloads
from xlacompare.core import cell as cells
from xlacompare.core import comparisons, config, plan, power, record, results, samples
from xlacompare.launch import campaign, grid, planted, pool, preparation, session

STUDY = flags.DEFINE_enum(
    "study", "one_process", ["one_process", "between"], "Inside one process, or between launches."
)
RUNS = flags.DEFINE_integer("runs", 100, "Runs.", lower_bound=1)
PLANTED_EVERY = flags.DEFINE_integer(
    "planted_every", 0, "Every n-th step of one side runs twice; 0: A/A.", lower_bound=0
)
FRAMEWORK = flags.DEFINE_string("framework", "jax", "Framework of both sides.")
WORKLOAD = flags.DEFINE_string("workload", "mlp", "Workload of both sides.")
RUN_S = flags.DEFINE_float("run_s", 5.0, "Seconds of timed blocks of a run in one process.")
LAUNCHES = flags.DEFINE_integer("launches", 6, "Launches a side of a run between processes.")
OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Folder for the table of runs and the records; default: a new one."
)


def sides(base: cells.Cell, every: int, between: bool) -> tuple[cells.Cell, cells.Cell]:
    """The cell, and its twin: equal, or with planted work."""
    changed: dict[str, Any] = {planted.REPEAT_EVERY: every} if every else {"twin": 1}
    if between:
        changed[planted.PROCESS] = "b"
    return base, dataclasses.replace(base, label="twin", changed=tuple(sorted(changed.items())))


def measure(
    run: config.RunConfig, pair: tuple[cells.Cell, cells.Cell], folder: pathlib.Path, launches: int
) -> results.Comparison:
    """One run of the procedure: launches, records, verdict."""
    empty = grid.Grid(pair, ())
    merged = record.Writer(folder.parent)
    made = campaign.Campaign(run, empty, folder, record.Writer(folder), campaign.Progress(), str(run.seed))
    made.inputs[pair[0].comparison] = preparation.prepare(pair[0], run, folder / "inputs")
    for launch in range(launches):
        with pool.Pool(run, folder, folder.parent / "cache", f"launch{launch}") as workers:
            one = session.Session(run, workers, pair, made.inputs[pair[0].comparison], launch)
            one.measure()
            for cell, outcome in one.outcomes.items():
                made.keep_cell(cell, launch, outcome, None)
            workers.close()
    made.writer.close()
    for made_record in made.records:
        merged.append({**made_record, "launch": run.seed * launches + made_record["launch"]})
    merged.close()
    found = samples.collect(made.records)
    return comparisons.compare(found[pair[1].id], found[pair[0].id], plan.fixed(launches))


def row(number: int, found: results.Comparison, seconds: float) -> dict[str, Any]:
    """One line of the table."""
    if found.verdict is None:
        return {"run": number, "verdict": "none", "problem": found.problem, "seconds": round(seconds, 1)}
    estimate = found.verdict.estimate
    return {
        "run": number,
        "verdict": found.verdict.kind,
        "ratio": round(math.exp(estimate.mean), 5),
        "low": round(math.exp(estimate.low), 5),
        "high": round(math.exp(estimate.high), 5),
        "unit_sd": round(estimate.unit_sd, 5),
        "n": estimate.n,
        "seconds": round(seconds, 1),
        "problem": "",
    }


def summary(rows: list[dict[str, Any]], truth: float, between: bool) -> str:
    """What the table says."""
    judged = [r for r in rows if r["verdict"] != "none"]
    differences = sum(r["verdict"] == "difference" for r in judged)
    covered = sum(r["low"] <= truth <= r["high"] for r in judged)
    text = (
        f"{len(rows)} runs, {len(judged)} with a verdict: {differences} difference, "
        f"{covered} intervals cover the truth {truth:g}, mean ratio {np.mean([r['ratio'] for r in judged]):.4f}"
    )
    if between:
        sd = float(np.median([r["unit_sd"] for r in judged]))
        needed = power.launches_needed(math.log(truth), sd, 0.05) if truth != 1 else None
        text += f"; launches differ by {sd / math.sqrt(2):.1%} a side"
        text += f"; {needed} launches find {truth - 1:.0%} with 80% power" if needed else ""
    return text


def body() -> int:
    """Runs the study."""
    between, every = STUDY.value == "between", PLANTED_EVERY.value
    workload = workloads.load_workload(WORKLOAD.value, "tiny")
    base = cells.Cell(
        FRAMEWORK.value, "compiled", workload.name, "tiny", "float32", workload.batch_size, workload.optimizer.name
    )
    pair = sides(base, every, between)
    folder = pathlib.Path(OUTPUT_DIR.value or tempfile.mkdtemp(prefix="error_rates_"))
    name = f"{STUDY.value}-{'planted' if every else 'aa'}"
    target, rows = folder / f"{name}.csv", []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(RUNS.value):
        begin = time.perf_counter()
        cell_s = RUN_S.value / 2 if not between else 1.0
        run = config.RunConfig((FRAMEWORK.value,), cell_s=cell_s, seed=number, launches=1)
        found = measure(run, pair, folder / name / f"run{number:03d}", LAUNCHES.value if between else 1)
        rows.append(row(number, found, time.perf_counter() - begin))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        with open(target, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0] if "ratio" in rows[0] else rows[-1]), restval="")
            writer.writeheader()
            writer.writerows(rows)
    sys.stdout.write(f"{name}: {summary(rows, 1 + 1 / every if every else 1.0, between)}\n")
    return 0


if __name__ == "__main__":
    command.launch(body)
