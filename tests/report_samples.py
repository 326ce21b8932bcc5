"""Synthetic records of runs, shaped like those of `launch.campaign`, for the tests of analysis and report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import analysis, cell, config, plan, results

Record = dict[str, Any]
FRAMEWORKS = ("jax", "torch_xla", "torch")
ARMS = ("eager", "compiled")
WORKLOADS = ("mlp", "convnet", "transformer")
# Milliseconds a step; of the order of what a 2-core machine shows for `tiny`.
STEP_MS = {
    ("jax", "eager"): 9.1, ("jax", "compiled"): 1.9,
    ("torch_xla", "eager"): 31.0, ("torch_xla", "compiled"): 2.9,
    ("torch", "eager"): 2.6, ("torch", "compiled"): 1.95,
    ("torch", "captured"): 2.5, ("jax", "nofusion"): 4.4, ("jax", "opt0"): 3.3, ("torch_xla", "nofusion"): 5.5,
}  # fmt: skip
FACTOR = {"mlp": 1.0, "convnet": 3.4, "transformer": 6.2}
BATCH = {"mlp": 128, "convnet": 64, "transformer": 8}
OPTIMIZER = {"mlp": "sgd", "convnet": "sgd", "transformer": "adamw"}
# Share of a block that dispatch takes, and seconds of the cold build.
DISPATCH = {"jax": 0.12, "torch_xla": 0.71, "torch": 0.99}
BUILD_S = {"eager": 0.4, "captured": 3.1, "compiled": 1.3, "nofusion": 1.1, "opt0": 0.8}
MEANING = "peak resident memory while steps ran, minus resident memory just before the cell was built"
MACHINE = {"host": "box", "cpu": "Intel(R) Xeon(R) Processor", "cores_online": 2, "cores_available": [0, 1]}
TIMES = {"inputs and reference": 3.2, "gate in float64": 21.4, "launches": 96.5, "total": 122.0}
FACTS = {"flops_per_step": 2.4e8, "bytes_per_step": 9_000_000, "parameter_count": 301_066, "synthetic": False}


def make_cell(framework: str, compiler: str = "compiled", workload: str = "mlp", **changes: Any) -> cell.Cell:
    """A cell of preset tiny."""
    made = cell.Cell(framework, compiler, workload, "tiny", "float32", BATCH[workload], OPTIMIZER[workload])
    return dataclasses.replace(made, **changes)


def columns(
    step_s: Sequence[float], dispatch: float = 0.2, visit: Sequence[int] | None = None, **changes: Any
) -> dict[str, list[Any]]:
    """Columns of main blocks with these seconds a step, two a visit, ten steps each; `changes` replaces columns."""
    k = len(step_s)
    made = {
        "mode": ["block"] * k,
        "n": [10] * k,
        "total_s": [10 * s for s in step_s],
        "dispatch_s": [10 * s * dispatch for s in step_s],
        "host_s": [10 * s * dispatch for s in step_s],
        "compiles": [0] * k,
        "start_s": [float(i) for i in range(k)],
        "visit": list(visit) if visit is not None else [i // 2 for i in range(k)],
        "position": [0] * k,
        "series": ["main"] * k,
        "disturbed": [False] * k,
    }
    return made | changes


def with_stepwise(blocks: dict[str, list[Any]], extra_s: float, visits: int = 3) -> dict[str, list[Any]]:
    """The same with visits of block, stepwise, stepwise, block, fenced steps being longer by `extra_s`."""
    base = blocks["total_s"][0] / 10
    per_step = [base, base + extra_s, base + extra_s, base] * visits
    further = columns(per_step, visit=[v for v in range(visits) for _ in range(4)])
    further["mode"] = ["block", "stepwise", "stepwise", "block"] * visits
    further["series"] = ["stepwise"] * len(per_step)
    return {key: blocks[key] + further[key] for key in blocks}


def cell_record(
    of: cell.Cell, launch: int | None, blocks: Mapping[str, Any] | None = None, status: str = "ok", **changes: Any
) -> Record:
    """One `cell` record, as `launch.campaign` writes it."""
    made: Record = {
        "schema": 1,
        "kind": "cell",
        "comparison": of.comparison,
        "launch": launch,
        "cell": of.to_dict(),
        "status": status,
        "reason": "",
        "compile": {"rebuild": None},
        "fence": {"passed": True} if launch == 0 else None,
        "memory": {"peak_bytes": 64 << 20, "meaning": MEANING},
        "start": {"pid": 1000 * (launch or 0) + hash_of(of.framework), "import_s": 2.0, "start_s": 0.5},
        "wall": {"wall_s": 10.0, "build_s": 3.0, "measure_s": 5.0, "timed_s": 4.0} if launch is not None else None,
        "facts": FACTS,
        "blocks": dict(blocks or {}),
        "environment": {
            "checked": {"machine": "box", "platform": "cpu", "num_cores": 1, "threads": 1},
            "framework": {"asynchronous": of.framework != "torch"},
        },
    }
    return made | changes


def hash_of(name: str) -> int:
    """The same number for a name in every process (`hash` is not)."""
    return sum(map(ord, name))


def compile_of(of: cell.Cell, launch: int) -> Record:
    """Compile cost: cold in launch 0, from disk later for jax only."""
    cold = BUILD_S[of.compiler] * FACTOR[of.workload] ** 0.5
    hit = launch > 0 and of.framework == "jax"
    made: Record = {"trace_s": 0.2 * cold, "lower_s": 0.1 * cold, "compile_s": 0.7 * cold, "note": ""}
    if of.framework == "torch_xla":
        made["note"] = (
            "torch_xla 2.9.0 writes the cache but cannot read it back on CPU (PersistentCacheDeserializeFailure)"
        )
    made |= {"build_s": cold * (0.25 if hit else 1.0), "first_step_s": 0.02}
    made |= {"disk_cache_hits": 3 if hit else 0, "disk_cache_misses": 0 if hit else 3}
    return made | {"rebuild": {"build_s": 0.6 * cold, "first_step_s": 0.02} if launch == 0 else None}


def timed_record(of: cell.Cell, launch: int, rng: np.random.Generator, noise: float, blocks: int = 24) -> Record:
    """A record with samples: launches differ by `noise`, blocks by 1%."""
    base = STEP_MS[of.framework, of.compiler] * 1e-3 * FACTOR[of.workload]
    base *= 0.93 if of.label != "matched" else 1.0
    base *= float(np.exp(rng.normal(0, noise)))
    step_s = [float(base * np.exp(rng.normal(0, 0.01))) for _ in range(blocks)]
    made = with_stepwise(columns(step_s, DISPATCH[of.framework]), 0.05 * base)
    return cell_record(of, launch, made, compile=compile_of(of, launch))


def run_records(
    frameworks: Iterable[str] = FRAMEWORKS,
    compilers: Iterable[str] = ARMS,
    workloads: Iterable[str] = WORKLOADS,
    launches: int = 3,
    noise: float = 0.015,
    seed: int = 7,
    ending: str | None = "complete",
    failed: Mapping[tuple[str, str, str], tuple[str, str]] | None = None,
    labels: Sequence[str] = ("matched",),
    **changes: Any,
) -> list[Record]:
    """Records of a whole run.

    Args:
      frameworks: Frameworks.
      compilers: Arms.
      workloads: Workloads.
      launches: Launches.
      noise: Standard deviation from launch to launch.
      seed: Of the noise.
      ending: Of the `end` record; None for no such record.
      failed: (framework, arm, workload) -> (status, reason) of cells without a time.
      labels: Settings of the cells.
      **changes: Fields of the configuration.
    """
    rng = np.random.default_rng(seed)
    chosen = config.RunConfig(tuple(frameworks), tuple(compilers), tuple(workloads), launches=launches, **changes)
    made: list[Record] = [{"kind": "run", "config": chosen.to_dict(), "machine": MACHINE}]
    known = failed or {}
    grid = [
        make_cell(f, c, w, preset=chosen.preset, label=name, changed=() if name == "matched" else (("threads", "all"),))
        for w in chosen.workloads for f in chosen.frameworks for c in chosen.compilers for name in labels
    ]  # fmt: skip
    for of in grid:
        if (of.framework, of.compiler, of.workload) in known:
            status, reason = known[of.framework, of.compiler, of.workload]
            made.append(cell_record(of, None, status=status, reason=reason))
    live = [of for of in grid if (of.framework, of.compiler, of.workload) not in known]
    for launch in range(launches):
        made += [timed_record(of, launch, rng, noise) for of in live]
        if launch == 0:
            of_run = plan.fixed(launches, margin=chosen.margin)
            made.append({"kind": "plan", "plan": of_run.to_dict(), "mde": analysis.detectable(of_run)})
    if ending is not None:
        made.append({"kind": "end", "ending": ending, "times": TIMES})
    return made


def summary(**options: Any) -> results.Summary:
    """Analysis of `run_records`."""
    return analysis.summarise(run_records(**options))


GATE = "gate failed at activation block0.mlp: relative error 3.1e-04 > 1.0e-10; likely: GELU tanh instead of erf"
FAILED = {
    ("torch", "compiled", "transformer"): ("mismatch", GATE),
    ("jax", "captured", "mlp"): ("unsupported", "jax has no compiler arm 'captured'"),
    ("torch_xla", "captured", "mlp"): (
        "crash",
        "the worker was ended by SIGSEGV; log: runs/x/logs/launch0-torch_xla-2.log",
    ),
}
RUNS = {
    "three": {},
    "one": {"frameworks": ("jax",)},
    "single": {"frameworks": ("torch",), "workloads": ("mlp",), "launches": 1},
    "compiled": {"compilers": ("compiled",)},
    "expert": {"frameworks": ("jax",), "compilers": ("eager", "compiled", "nofusion", "opt0")},
    "noisy": {"noise": 0.3, "launches": 2, "ending": "interrupted"},
    "settings": {"labels": ("matched", "shipped", "shipped:threads"), "settings": "both", "itemise": True},
    "shipped": {"labels": ("shipped",), "settings": "shipped"},
    "failed": {
        "compilers": ("eager", "captured", "compiled"),
        "workloads": ("mlp", "transformer"),
        "failed": FAILED | {("torch_xla", "captured", "transformer"): ("unsupported", "no such arm"),
                            ("jax", "captured", "transformer"): ("unsupported", "jax has no compiler arm 'captured'")},
    },
    "nothing": {"frameworks": ("jax",), "compilers": ("compiled",), "workloads": ("mlp",), "ending": None,
                "failed": {("jax", "compiled", "mlp"): ("hang", "no answer to 'build' within 300 s")}},
}  # fmt: skip
