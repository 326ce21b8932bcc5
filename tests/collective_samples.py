"""Synthetic records of collective runs, shaped like those of `launch.collective_campaign`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.collectives import analysis, results, sizes, table
from xlacompare.core import collective_cell, plan

Record = dict[str, Any]
MACHINE = {"host": "box", "cpu": "Intel(R) Xeon(R) Processor", "cores_online": 2, "cores_available": [0, 1]}
KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB)
# Seconds of latency and bytes/s of the made-up links, by framework.
LATENCY_S = {"jax": 80e-6, "torch": 50e-6, "torch_xla": 150e-6}
BANDWIDTH = {"jax": 0.62e9, "torch": 0.60e9, "torch_xla": 2.0e9}
CHECKED = {"machine": "box", "platform": "cpu", "num_cores": 2, "source_revision": "0.1+abc"}


def make_cell(
    framework: str = "jax", size: int = MIB, collective: str = "all_reduce", ranks: int = 2, **changes: Any
) -> collective_cell.CollectiveCell:
    """A float32 cell over gloo."""
    entry = table.get(collective)
    dtype = changes.get("dtype", "float32")
    count, pad = sizes.counts(collective, size, dtype, ranks)
    made = collective_cell.CollectiveCell(
        framework=framework,
        transport="gloo",
        mode="process",
        collective=collective,
        reduction="sum" if entry.reduces else "",
        dtype=dtype,
        size_bytes=size,
        count=count,
        pad_bytes=pad,
        mesh=(ranks,),
        pattern="ring" if collective == "ppermute" else "",
    )
    return dataclasses.replace(made, **changes)


def columns(operation_s: Sequence[float], n: int = 4, **changes: Any) -> dict[str, list[Any]]:
    """Columns of main blocks with these seconds an operation; `changes` replaces columns."""
    k = len(operation_s)
    made: dict[str, list[Any]] = {
        "visit": [i // 2 for i in range(k)],
        "position": [0] * k,
        "series": ["main"] * k,
        "mode": ["block"] * k,
        "n": [n] * k,
        "start_s": [float(i) for i in range(k)],
        "total_s": [n * s for s in operation_s],
        "dispatch_s": [n * s * 0.2 for s in operation_s],
        "host_s": [n * s * 0.1 for s in operation_s],
        "compiles": [0] * k,
        "disturbed": [False] * k,
        "skew_s": [1e-5] * k,
    }
    return made | changes


def iterations(total_s: Sequence[float]) -> dict[str, list[float]]:
    """Single iterations with these seconds."""
    return {"total_s": list(total_s), "dispatch_s": [1e-6] * len(total_s), "skew_s": [2e-6] * len(total_s)}


def make_record(
    cell: collective_cell.CollectiveCell,
    launch: int | None,
    operation_s: Sequence[float] = (),
    status: str = "ok",
    **changes: Any,
) -> Record:
    """One `collective` record."""
    entry = table.get(cell.collective)
    moved = entry.size_bytes(cell.count, cell.mesh[0], cell.dtype) * entry.bus_factor(cell.mesh[0])
    made: Record = {
        "schema": 1,
        "kind": "collective",
        "comparison": cell.comparison,
        "launch": launch,
        "cell": cell.to_dict(),
        "status": status,
        "reason": "",
        "values": {"checked": 2 * cell.count, "wrong": 0, "message": ""},
        "lowering": {"source": "c10d", "ops": [], "findings": [], "wire_bytes": moved, "fingerprint": None},
        "compile": {"build_s": 0.1, "first_s": 0.01},
        "fence": {"passed": True} if launch == 0 else None,
        "copy_s": None,
        "blocks": columns(operation_s) if operation_s else {},
        "iterations": iterations([2 * s for s in operation_s]),
        "ranks": [],
        "start": {},
        "oversubscribed": False,
        "launcher": "built-in",
        "environment": {"checked": {**CHECKED, "transport": cell.transport}},
    }
    return made | changes


def seconds(cell: collective_cell.CollectiveCell) -> float:
    """Time of the made-up link."""
    entry = table.get(cell.collective)
    moved = entry.size_bytes(cell.count, cell.mesh[0], cell.dtype) * entry.bus_factor(cell.mesh[0])
    return LATENCY_S[cell.framework] + moved / BANDWIDTH[cell.framework]


def run_records(
    frameworks: Iterable[str] = ("jax", "torch"),
    collectives: Iterable[str] = ("all_reduce",),
    of_sizes: Sequence[int] = SIZES,
    launches: int = 3,
    noise: float = 0.005,
    ending: str | None = "complete",
    failed: Mapping[str, tuple[str, str]] | None = None,
    seed: int = 5,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[Record]:
    """Records of a run; `changes` are fields of all cells, `failed` is framework -> (status, reason)."""
    rng, known = np.random.default_rng(seed), failed or {}
    asked = {"frameworks": list(frameworks), "collectives": list(collectives), "sizes": list(of_sizes)}
    asked |= {"transports": ["gloo"], "mesh": [2], "launches": launches, **(config or {})}
    made: list[Record] = [{"kind": "run", "mode": "collective", "config": asked, "machine": MACHINE}]
    grid = [
        make_cell(f, size, name, **changes)
        for name in asked["collectives"] for size in of_sizes for f in asked["frameworks"]
    ]  # fmt: skip
    for cell in grid:
        if cell.framework in known:
            status, reason = known[cell.framework]
            made.append(make_record(cell, None, status=status, reason=reason, values=None, lowering=None))
    for launch in range(launches):
        for cell in grid:
            if cell.framework not in known:
                base = seconds(cell) * float(np.exp(rng.normal(0, noise)))
                made.append(make_record(cell, launch, [float(base * np.exp(rng.normal(0, 0.01))) for _ in range(12)]))
    made.append({"kind": "plan", "plan": plan.fixed(launches).to_dict()})
    if ending is not None:
        made.append({"kind": "end", "ending": ending, "times": {"total": 3.0}})
    return made


def summary(**options: Any) -> results.CollectiveSummary:
    """Analysis of `run_records`."""
    return analysis.summarise(run_records(**options))
