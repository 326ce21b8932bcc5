"""Framework against framework on the same collective, size and transport; and why others are not compared.

A sweep is many verdicts: it is screening, and its verdicts are adjusted by Benjamini and Hochberg (1995). The family
is all of a report's ratios, and is named with them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

from xlacompare.collectives import results, samples
from xlacompare.core import estimates, plan, verdict

FAMILY = "collectives x sizes x framework pairs"


def framework_ratios(found: Mapping[str, samples.CellSamples], chosen: plan.Plan) -> list[results.Ratio]:
    """Every pair of frameworks (or of modes) on the same comparison; the slower one first, verdicts adjusted."""
    groups: dict[str, list[samples.CellSamples]] = {}
    for entry in found.values():
        if entry.status != "unsupported":
            groups.setdefault(entry.cell.comparison, []).append(entry)
    made = [compare(a, b, chosen) for group in groups.values() for a, b in itertools.combinations(group, 2)]
    return adjusted(made)


def compare(a: samples.CellSamples, b: samples.CellSamples, chosen: plan.Plan) -> results.Ratio:
    """a against b over launches that ran side by side; refused where transports or environments differ."""
    if problem := _no_time(a) or _no_time(b) or unlike(a, b) or _apart(a, b):
        return results.Ratio(a.cell, b.cell, problem=problem)
    both = samples.common_launches(a, b)
    mine, other = ([entry.launches[launch].mean_s for launch in both] for entry in (a, b))
    if sum(mine) < sum(other):
        a, b, mine, other = b, a, other, mine
    judged = verdict.judge(estimates.paired_t_log(mine, other, chosen.level), chosen)
    if not chosen.is_look(len(both)):  # an interrupted run: nothing is tested between looks
        judged = verdict.untested(judged, chosen.next_look(len(both)))
    return results.Ratio(a.cell, b.cell, judged, estimates.paired_t(mine, other, chosen.level))


def adjusted(made: list[results.Ratio]) -> list[results.Ratio]:
    """The same with the verdicts adjusted for their number."""
    judged = [ratio.verdict for ratio in made if ratio.verdict is not None]
    after = iter(verdict.benjamini_hochberg(judged, FAMILY))
    return [ratio if ratio.verdict is None else dataclasses.replace(ratio, verdict=next(after)) for ratio in made]


def unlike(a: samples.CellSamples, b: samples.CellSamples) -> str:
    """Why two cells are not comparable whatever they measured; "" where they are."""
    if a.cell.transport != b.cell.transport:
        return unlike_transports(a.cell.transport, b.cell.transport)
    if a.imported or b.imported:
        tools = " and ".join(dict.fromkeys(entry.imported for entry in (a, b) if entry.imported))
        return f"figures of {tools} are imported: measured elsewhere, by another method; they stand beside ours"
    return _environments(a, b)


def unlike_transports(one: str, other: str) -> str:
    """The refusal, in words."""
    first, second = sorted((one, other))
    return f"no ratio across transports: {first} and {second} carry the bytes differently, so that it would judge them"


def _environments(a: samples.CellSamples, b: samples.CellSamples) -> str:
    one, other = (entry.records[-1].get("environment", {}).get("checked", {}) for entry in (a, b))
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            return (
                f"records cannot be compared: {key} is {one.get(key)!r} for {a.cell.framework} and {other.get(key)!r} "
                f"for {b.cell.framework}; run both again under the same {key}"
            )
    return ""


def _no_time(entry: samples.CellSamples) -> str:
    if entry.timed:
        return ""
    why = [text for text in (entry.status, entry.reason) if text not in ("ok", "")]
    return f"{entry.cell.framework} has no time: {': '.join(why) or 'no samples'}"


def _apart(a: samples.CellSamples, b: samples.CellSamples) -> str:
    return "" if samples.common_launches(a, b) else "no launch measured both"


def refusals(found: Mapping[str, samples.CellSamples]) -> list[str]:
    """Comparisons that look possible and are none: the same work over unlike transports, one sentence for each kind."""
    said: dict[tuple[str, str], dict[str, None]] = {}
    timed = [entry for entry in found.values() if entry.timed]
    groups: dict[tuple[str, int], list[samples.CellSamples]] = {}
    for entry in timed:
        groups.setdefault((entry.cell.series, entry.cell.size_bytes), []).append(entry)
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            if a.cell.transport != b.cell.transport:
                first, second = sorted((a, b), key=lambda entry: entry.cell.transport)
                who = f"{first.cell.framework} and {second.cell.framework}"
                said.setdefault((first.cell.transport, second.cell.transport), {})[who] = None
    return [f"{unlike_transports(*pair)} ({_listed(who)})" for pair, who in said.items()]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
