"""Cell against cell: between launches or inside one process, with a verdict; and the bars of a gap."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from xlacompare.core import cell_results, errors, pairs, plan, record, results, samples, statistics, verdict


def compare_launches(a: samples.CellSamples, b: samples.CellSamples, chosen: plan.Plan) -> results.Comparison:
    """a against b over launches that ran side by side; refused where their environments differ."""
    if problem := _no_time(a) or _no_time(b) or _incomparable(a, b):
        return results.Comparison(a.cell, b.cell, "launches", problem=problem)
    both = samples.common_launches(a, b)
    mine, other = ([entry.launches[launch].mean_s for launch in both] for entry in (a, b))
    judged = verdict.judge(statistics.paired_t_log(mine, other, chosen.level), chosen)
    return results.Comparison(a.cell, b.cell, "launches", judged, statistics.paired_t(mine, other, chosen.level))


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


def gaps(
    between: Sequence[results.Comparison], arm: str, found: Mapping[str, samples.CellSamples]
) -> list[results.Gap]:
    """The gaps of the headline pairs that can be split."""
    split = [gap_of(pair, found) for pair in between if pair.a.compiler == arm]
    return [gap for gap in split if gap is not None]


def gap_of(pair: results.Comparison, found: Mapping[str, samples.CellSamples]) -> results.Gap | None:
    """T_a - T_b split by the compiler effect of each side, where both eager arms were measured.

    T_a(c) - T_b(c) = [T_a(eager) - T_b(eager)] - [T_a(eager) - T_a(c)] + [T_b(eager) - T_b(c)], launch by launch: the
    bars add up exactly.
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
        (f"op by op: {name_a} eager - {name_b} eager", eager_a - eager_b),
        (f"compiler of {name_a}: {arm} - eager", a - eager_a),
        (f"compiler of {name_b}: eager - {arm}", eager_b - b),
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
