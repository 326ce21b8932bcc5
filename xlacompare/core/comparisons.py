"""Cell against cell: between launches or inside one process, with a verdict; and the bars of a gap."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from xlacompare.core import cell_results, errors, estimates, pairs, plan, record, results, samples, verdict


def compare_launches(a: samples.CellSamples, b: samples.CellSamples, chosen: plan.Plan) -> results.Comparison:
    """a against b over launches that ran side by side; refused where their environments differ."""
    if problem := _no_time(a) or _no_time(b) or _incomparable(a, b):
        return results.Comparison(a.cell, b.cell, "launches", problem=problem)
    both = samples.common_launches(a, b)
    mine, other = ([entry.launches[launch].mean_s for launch in both] for entry in (a, b))
    judged = verdict.judge(estimates.paired_t_log(mine, other, chosen.level), chosen)
    if not chosen.is_look(len(both)):  # an interrupted run: nothing is tested between looks
        judged = verdict.untested(judged, chosen.next_look(len(both)))
    return results.Comparison(a.cell, b.cell, "launches", judged, estimates.paired_t(mine, other, chosen.level))


def compare_blocks(a: samples.CellSamples, b: samples.CellSamples) -> results.Comparison:
    """a against b, arms of one process, by neighbouring blocks."""
    if problem := _no_time(a) or _no_time(b):
        return results.Comparison(a.cell, b.cell, "blocks", problem=problem)
    both = [samples.neighbours(a.launches[n], b.launches[n]) for n in samples.common_launches(a, b)]
    both = [pair for pair in both if pair[0].size > 1]
    if not both:
        return results.Comparison(a.cell, b.cell, "blocks", problem="no launch measured both arms")
    found = pairs.pooled_pairs(both)
    unit = "launches" if len(both) > 1 else "block pairs"  # what `pool` counts, and so what would decide
    judged = verdict.judge(found, dataclasses.replace(plan.in_process(found.n), unit=unit))
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
    why = [text for text in (entry.status, entry.reason) if text not in ("ok", "")]
    return f"{entry.cell.framework}/{entry.cell.compiler} has no time: {': '.join(why) or 'no samples'}"


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
        if a.cell.option or b.cell.option:
            continue
        same = (a.cell.comparison, a.cell.compiler, a.cell.label) == (b.cell.comparison, b.cell.compiler, b.cell.label)
        if same and a.cell.framework != b.cell.framework and "unsupported" not in (a.status, b.status):
            if a.timed and b.timed and cell_results.step_time(a).mean < cell_results.step_time(b).mean:
                a, b = b, a
            made.append(compare_launches(a, b, chosen))
    return made


def arm_pairs(found: Mapping[str, samples.CellSamples], chosen: plan.Plan | None = None) -> list[results.Comparison]:
    """Within each framework: the eager arm (or the first one) against every other arm."""
    made = []
    for entry in found.values():
        if entry.cell.option or entry.cell.compiler == "eager":
            continue  # an option is held against its own default, see `flag_effects`
        base = found.get(dataclasses.replace(entry.cell, compiler="eager").id)
        if base is not None and "unsupported" not in (base.status, entry.status):
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


def changed_settings(found: Mapping[str, samples.CellSamples]) -> list[results.Changed]:
    """Cells with a framework's own settings against the matched cell of the same arm."""
    made = []
    for entry in found.values():
        base = found.get(entry.cell.matched.id)
        if entry.cell.label != "matched" and entry.cell.option is None and base is not None and base is not entry:
            effect = compare(entry, base, plan.fixed(max(1, len(entry.launches))))
            settings = dict(entry.cell.changed)
            made.append(
                results.Changed(entry.cell.framework, entry.cell.comparison, entry.cell.label, settings, effect)
            )
    return made
