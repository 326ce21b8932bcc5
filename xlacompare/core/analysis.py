"""From records to results: estimates, verdicts, bars. Pure functions of the records; no framework, no file."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import errors, pairs, plan, power, record, results, samples, statistics, verdict

# Assumed before there is a second launch: launches of one side differed by 2-7% on 2-core machines (FACTS, "Noise").
ASSUMED_LAUNCH_SD = 0.04
HOST_BOUND, DEVICE_BOUND = 0.9, 0.5  # shares of a block that dispatch takes
BUILD_STATES = ("cold", "disk", "memory")


def summarise(records: Sequence[Mapping[str, Any]], problems: Iterable[str] = ()) -> results.Summary:
    """Analyses the records of one run, complete or not."""
    first = {kind: next((r for r in records if r["kind"] == kind), {}) for kind in ("run", "plan", "end")}
    chosen = plan.Plan.from_dict(first["plan"]["plan"]) if first["plan"] else plan.fixed(1)
    found = samples.collect(records)
    arm = headline_arm(found.values())
    between = framework_pairs(found, chosen)
    within = arm_pairs(found)
    return results.Summary(
        config=first["run"].get("config", {}),
        machine=first["run"].get("machine", {}),
        plan=first["plan"].get("plan"),
        mde=first["plan"].get("mde"),
        ending=first["end"].get("ending", ""),
        times=first["end"].get("times", {}),
        cells=[cell_result(entry, found) for entry in found.values()],
        headline_arm=arm,
        pairs=with_holm(between, arm),
        arms=within,
        gaps=[gap for pair in between if pair.a.compiler == arm and (gap := gap_of(pair, found)) is not None],
        settings=changed_settings(found),
        shares=shares(records),
        problems=list(problems),
    )


def headline_arm(entries: Iterable[samples.CellSamples]) -> str:
    """The arm that the headline compares: `compiled` where it was measured, else the first."""
    present = [entry.cell.compiler for entry in entries if entry.cell.label == "matched"]
    return "compiled" if "compiled" in present or not present else present[0]


def cell_result(entry: samples.CellSamples, found: Mapping[str, samples.CellSamples]) -> results.CellResult:
    """One cell; without a time where it failed anywhere."""
    if not entry.timed:
        return results.CellResult(entry.cell, entry.status, entry.reason)
    launches = list(entry.launches.values())
    blocks = np.concatenate([launch.step_s for launch in launches])
    share = float(np.concatenate([launch.dispatch_s for launch in launches]).sum() / blocks.sum())
    step = step_time(entry)
    facts = entry.records[0].get("facts", {})
    spread = statistics.percentiles(blocks)
    return results.CellResult(
        entry.cell,
        entry.status,
        entry.reason,
        step=step,
        median_s=spread.median,
        p90_s=spread.p90,
        p99_s=spread.p99,
        dispatch_share=share,
        pipelining=pipelining(launches),
        bound=bound(entry, share),
        flops_per_s=facts["flops_per_step"] / step.mean if facts else None,
        **memory(entry),
        first_step_s={state: first_step(entry, state) for state in BUILD_STATES},
        phases=phases(entry),
        disk_note=disk_note(entry),
        break_even_step=break_even(entry, found),
        num_launches=len(launches),
        num_blocks=int(blocks.size),
        num_disturbed=sum(launch.num_disturbed for launch in launches),
        num_compiled=sum(launch.num_compiled for launch in launches),
        fence_ok=fence_ok(entry),
        facts=dict(facts),
    )


def step_time(entry: samples.CellSamples) -> statistics.Estimate:
    """Mean seconds a step: t over launches. One launch gives an interval over its blocks, and says so."""
    launches = list(entry.launches.values())
    if len(launches) > 1:
        return statistics.t_interval([launch.mean_s for launch in launches], method="t over launches")
    blocks = launches[0].step_s  # the series against nothing: the mean with the error that its correlation leaves
    found = pairs.block_pair_interval(blocks, np.zeros_like(blocks), scale="linear")
    return dataclasses.replace(found, method="t over the blocks of one launch")


def pipelining(launches: Sequence[samples.LaunchSamples]) -> statistics.Estimate | None:
    """stepwise - block in seconds a step, over neighbouring blocks."""
    measured = [launch.stepwise for launch in launches if launch.stepwise[0].size > 1]
    return pairs.mean_effect(measured) if measured else None


def bound(entry: samples.CellSamples, dispatch_share: float) -> str:
    """What limits the step. Where a framework runs operations inside the call ("synchronous"), dispatch tells nothing."""
    described = entry.records[-1]["environment"].get("framework", {})
    if not described.get("asynchronous", True):
        return "synchronous"
    if dispatch_share >= HOST_BOUND:
        return "host"
    return "device" if dispatch_share < DEVICE_BOUND else "mixed"


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
    shows hits and no miss), in memory (built again in the same process). Mean over the launches in that state."""
    builds = {r["launch"]: r["compile"] for r in entry.records if r["launch"] is not None and r["compile"].get("build_s")}
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
    cold = next((r["compile"] for r in entry.records if r["launch"] == 0 and r["compile"].get("build_s")), {})
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


def fence_ok(entry: samples.CellSamples) -> bool | None:
    """Whether the fence self-test passed wherever it ran; None where it did not run."""
    tested = [r["fence"]["passed"] for r in entry.records if r.get("fence")]
    return all(tested) if tested else None


def compare_launches(a: samples.CellSamples, b: samples.CellSamples, chosen: plan.Plan) -> results.Comparison:
    """a against b over launches that ran side by side; refused where their environments differ."""
    if problem := _no_time(a) or _no_time(b) or _incomparable(a, b):
        return results.Comparison(a.cell, b.cell, "launches", problem=problem)
    both = samples.common_launches(a, b)
    sides = [[entry.launches[launch].mean_s for launch in both] for entry in (a, b)]
    judged = verdict.judge(statistics.paired_t_log(*sides, chosen.level), chosen)
    return results.Comparison(a.cell, b.cell, "launches", judged, statistics.paired_t(*sides, chosen.level))


def compare_blocks(a: samples.CellSamples, b: samples.CellSamples) -> results.Comparison:
    """a against b, arms of one process, by neighbouring blocks."""
    if problem := _no_time(a) or _no_time(b):
        return results.Comparison(a.cell, b.cell, "blocks", problem=problem)
    both = [samples.neighbours(a.launches[n], b.launches[n]) for n in samples.common_launches(a, b)]
    both = [pair for pair in both if pair[0].size > 1]
    if not both:
        return results.Comparison(a.cell, b.cell, "blocks", problem="no launch measured both arms")
    judged = verdict.judge(pairs.pooled_pairs(both), plan.in_process(sum(pair[0].size for pair in both)))
    return results.Comparison(a.cell, b.cell, "blocks", judged, pairs.mean_effect(both))


def compare(a: samples.CellSamples, b: samples.CellSamples, chosen: plan.Plan) -> results.Comparison:
    """By blocks where every common launch had both in one process, else over launches."""
    launches = samples.common_launches(a, b)
    if launches and all(a.launches[n].process == b.launches[n].process for n in launches):
        return compare_blocks(a, b)
    return compare_launches(a, b, chosen)


def _no_time(entry: samples.CellSamples) -> str:
    if entry.timed:
        return ""
    return f"{entry.cell.framework}/{entry.cell.compiler} has no time: {entry.status}" + (f" ({entry.reason})" if entry.reason else "")


def _incomparable(a: samples.CellSamples, b: samples.CellSamples) -> str:
    try:
        record.check_comparable(a.records[-1], b.records[-1])
    except errors.RecordError as error:
        return str(error)
    return "" if samples.common_launches(a, b) else "no launch measured both"


def framework_pairs(found: Mapping[str, samples.CellSamples], chosen: plan.Plan) -> list[results.Comparison]:
    """Every pair of frameworks in the same arm of the same comparison; the slower one first where both have a time."""
    made = []
    for a, b in itertools.combinations(found.values(), 2):
        same = (a.cell.comparison, a.cell.compiler, a.cell.label) == (b.cell.comparison, b.cell.compiler, b.cell.label)
        if same and a.cell.framework != b.cell.framework and "unsupported" not in (a.status, b.status):
            if a.timed and b.timed and step_time(a).mean < step_time(b).mean:
                a, b = b, a
            made.append(compare_launches(a, b, chosen))
    return made


def arm_pairs(found: Mapping[str, samples.CellSamples], chosen: plan.Plan | None = None) -> list[results.Comparison]:
    """Within each framework: the eager arm (or the first one) against every other arm."""
    made = []
    for entry in found.values():
        base = found.get(dataclasses.replace(entry.cell, compiler="eager").id)
        if base is not None and entry.cell.compiler != "eager" and "unsupported" not in (base.status, entry.status):
            made.append(compare(base, entry, chosen or plan.fixed(len(entry.launches) or 1)))
    return made


def with_holm(between: Sequence[results.Comparison], arm: str) -> list[results.Comparison]:
    """Adjusts the verdicts of the primary family (framework pairs x workloads in the headline arm) by Holm."""
    primary = [i for i, pair in enumerate(between) if pair.a.compiler == arm and pair.verdict is not None]
    judged = [pair.verdict for pair in between if pair.verdict is not None and pair.a.compiler == arm]
    adjusted = verdict.holm(judged, "framework pairs x workloads")
    made = list(between)
    for i, verdict_of_family in zip(primary, adjusted, strict=True):
        made[i] = dataclasses.replace(made[i], verdict=verdict_of_family)
    return made


def gap_of(pair: results.Comparison, found: Mapping[str, samples.CellSamples]) -> results.Gap | None:
    """T_a - T_b split by the compiler effect of each side, where both eager arms were measured.

    T_a(c) - T_b(c) = [T_a(eager) - T_b(eager)] - [T_a(eager) - T_a(c)] + [T_b(eager) - T_b(c)], launch by launch, so that
    the bars add up exactly.
    """
    if pair.difference is None:
        return None
    sides = {"a": found[pair.a.id], "b": found[pair.b.id]}
    eager = {k: found.get(dataclasses.replace(entry.cell, compiler="eager").id) for k, entry in sides.items()}
    if pair.a.compiler == "eager" or any(entry is None or not entry.timed for entry in eager.values()):
        return None
    every = [*sides.values(), *(entry for entry in eager.values() if entry is not None)]
    launches = sorted(set.intersection(*(set(entry.launches) for entry in every)))
    if not launches:
        return None
    a, b, eager_a, eager_b = (np.array([entry.launches[n].mean_s for n in launches]) for entry in every)
    arm, name_a, name_b = pair.a.compiler, pair.a.framework, pair.b.framework
    terms = [
        (f"op by op: {name_a} eager against {name_b} eager", eager_a - eager_b),
        (f"less than that by the compiler of {name_a}: {arm} against eager", a - eager_a),
        (f"more than that by the compiler of {name_b}: {arm} against eager", eager_b - b),
    ]
    mean_a = float(a.mean())
    bars = [_bar(name, values, mean_a) for name, values in terms]
    return results.Gap(pair.a, pair.b, statistics.t_interval(a - b), bars)


def _bar(name: str, values: samples.Values, step_s: float) -> results.Bar:
    mean = float(values.mean())
    return results.Bar(name, statistics.t_interval(values), mean / step_s if mean > 0 else None)


def changed_settings(found: Mapping[str, samples.CellSamples]) -> list[results.Changed]:
    """Cells with a framework's own settings against the matched cell of the same arm."""
    made = []
    for entry in found.values():
        base = found.get(dataclasses.replace(entry.cell, label="matched", changed=()).id)
        if entry.cell.label != "matched" and base is not None and base is not entry:
            effect = compare(entry, base, plan.fixed(max(1, len(entry.launches))))
            settings = dict(entry.cell.changed)
            made.append(
                results.Changed(entry.cell.framework, entry.cell.comparison, entry.cell.label, settings, effect)
            )
    return made


def shares(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Where the time of the launches went, one comparison in one launch counted once."""
    walls, starts = {}, {}
    for r in records:
        if r["kind"] == "cell" and r.get("wall"):
            walls[r["launch"], r["comparison"]] = r["wall"]
            starts[r["start"].get("pid")] = r["start"].get("import_s", 0.0) + r["start"].get("start_s", 0.0)
    total = {key: sum(wall[key] for wall in walls.values()) for key in ("wall_s", "build_s", "measure_s", "timed_s")}
    if not total["measure_s"]:
        return {}
    return {
        "timed": total["timed_s"] / total["measure_s"],
        "start": sum(starts.values()) / total["wall_s"],
        "build": total["build_s"] / total["wall_s"],
        "measure": total["measure_s"] / total["wall_s"],
    }


def settled(records: Sequence[Mapping[str, Any]], chosen: plan.Plan, launches: int) -> bool:
    """At a planned look: whether every headline pair has its verdict, or its interval is narrow enough."""
    found = samples.collect(records)
    arm = headline_arm(found.values())
    pairs_now = [pair.verdict for pair in with_holm(framework_pairs(found, chosen), arm) if pair.a.compiler == arm]
    judged = [v for v in pairs_now if v is not None]
    return all(plan.should_stop(chosen, launches, v.estimate, v.decided).stop for v in judged)


def detectable(chosen: plan.Plan) -> dict[str, Any]:
    """The effect that the planned launches can find with 80% power, said before the second launch is run.

    One launch tells nothing of how launches differ: the spread is assumed, and printed with the figure.
    """
    spread = math.sqrt(2) * ASSUMED_LAUNCH_SD  # of a difference of two sides
    effect = power.mde(spread, chosen.last, chosen.alpha_per_look)
    return {"launch_sd": ASSUMED_LAUNCH_SD, "launches": chosen.last, "effect": effect}


def plan_sentence(chosen: plan.Plan) -> str:
    """The plan and what it can show, in a sentence."""
    found = detectable(chosen)
    looks = ", ".join(map(str, chosen.looks))
    return (
        f"plan: a look after {looks} launches; detectable between frameworks with 80% power: "
        f"{found['effect']:.0%}, if launches differ by {found['launch_sd']:.0%} as assumed"
    )
