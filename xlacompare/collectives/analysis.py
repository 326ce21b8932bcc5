"""From `collective` records to results. Pure functions of the records; no framework, no file.

Rates are made from the mean time, never averaged: the mean of rates plays slow operations down (a peer's figure was 50%
too high by it). No sample is left out for being slow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.collectives import bandwidth, ratios, results, samples
from xlacompare.collectives import fits as fitting
from xlacompare.collectives import mesh as meshes
from xlacompare.core import collective_cell as cells
from xlacompare.core import estimates, pairs, plan

# A percentile is said where at least one iteration lies above it.
MIN_FOR_P95, MIN_FOR_P99 = 20, 100


def is_collective(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether these are records of a collective run (or imported ones)."""
    return any(r["kind"] == "collective" or (r["kind"] == "run" and r.get("mode") == "collective") for r in records)


def summarise(records: Sequence[Mapping[str, Any]], problems: Iterable[str] = ()) -> results.CollectiveSummary:
    """Analyses the records of one collective run, complete or not; imported records may stand among them."""
    first = {kind: next((r for r in records if r["kind"] == kind), {}) for kind in ("run", "plan", "end")}
    found = samples.collect(records)
    launches = max((len(entry.launches) for entry in found.values()), default=1)
    chosen = plan.Plan.from_dict(first["plan"]["plan"]) if first["plan"].get("plan") else plan.fixed(max(1, launches))
    made = [cell_result(entry) for entry in found.values()]
    return results.CollectiveSummary(
        config=first["run"].get("config", {}),
        machine=first["run"].get("machine", {}),
        plan=first["plan"].get("plan"),
        ending=first["end"].get("ending", "" if first["run"] else "complete"),
        times=first["end"].get("times", {}),
        cells=made,
        ratios=ratios.framework_ratios(found, chosen),
        refusals=ratios.refusals(found),
        fits=fitting.fits(found),
        problems=list(problems),
        launchers=list(
            dict.fromkeys(str(r["launcher"]) for e in found.values() for r in e.records if r.get("launcher"))
        ),
    )


def cell_result(entry: samples.CellSamples) -> results.CollectiveResult:
    """One cell; without a time where it failed anywhere."""
    about: dict[str, Any] = {
        "findings": findings(entry),
        "oversubscribed": any(record.get("oversubscribed") for record in entry.records),
        "imported": entry.imported,
        "size_bytes": size_bytes(entry.cell),
        "num_compiled": sum(launch.num_compiled for launch in entry.launches.values()),
        **checked(entry),
    }
    if not entry.timed:
        return results.CollectiveResult(entry.cell, entry.status, entry.reason, **about)
    launches = list(entry.launches.values())
    blocks = np.concatenate([launch.operation_s for launch in launches])
    time = operation_time(entry)
    return results.CollectiveResult(
        entry.cell,
        entry.status,
        entry.reason,
        time=time,
        median_s=float(np.median(blocks)),
        **percentiles(entry),
        dispatch_s=mean_of(value for launch in launches for value in launch.dispatch_s),
        copy_s=mean_of(record.get("copy_s") for record in entry.records),
        **rates(entry, time.mean),
        lowering=lowered_by(entry),
        num_launches=len(launches),
        num_blocks=int(blocks.size),
        num_disturbed=sum(launch.num_disturbed for launch in launches),
        num_disturbed_used=sum(launch.num_disturbed_used for launch in launches),
        fence_ok=fence_ok(entry),
        first_s=first_operation(entry),
        **about,
    )


def operation_time(entry: samples.CellSamples) -> estimates.Estimate:
    """Mean seconds an operation: t over launches, the unit of replication. One launch: over its blocks, and it says so.

    An imported figure is one number: its interval is unbounded.
    """
    launches = list(entry.launches.values())
    if entry.imported:
        return estimates.t_interval([launches[0].mean_s], method=f"one figure of {entry.imported}")
    if len(launches) > 1:
        return estimates.t_interval([launch.mean_s for launch in launches], method="t over launches")
    blocks = launches[0].operation_s  # against nothing: the mean with the error that its correlation leaves
    found = pairs.block_pair_interval(blocks, np.zeros_like(blocks), scale="linear")
    return dataclasses.replace(found, method="t over the blocks of one launch")


def percentiles(entry: samples.CellSamples) -> dict[str, Any]:
    """Of single iterations of all launches, each the maximum over ranks; skew beside them."""
    iterations = np.concatenate([launch.iterations_s for launch in entry.launches.values()])
    skew = np.concatenate([launch.skew_s for launch in entry.launches.values()])
    given = entry.records[-1].get("imported", {})  # a tool's own percentiles, where it prints them
    made: dict[str, Any] = {key: given.get(key) for key in ("p50_s", "p95_s", "p99_s")}
    if iterations.size:
        p50, p95, p99 = (float(value) for value in np.quantile(iterations, (0.5, 0.95, 0.99)))
        made["p50_s"] = p50
        made["p95_s"] = p95 if iterations.size >= MIN_FOR_P95 else None
        made["p99_s"] = p99 if iterations.size >= MIN_FOR_P99 else None
    skew_s = float(np.median(skew)) if skew.size else None
    return {**made, "num_iterations": int(iterations.size), "skew_s": skew_s}


def rates(entry: samples.CellSamples, mean_s: float) -> dict[str, Any]:
    """algbw = S / t, busbw = algbw * factor (nccl-tests' doc/PERFORMANCE.md), busbw from lowered bytes = bytes / t."""
    size, moved = size_bytes(entry.cell), wire_bytes(entry)
    if size == 0 or mean_s <= 0:
        return {"wire_bytes": moved}
    made = bandwidth.bandwidth(entry.cell.collective, ranks(entry.cell), size, mean_s, wire_bytes=moved)
    lowered = None if made.busbw_lowered is None else made.busbw_lowered.value
    return {"algbw": made.algbw.value, "busbw": made.busbw.value, "busbw_lowered": lowered, "wire_bytes": moved}


def size_bytes(cell: cells.CollectiveCell) -> int:
    """The size that ran, in nccl-tests' meaning: what was asked for and the pad that made the ranks divide it."""
    return cell.size_bytes + cell.pad_bytes


def ranks(cell: cells.CollectiveCell) -> int:
    """Ranks that a collective of this cell joins."""
    return meshes.group_size(cell.mesh, cell.axis)


def wire_bytes(entry: samples.CellSamples) -> float | None:
    """Bytes per rank that the program which ran must move; None where it is not known."""
    moved = [(record.get("lowering") or {}).get("wire_bytes") for record in entry.records]
    return next((float(value) for value in moved if value is not None), None)


def findings(entry: samples.CellSamples) -> tuple[str, ...]:
    """Findings of the census over all launches, each once."""
    said = [text for record in entry.records for text in (record.get("lowering") or {}).get("findings", ())]
    return tuple(dict.fromkeys(said))


def lowered_by(entry: samples.CellSamples) -> str:
    """What ran, in a few words: the opcodes, or why they are not known."""
    last = entry.records[-1].get("lowering") or {}
    named = [op["opcode"] for op in last.get("ops", ())]
    counted = [f"{named.count(op)} {op}" if named.count(op) > 1 else op for op in dict.fromkeys(named)]
    return " + ".join(counted) or str(last.get("problem", ""))


def checked(entry: samples.CellSamples) -> dict[str, int | None]:
    """Values compared and found wrong, over launches; None where nobody looked, which is not 0."""
    known = [record["values"] for record in entry.records if record.get("values")]
    compared = [int(values["checked"]) for values in known if values.get("checked")]
    wrong = [int(v["wrong"]) for v in known if v.get("wrong") is not None and v.get("checked") != 0]
    return {"checked": sum(compared) if compared else None, "wrong": sum(wrong) if wrong else None}


def fence_ok(entry: samples.CellSamples) -> bool | None:
    """Whether the fence self-test passed wherever it ran; None where it did not run."""
    tested = [record["fence"]["passed"] for record in entry.records if record.get("fence")]
    return all(tested) if tested else None


def first_operation(entry: samples.CellSamples) -> float | None:
    """Seconds of build and first operation in the first launch."""
    build = entry.records[0].get("compile") or {}
    known = [build.get(key) for key in ("build_s", "first_s")]
    return None if all(value is None for value in known) else sum(value or 0.0 for value in known)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the known ones."""
    known = samples.known(values)
    return float(known.mean()) if known.size else None
