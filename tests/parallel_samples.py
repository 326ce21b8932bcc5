"""Synthetic records of parallel runs with known truths, shaped like those that the analysis reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.effect_truth import Truth
from xlacompare.core import cell, effects, parallel_analysis, parallel_results, plan

Record = dict[str, Any]
MACHINE = {"host": "box", "cpu": "Intel(R) Xeon(R) Processor", "cores_online": 4, "cores_available": [0, 1, 2, 3]}
CHECKED = {"machine": "box", "platform": "cpu", "num_cores": 4, "source_revision": "0.1+abc", "threads": 1}
ARMS = ("real", "elided", "token", "serial", "alone", "alone_token")
# A slower framework whose communication is exposed, a faster one that hides most of it.
TRUTHS = {
    ("jax", "compiled"): Truth(),
    ("jax", "eager"): Truth(compute=34e-3, latency=1.7e-3, bytes=6e-3, wire_latency=2.5e-3, wire_bytes=8e-3),
    ("torch", "compiled"): Truth(compute=23e-3, waiting=1.5e-3, latency=0.8e-3, bytes=1.2e-3, wire_latency=1.2e-3),
    ("torch", "eager"): Truth(compute=25e-3, waiting=1.5e-3, latency=1e-3, bytes=1.2e-3, wire_latency=1.2e-3),
}
VISITS, RANKS, STEPS = 12, 2, 4


def make_cell(framework: str = "jax", compiler: str = "compiled", communication: str = "real", **changes: Any):
    """A cell of the `dp` transformer over gloo on two ranks."""
    made = cell.Cell(
        framework, compiler, "transformer", "small", "float32", 16, "adamw",
        communication=communication, strategy="dp", mesh=(RANKS,), transport="gloo", mode="process",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def op(opcode: str = "all-reduce", size: int = 4 << 20, **changes: Any) -> dict[str, Any]:
    """One operation of a census."""
    made = {"opcode": opcode, "dtype": "f32", "operand_bytes": size, "result_bytes": size, "operands": 12,
            "groups": [[0, 1]], "asynchronous": False, "promoted_from": "", "source": ""}  # fmt: skip
    return made | changes


def columns(rank_s: np.ndarray, per_visit: int = 2, **changes: Any) -> dict[str, list[Any]]:
    """Columns of blocks whose ranks took these seconds a step, [ranks, blocks]."""
    total, count = rank_s.max(axis=0) * STEPS, rank_s.shape[1]
    made: dict[str, list[Any]] = {
        "visit": [i // per_visit for i in range(count)],
        "position": [i % per_visit for i in range(count)],
        "mode": ["block"] * count,
        "series": ["main"] * count,
        "n": [STEPS] * count,
        "start_s": [float(i) for i in range(count)],
        "total_s": total.tolist(),
        "dispatch_s": (0.3 * total).tolist(),
        "host_s": (0.2 * total).tolist(),
        "compiles": [0] * count,
        "disturbed": [False] * count,
    }
    return made | changes


def make_record(of: cell.Cell, launch: int | None, rank_s: np.ndarray | None = None, **changes: Any) -> Record:
    """One `parallel` record; without times where `rank_s` is None."""
    pids = [100 * (launch or 0) + sum(map(ord, of.framework)) + rank for rank in range(RANKS)]
    ranks = [] if rank_s is None else [
        {"rank": rank, "pid": pids[rank], "total_s": (STEPS * times).tolist()} for rank, times in enumerate(rank_s)
    ]  # fmt: skip
    ops = [] if of.communication == "elided" else [op(), op(size=8 << 20)]
    made: Record = {
        "schema": 1, "kind": "parallel", "comparison": of.comparison, "launch": launch, "cell": of.to_dict(),
        "status": "ok", "reason": "", "gate": {"status": "ok", "passed": True} if launch == 0 else None,
        "census": {"ops": ops, "wire_bytes": float(sum(o["operand_bytes"] for o in ops)), "findings": []},
        "blocks": {} if rank_s is None else columns(rank_s), "ranks": ranks, "oversubscribed": False,
        "environment": {"checked": CHECKED | {"transport": of.transport}, "framework": {"asynchronous": True}},
    }  # fmt: skip
    return made | changes


def rank_times(truth: Truth, arm: str, rng: np.random.Generator, drift: np.ndarray, noise: float) -> np.ndarray:
    """Seconds a step of each rank, [ranks, blocks]; rank 0 is the slowest, the others as fast as the fastest.

    Ranks that meet in every step take the same time; those that do not, each its own.
    """
    own = truth.arms()[arm]
    if arm != effects.ELIDED:
        return np.tile(own * drift * (1 + noise * rng.standard_normal(drift.size)), (RANKS, 1))
    means = np.array([own] + [truth.arms()[effects.FASTEST]] * (RANKS - 1))[:, None]
    return means * drift * (1 + noise * rng.standard_normal((RANKS, drift.size)))


def run_records(
    truths: Mapping[tuple[str, str], Truth] = TRUTHS,
    launches: int = 6,
    noise: float = 0.004,
    launch_sd: float = 0.01,
    seed: int = 3,
    failed: Mapping[tuple[str, str, str], tuple[str, str]] | None = None,
    arms: Sequence[str] = ARMS,
    ending: str | None = "complete",
    labels: Mapping[tuple[str, str], Mapping[str, Truth]] | None = None,
    changes: Mapping[str, Any] | None = None,
    **cell_changes: Any,
) -> list[Record]:
    """Records of a whole run.

    Args:
      truths: (framework, compiler) -> what its steps are made of.
      launches: Launches.
      noise, launch_sd: Relative standard deviation of blocks and of launches.
      seed: Of the noise.
      failed: (framework, compiler, arm) -> (status, reason) of cells without a time.
      arms: Communication arms.
      ending: Of the `end` record; None for no such record.
      labels: (framework, compiler) -> label -> truth of a planted variant.
      changes: Fields of every `parallel` record.
      **cell_changes: Fields of every cell.
    """
    rng = np.random.default_rng(seed)
    frameworks = list(dict.fromkeys(framework for framework, _ in truths))
    config = {"frameworks": frameworks, "strategies": ["dp"], "workloads": ["transformer"], "launches": launches}
    made: list[Record] = [{"kind": "run", "mode": "parallel", "config": config, "machine": MACHINE}]
    grid = [(f, c, "matched", truth) for (f, c), truth in truths.items()]
    grid += [(f, c, label, truth) for (f, c), named in (labels or {}).items() for label, truth in named.items()]
    for launch in range(launches):
        for framework in frameworks:
            swing = 0.01 * np.sin(np.arange(2 * VISITS) / 6)
            drift = (1 + launch_sd * rng.standard_normal()) * (1 + swing - swing.mean())
            for f, compiler, label, truth in grid:
                for arm in arms if f == framework else ():
                    of = make_cell(f, compiler, arm, label=label, **cell_changes)
                    if (f, compiler, arm) in (failed or {}):
                        status, reason = (failed or {})[f, compiler, arm]
                        made.append(make_record(of, launch, None, status=status, reason=reason, **(changes or {})))
                    else:
                        times = rank_times(truth, arm, rng, drift, noise)
                        made.append(make_record(of, launch, times, **(changes or {})))
        if launch == 0:
            made.append({"kind": "plan", "plan": plan.fixed(launches).to_dict()})
    if ending is not None:
        made.append({"kind": "end", "ending": ending, "times": {"total": 60.0}})
    return made


def summary(**options: Any) -> parallel_results.ParallelSummary:
    """Analysis of `run_records`."""
    return parallel_analysis.summarise(run_records(**options))
