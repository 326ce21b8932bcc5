"""From `parallel` records to effects, gaps and findings. Pure functions of the records; no framework, no file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import cell_results, claims, effects, estimates, findings, parallel_gaps, parallel_traces, plan
from xlacompare.core import parallel_results as results
from xlacompare.core import parallel_samples as samples

EAGER, CAPTURED = "eager", "captured"
# Of an operation of the census: what makes two schedules the same.
_SCHEDULE = ("opcode", "dtype", "operand_bytes", "operands", "groups", "asynchronous")


def is_parallel(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether these are records of a run of parallel steps."""
    return any(r["kind"] == samples.KIND or (r["kind"] == "run" and r.get("mode") == samples.KIND) for r in records)


def summarise(records: Sequence[Mapping[str, Any]], problems: Iterable[str] = ()) -> results.ParallelSummary:
    """Analyses the records of one run, complete or not."""
    first = {kind: next((r for r in records if r["kind"] == kind), {}) for kind in ("run", "plan", "end")}
    worlds = samples.collect(records)
    launches = max((len(world.launches()) for world in worlds), default=0)
    chosen = plan.Plan.from_dict(first["plan"]["plan"]) if first["plan"] else plan.fixed(max(1, launches))
    sides = [side(world) for world in worlds]
    arms = [arm_result(world, arm) for world in worlds for arm in world.arms.values()]
    within = [framework_effects(entry) for entry in sides if entry.launches]
    return results.ParallelSummary(
        config=first["run"].get("config", {}),
        machine=first["run"].get("machine", {}),
        plan=first["plan"].get("plan"),
        ending=first["end"].get("ending", ""),
        times=first["end"].get("times", {}),
        arms=arms,
        frameworks=within,
        pairs=parallel_gaps.pairs(sides, chosen),
        refusals=parallel_gaps.refusals(sides),
        findings=[found for entry in sides for variant in entry.world.variants for found in _findings(entry, variant)],
        problems=[*problems, *_not_in_turn(worlds)],
    )


def side(world: samples.World) -> parallel_gaps.Side:
    """A framework's world with its launches and the effects of each of its variants."""
    launches, why = world.launches(), world.why()
    made = {v: claims.of_variant(list(launches.values()), v, why) for v in world.variants} if launches else {}
    return parallel_gaps.Side(world, launches, made)


def arm_result(world: samples.World, arm: samples.Arm) -> results.ArmResult:
    """One cell; without a time where it failed anywhere."""
    about: dict[str, Any] = {
        "census": _first(arm, "census"),
        "gate": _first(arm, "gate"),
        "num_blocks": arm.num_blocks,
        "num_compiled": arm.num_compiled,
        "oversubscribed": any(record.get("oversubscribed") for record in arm.records),
    }
    variant = arm.key[0]
    used = {n: visits for n, visits in world.used().items() if visits and n in arm.launches} if arm.timed else {}
    if not used:
        status = "no sample" if arm.status == "ok" else arm.status
        return results.ArmResult(arm.cell, variant, status, arm.reason, **about)
    series = [np.asarray([arm.launches[n].step_s[v] for v in visits]) for n, visits in used.items()]
    return results.ArmResult(
        arm.cell,
        variant,
        "ok",
        "",
        time=step_time(series),
        dispatch_share=_share(arm, used, "dispatch_s"),
        num_launches=len(used),
        num_visits=sum(map(len, used.values())),
        num_disturbed=sum(len(arm.launches[n].disturbed) for n in used),
        num_disturbed_used=sum(v in arm.launches[n].disturbed for n, visits in used.items() for v in visits),
        **about,
    )


def step_time(series: Sequence[effects.Values]) -> estimates.Estimate:
    """Mean seconds a step with positive ends: t over launches; over the visits of the launch where there is one."""
    if len(series) > 1:
        return cell_results.of_a_time(estimates.t_interval([x.mean() for x in series], method="t over launches"))
    found = effects.over_visits(series[0])
    return cell_results.of_a_time(dataclasses.replace(found, method="t over the visits of one launch"))


def _share(arm: samples.Arm, used: Mapping[int, Sequence[int]], name: str) -> float | None:
    """Share of the step time that dispatch, or the thread that dispatches, takes."""
    known = [(getattr(arm.launches[n], name), arm.launches[n].step_s, visits) for n, visits in used.items()]
    if not all(part for part, _, _ in known):
        return None
    parts = sum(part[v] for part, _, visits in known for v in visits)
    return float(parts / sum(whole[v] for _, whole, visits in known for v in visits))


def _first(arm: samples.Arm, name: str) -> dict[str, Any]:
    return next((dict(record[name]) for record in arm.records if record.get(name)), {})


def framework_effects(entry: parallel_gaps.Side) -> results.FrameworkEffects:
    """The effects of one framework, of all its variants and between them, with verdicts."""
    launches, why = list(entry.launches.values()), entry.world.why()
    own = {v: list(found) for v, found in entry.effects.items() if parallel_gaps.matched(entry.world, v)}
    groups = {"": [*(found for many in own.values() for found in many), *_compiling(entry, launches, why)]}
    groups |= {v: list(found) for v, found in entry.effects.items() if v not in own}
    for change in _planted(entry, launches, why):
        groups[change.variant].append(change)
    real = {v: effects.combined(launches, {(v, effects.REAL): 1}) for v in entry.world.variants}
    step_s = {v: found.mean for v, found in real.items() if found is not None}
    fastest = {v: effects.fastest_rank(launches, [v]) for v in entry.world.variants}
    return results.FrameworkEffects(
        next(iter(entry.world.arms.values())).cell,
        [e for name, many in groups.items() for e in claims.judged(many, step_s, _family(entry, name))],
        {v: waits for v in entry.world.variants if (waits := effects.waiting(launches, v))},
        {v: rank for v, rank in fastest.items() if rank is not None},
        parallel_traces.of_world(entry.world, launches, entry.effects),
    )


def _family(entry: parallel_gaps.Side, variant: str) -> str:
    """Effects of a framework are one family; those of what was planted are not in it, each is one of its own."""
    return f"effects of {entry.world.framework}{f', {variant}' if variant else ''}"


def _compiling(entry: parallel_gaps.Side, launches: Sequence[effects.Launch], why: claims.Why) -> list[claims.Effect]:
    """Eager against every other matched arm; split where the captured one is there."""
    known = [v for v in entry.effects if parallel_gaps.matched(entry.world, v)]
    made: list[claims.Effect] = []
    for variant in known if EAGER in known else ():
        if variant == EAGER:
            continue
        both = (entry.effects[EAGER], entry.effects[variant])
        made += claims.of_compiling(launches, both, why, schedules(entry.world, EAGER, variant))
        if CAPTURED in known and variant != CAPTURED:
            made += claims.split_of_compiling(launches, (EAGER, CAPTURED, variant), why)
    return made


def _planted(entry: parallel_gaps.Side, launches: Sequence[effects.Launch], why: claims.Why) -> list[claims.Effect]:
    """Every variant with another label against the matched one of its compiler arm."""
    made: list[claims.Effect] = []
    for variant, changed in entry.effects.items():
        compiler = variant.partition(" ")[0]
        if variant != compiler and compiler in entry.effects:
            made += claims.of_planted(launches, (entry.effects[compiler], changed), why)
    return made


def schedules(world: samples.World, before: str, after: str) -> str:
    """What the census says of the collectives of two arms: the same ones, or which; "" where one is not known."""
    both = [_first(world.arms[v, effects.REAL], "census") if (v, effects.REAL) in world.arms else {}
            for v in (before, after)]  # fmt: skip
    if not all("ops" in census for census in both):
        return ""
    listed = [[tuple(str(op.get(name)) for name in _SCHEDULE) for op in census["ops"]] for census in both]
    if listed[0] == listed[1]:
        return "the census shows the same collectives in the same order: not the compiler's doing, as far as it shows"
    count = [f"{len(ops)} in {v}" for ops, v in zip(listed, (before, after), strict=True)]
    return f"the census shows another schedule: collectives {', '.join(count)}"


def _not_in_turn(worlds: Iterable[samples.World]) -> list[str]:
    return [
        f"{world.framework}, launch {n}: its arms have no visit in common, so that nothing can be subtracted"
        for world in worlds
        for n, visits in world.used().items()
        if not visits
    ]


def _findings(entry: parallel_gaps.Side, variant: str) -> list[findings.Finding]:
    """Findings of one variant, from what its records show."""
    arm = entry.world.arms.get((variant, effects.REAL))
    if arm is None:
        return []
    census, last, launches = _first(arm, "census"), arm.records[-1], list(entry.launches.values())
    environment = last.get("environment") or {}
    real = effects.combined(launches, {(variant, effects.REAL): 1}) if launches else None
    known = {found.name: found.estimate for found in entry.effects.get(variant, ()) if found.estimate is not None}
    return findings.find(
        findings.Evidence(
            arm.cell.framework,
            variant,
            arm.cell.comparison,
            strategy=arm.cell.strategy,
            num_ranks=math.prod(arm.cell.mesh),
            num_cores=(environment.get("checked") or {}).get("num_cores"),
            step_s=None if real is None else real.mean,
            effects=known,
            ops=census.get("ops", ()),
            census_findings=census.get("findings", ()),
            host_share=_host_share(entry.world, variant),
            asynchronous=bool((environment.get("framework") or {}).get("asynchronous", False)),
            num_blocks=arm.num_blocks,
            num_compiled=arm.num_compiled,
            oversubscribed=bool(last.get("oversubscribed")),
            waiting=effects.waiting(launches, variant) if launches else (),
        )
    )


def _host_share(world: samples.World, variant: str) -> float | None:
    arm = world.arms.get((variant, effects.ELIDED))
    if arm is None or not arm.timed:
        return None
    used = {n: visits for n, visits in world.used().items() if visits and n in arm.launches}
    return _share(arm, used, "host_s") if used else None
