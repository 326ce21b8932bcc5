"""From records to results. Pure functions of the records; no framework, no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xlacompare.core import bars, cell_results, comparisons, flag_effects, gaps, plan, power, results, samples

# Assumed before there is a second launch: launches of one side differed by 2-7% (2 cores, experiments/noise.py).
ASSUMED_LAUNCH_SD = 0.04


def summarise(records: Sequence[Mapping[str, Any]], problems: Iterable[str] = ()) -> results.Summary:
    """Analyses the records of one run, complete or not."""
    first = {kind: next((r for r in records if r["kind"] == kind), {}) for kind in ("run", "plan", "end")}
    chosen = plan.Plan.from_dict(first["plan"]["plan"]) if first["plan"] else plan.fixed(1)
    found, replays = samples.collect(records), samples.collect(records, "replay")
    arm = headline_arm(found.values())
    primary, others = split_pairs(found, chosen)
    within = comparisons.arm_pairs(found)
    return results.Summary(
        config=first["run"].get("config", {}),
        machine=first["run"].get("machine", {}),
        plan=first["plan"].get("plan"),
        mde=first["plan"].get("mde"),
        ending=first["end"].get("ending", ""),
        times=first["end"].get("times", {}),
        cells=[cell_results.cell_result(entry, found) for entry in found.values()],
        headline_arm=arm,
        pairs=comparisons.with_holm(primary, arm) + others,
        arms=within,
        gaps=gaps.gaps(primary, arm, found, replays, [r for r in records if r["kind"] == "operations"]),
        settings=comparisons.changed_settings(found),
        shares=shares(records),
        flags=flag_effects.flag_effects(found, chosen),
        problems=[*problems, *bars.problems(primary, found, replays)],
        definitions=first["run"].get("definitions", {}),
    )


def headline_arm(entries: Iterable[samples.CellSamples]) -> str:
    """The arm that the headline compares: `compiled` where a framework has it, else the first."""
    present = [entry.cell.compiler for entry in entries if entry.status != "unsupported"]
    return "compiled" if "compiled" in present or not present else present[0]


def split_pairs(
    found: Mapping[str, samples.CellSamples], chosen: plan.Plan
) -> tuple[list[results.Comparison], list[results.Comparison]]:
    """Pairs of frameworks in the headline's settings (matched ones where they were measured), and all the others.

    The others are no part of the primary family: other settings are the settings bar's business.
    """
    labels = [entry.cell.label for entry in found.values() if entry.status != "unsupported"]
    label = "matched" if "matched" in labels or not labels else labels[0]
    every = comparisons.framework_pairs(found, chosen)
    return [pair for pair in every if pair.a.label == label], [pair for pair in every if pair.a.label != label]


def shares(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Where the time of the launches went, one comparison in one launch counted once."""
    walls: dict[tuple[int, str], dict[str, float]] = {}
    starts: dict[tuple[int, str], float] = {}  # workers start side by side: the slowest one counts
    known = set()
    for r in records:
        if r["kind"] == "cell" and r.get("wall"):
            key, worker = (r["launch"], r["comparison"]), (r["launch"], r["start"].get("pid"))
            walls[key] = r["wall"]
            if worker not in known:
                known.add(worker)
                seconds = r["start"].get("import_s", 0.0) + r["start"].get("start_s", 0.0)
                starts[key] = max(starts.get(key, 0.0), seconds)
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
    now = comparisons.with_holm(split_pairs(found, chosen)[0], arm)
    judged = [pair.verdict for pair in now if pair.a.compiler == arm and pair.verdict is not None]
    if not judged:  # one framework: its arms are what there is to decide
        judged = [pair.verdict for pair in comparisons.arm_pairs(found, chosen) if pair.verdict is not None]
    return all(plan.should_stop(chosen, launches, v.estimate, v.decided).stop for v in judged)


def detectable(chosen: plan.Plan) -> dict[str, Any]:
    """The effect that the planned launches can find with 80% power, said before the second launch is run.

    One launch tells nothing of how launches differ: the spread is assumed, and printed with the figure.
    """
    spread = math.sqrt(2) * ASSUMED_LAUNCH_SD  # of a difference of two sides
    effect = power.mde(spread, chosen.last, chosen.alpha_per_look)
    return {"launch_sd": ASSUMED_LAUNCH_SD, "launches": chosen.last, "effect": effect}


def plan_sentence(chosen: plan.Plan, num_frameworks: int, options_between: bool = False) -> str:
    """The plan and what it can show, in a sentence.

    Args:
      chosen: The plan.
      num_frameworks: Of the run.
      options_between: XLA options have processes of their own (--ablate_flags of one framework that reads them at its
        start), so that their effects are differences between launches, as those of frameworks are.
    """
    looks = ", ".join(map(str, chosen.looks))
    if num_frameworks < 2 and not options_between:
        return f"plan: a look after {looks} launch{'es' * (chosen.last > 1)}; arms are compared inside a process"
    sides = "frameworks" if num_frameworks > 1 else "XLA options, each a process of its own,"
    found = detectable(chosen)
    if not math.isfinite(found["effect"]):
        return f"plan: one launch, which tells nothing of differences between {sides.rstrip(',')} (--launches=3 does)"
    return (
        f"plan: a look after {looks} launches; detectable between {sides} with 80% power: "
        f"{found['effect']:.0%}, if launches differ by {found['launch_sd']:.0%} as assumed"
    )
