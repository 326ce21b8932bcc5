"""One cell over its launches: step time, what limits it, what its build cost, its memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import estimates, pairs, results, samples

HOST_BOUND, DEVICE_BOUND = 0.5, 0.25  # shares of a block that the dispatching thread computes
MAX_EXPONENT = 100.0  # e**100 times a time is no end of an interval any more
BUILD_STATES = ("cold", "disk", "memory")


def cell_result(entry: samples.CellSamples, found: Mapping[str, samples.CellSamples]) -> results.CellResult:
    """One cell; without a time where it failed anywhere."""
    if not entry.timed:
        return results.CellResult(
            entry.cell, entry.status, entry.reason, num_compiled=entry.num_compiled, census=census(entry)
        )
    launches = list(entry.launches.values())
    blocks = np.concatenate([launch.step_s for launch in launches])
    dispatch, host = (
        float(np.concatenate([getattr(launch, name) for launch in launches]).sum() / blocks.sum())
        for name in ("dispatch_s", "host_s")
    )
    step = step_time(entry)
    facts = entry.records[0].get("facts", {})
    spread = estimates.percentiles(blocks)
    return results.CellResult(
        entry.cell,
        entry.status,
        entry.reason,
        step=step,
        median_s=spread.median,
        p90_s=spread.p90,
        p99_s=spread.p99,
        dispatch_share=dispatch,
        host_share=host,
        pipelining=pipelining(launches),
        bound=bound(entry, host),
        flops_per_s=facts["flops_per_step"] / step.mean if facts else None,
        **memory(entry),
        first_step_s={state: first_step(entry, state) for state in BUILD_STATES},
        phases=phases(entry),
        disk_note=disk_note(entry),
        break_even_step=break_even(entry, found),
        num_launches=len(launches),
        num_blocks=int(blocks.size),
        num_disturbed=sum(launch.num_disturbed for launch in launches),
        num_compiled=entry.num_compiled,
        num_disturbed_used=sum(launch.num_disturbed_used for launch in launches),
        busy=entry.busy,
        fence_ok=fence_ok(entry),
        facts=dict(facts),
        census=census(entry),
    )


def step_time(entry: samples.CellSamples) -> estimates.Estimate:
    """Mean seconds a step: t over launches. One launch gives an interval over its blocks, and says so.

    The ends are taken on the log scale, mean * exp(+-half / mean): a time is never negative, and with two launches the
    other interval often was.
    """
    launches = list(entry.launches.values())
    if len(launches) > 1:
        return of_a_time(estimates.t_interval([launch.mean_s for launch in launches], method="t over launches"))
    blocks = launches[0].step_s  # the series against nothing: the mean with the error that its correlation leaves
    found = pairs.block_pair_interval(blocks, np.zeros_like(blocks), scale="linear")
    return of_a_time(dataclasses.replace(found, method="t over the blocks of one launch"))


def of_a_time(found: estimates.Estimate) -> estimates.Estimate:
    """The same with positive ends; its standard error is that of the mean in seconds (delta method)."""
    exponent = found.half_width / found.mean
    factor = math.exp(exponent) if exponent < MAX_EXPONENT else math.inf
    return dataclasses.replace(found, low=found.mean / factor, high=found.mean * factor)


def pipelining(launches: Sequence[samples.LaunchSamples]) -> estimates.Estimate | None:
    """stepwise - block in seconds a step, over neighbouring blocks."""
    measured = [launch.stepwise for launch in launches if launch.stepwise[0].size > 1]
    return pairs.mean_effect(measured) if measured else None


def asynchronous(entry: samples.CellSamples) -> bool:
    """Whether another thread or device does the work: False where the dispatching thread does it itself."""
    return bool(entry.records[-1]["environment"].get("framework", {}).get("asynchronous", True))


def bound(entry: samples.CellSamples, host_share: float) -> str:
    """What limits the step: the thread that dispatches computes half of it or more, or a quarter or less.

    "synchronous": that thread does the work as well, its CPU time tells nothing. "unclear": others had the cores, and
    the time that they took would look like the device's.
    """
    if not asynchronous(entry):
        return "synchronous"
    if entry.busy:
        return "unclear"
    if host_share >= HOST_BOUND:
        return "host"
    return "device" if host_share < DEVICE_BOUND else "mixed"


def memory(entry: samples.CellSamples) -> dict[str, Any]:
    """Largest peak over launches, and what it means."""
    known = [r["memory"] for r in entry.records if r.get("memory") and r["memory"]["peak_bytes"] is not None]
    if not known:
        return {"memory_bytes": None, "memory_meaning": "not known on this platform"}
    return {"memory_bytes": max(m["peak_bytes"] for m in known), "memory_meaning": known[0]["meaning"]}


def _seconds(build: Mapping[str, Any]) -> float:
    return float(build["build_s"] + build["first_step_s"])


def first_step(entry: samples.CellSamples, state: str) -> float | None:
    """Seconds of build and first step: cold (first launch, empty caches), from disk (a later launch whose own counter
    shows hits and no miss), in memory (built again in the same process). Mean over the launches in that state.
    """
    builds = {
        r["launch"]: r["compile"] for r in entry.records if r["launch"] is not None and r["compile"].get("build_s")
    }
    if state == "cold":
        return _seconds(builds[0]) if 0 in builds else None
    if state == "disk":
        hits = [_seconds(b) for launch, b in builds.items() if launch and from_disk(b)]
        return float(np.mean(hits)) if hits else None
    again = [b["rebuild"] for b in builds.values() if b.get("rebuild")]
    return _seconds(again[0]) if again else None


def from_disk(build: Mapping[str, Any]) -> bool:
    """Whether the framework's own counter says that the programs came from the disk cache."""
    return bool(build.get("disk_cache_hits")) and not build.get("disk_cache_misses")


def disk_note(entry: samples.CellSamples) -> str:
    """Why there is no figure for a build from disk."""
    if first_step(entry, "disk") is not None:
        return ""
    later = [r["compile"] for r in entry.records if r["launch"] and r["compile"].get("build_s")]
    if not later:
        return "one launch only: nothing was on disk before it"
    return later[0].get("note") or "the disk cache had no hit by the framework's own counter"


def phases(entry: samples.CellSamples) -> dict[str, float | None]:
    """Trace, lower and compile seconds of the cold build."""
    builds = (record["compile"] for record in entry.records if record["launch"] == 0)
    cold: Mapping[str, float | None] = next((build for build in builds if build.get("build_s")), {})
    return {name: cold.get(name) for name in ("trace_s", "lower_s", "compile_s")}


def break_even(entry: samples.CellSamples, found: Mapping[str, samples.CellSamples]) -> float | None:
    """Extra seconds until the first step is done, over seconds saved a step, against the eager arm."""
    eager = found.get(dataclasses.replace(entry.cell, compiler="eager").id)
    if eager is None or entry.cell.compiler == "eager" or not eager.timed:
        return None
    cold = first_step(entry, "cold"), first_step(eager, "cold")
    saving = step_time(eager).mean - step_time(entry).mean
    if cold[0] is None or cold[1] is None or saving <= 0:
        return None
    return max(0.0, (cold[0] - cold[1]) / saving)


def census(entry: samples.CellSamples) -> dict[str, Any]:
    """What the gate found of the operations of a step; {} where it did not look."""
    return next((dict(r["census"]) for r in entry.records if r.get("census")), {})


def fence_ok(entry: samples.CellSamples) -> bool | None:
    """Whether the fence self-test passed wherever it ran; None where it did not run."""
    tested = [r["fence"]["passed"] for r in entry.records if r.get("fence")]
    return all(tested) if tested else None
