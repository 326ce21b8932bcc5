"""Framework against framework over several ranks: the ratio of their real steps, and its difference in bars.

The launch is the unit: what a framework took in a launch is its mean over the visits. For each side
T(real) = compute + imbalance + exposed latency + exposed bytes exactly (`effects`), so that the bars of a pair sum to
T_a - T_b. That they sum is algebra; that a bar is what it is called, planted causes show.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from xlacompare.core import cell as cells
from xlacompare.core import claims, effects, errors, estimates, plan, record, verdict
from xlacompare.core import parallel_results as results
from xlacompare.core import parallel_samples as samples

FAMILY, FAMILY_OF_BARS = "framework pairs", "bars of the pair"
NAMES = {
    effects.EXPOSED_LATENCY: "exposed: waiting, latency",
    effects.EXPOSED_BYTES: "exposed: bytes",
    effects.EXPOSED: "exposed communication",
    effects.IMBALANCE: "imbalance of the ranks",
    effects.COMPUTE: "compute of the fastest rank",
    effects.ELIDED: "compute of the slowest rank",
}


@dataclasses.dataclass(frozen=True)
class Side:
    """One framework's world and what is known of it.

    Attributes:
      world: Its records.
      launches: Launch -> arms.
      effects: Variant -> its effects, for what is withheld.
    """

    world: samples.World
    launches: Mapping[int, effects.Launch]
    effects: Mapping[str, Sequence[claims.Effect]]


def pairs(sides: Sequence[Side], chosen: plan.Plan) -> list[results.Pair]:
    """Every pair of frameworks (or of modes) on one comparison, variant by variant; verdicts adjusted by Holm."""
    made = []
    for a, b in itertools.combinations(sides, 2):
        if a.world.comparison == b.world.comparison:
            made += [compare(a, b, *variants, chosen) for variants in _variants(a.world, b.world)]
    judged = [pair.verdict for pair in made if pair.verdict is not None]
    after = iter(verdict.holm(judged, FAMILY))
    return [pair if pair.verdict is None else dataclasses.replace(pair, verdict=next(after)) for pair in made]


def _variants(a: samples.World, b: samples.World) -> Iterator[tuple[str, str]]:
    """Matched variants of the same name; where there is none, the first of each side."""
    mine, other = ([v for v in world.variants if _real(world, v) and matched(world, v)] for world in (a, b))
    both = [v for v in mine if v in other]
    yield from ((v, v) for v in both)
    if not both and mine and other:
        yield mine[0], other[0]


def matched(world: samples.World, variant: str) -> bool:
    """Whether a variant has the matched settings, without anything planted."""
    return any(arm.cell.label == "matched" for key, arm in world.arms.items() if key[0] == variant)


def _real(world: samples.World, variant: str) -> bool:
    arm = world.arms.get((variant, effects.REAL))
    return arm is not None and arm.status != "unsupported"


def compare(a: Side, b: Side, of_a: str, of_b: str, chosen: plan.Plan) -> results.Pair:
    """Variant `of_a` of side a against `of_b` of b; the slower side first in the result."""
    cell_a, cell_b = (side.world.arms[v, effects.REAL].cell for side, v in ((a, of_a), (b, of_b)))
    if problem := _no_time(a, of_a) or _no_time(b, of_b) or _environments(a, b, of_a, of_b):
        return results.Pair(cell_a, cell_b, of_a, problem=problem)
    times = [_values(side, {(v, effects.REAL): 1}) for side, v in ((a, of_a), (b, of_b))]
    if np.mean(list(times[0].values())) < np.mean(list(times[1].values())):
        return compare(b, a, of_b, of_a, chosen)
    ratio = difference(times[0], times[1], chosen.level, "log")
    if ratio is None:
        return results.Pair(cell_a, cell_b, of_a, problem="no launch measured both")
    judged = verdict.judge(ratio, chosen)
    if not chosen.is_look(ratio.n):  # an interrupted run: nothing is tested between looks
        judged = verdict.untested(judged, chosen.next_look(ratio.n))
    total, bars, why = split(a, b, of_a, of_b, chosen)
    notes = [] if of_a == of_b else [f"{cell_a.framework} {of_a} against {cell_b.framework} {of_b}: no arm in common"]
    if cell_a.mode != cell_b.mode:
        notes.append(f"{cell_a.framework} in mode {cell_a.mode}, {cell_b.framework} in mode {cell_b.mode}")
    whole = total or difference(times[0], times[1], chosen.level, "linear")
    return results.Pair(cell_a, cell_b, of_a, judged, whole, bars, no_bars=why, notes=notes)


def _no_time(side: Side, variant: str) -> str:
    arm = side.world.arms[variant, effects.REAL]
    if arm.timed and _values(side, {arm.key: 1}):
        return ""
    said = [text for text in (arm.status, arm.reason) if text not in ("ok", "")]
    return f"{arm.cell.framework}/{variant}/{effects.REAL} has no time: {': '.join(said) or 'no samples'}"


def _environments(a: Side, b: Side, of_a: str, of_b: str) -> str:
    one, other = (side.world.arms[v, effects.REAL].records[-1] for side, v in ((a, of_a), (b, of_b)))
    if not all((side.get("environment") or {}).get("checked") for side in (one, other)):
        return ""  # records made by hand
    try:
        record.check_comparable(one, other)
    except errors.RecordError as error:
        return str(error)
    return ""


def _values(side: Side, combination: effects.Terms) -> dict[int, float]:
    """Launch -> mean over visits of a combination, for the launches that have its arms."""
    known = {n: launch for n, launch in side.launches.items() if effects.having([launch], combination)}
    return {n: float(effects.series(launch, combination).mean()) for n, launch in known.items()}


def difference(
    a: Mapping[int, float], b: Mapping[int, float], level: float, scale: estimates.Scale
) -> estimates.Estimate | None:
    """a - b or a / b: paired where launches ran side by side (the same numbers), else Welch; None with no launch."""
    both = sorted(set(a) & set(b))
    if len(both) < 2 and min(len(a), len(b)) > 1:
        return estimates.welch(list(a.values()), list(b.values()), level, scale)
    if not both:
        return None
    return estimates.paired_t([a[n] for n in both], [b[n] for n in both], level, scale)


def split(
    a: Side, b: Side, of_a: str, of_b: str, chosen: plan.Plan
) -> tuple[estimates.Estimate | None, list[results.Bar], str]:
    """T_a - T_b of the launches that have all arms, its bars, and why there are none."""
    sides = [_with_fastest(side, v) for side, v in ((a, of_a), (b, of_b))]
    for side, v in zip(sides, (of_a, of_b), strict=True):
        exposed = next(entry for entry in side.effects[v] if entry.name == effects.EXPOSED)
        if exposed.estimate is None:
            return None, [], f"{side.world.framework} {v}: {exposed.reason}"
    names = _terms(sides, (of_a, of_b))
    keys = [[key for name in names for key in _definition(name, v)] for v in (of_a, of_b)]
    kept = [
        dataclasses.replace(side, launches={n: x for n, x in side.launches.items() if effects.having([x], wanted)})
        for side, wanted in zip(sides, keys, strict=True)
    ]

    def of(combinations: Sequence[effects.Terms]) -> estimates.Estimate | None:
        one, other = (_values(side, c) for side, c in zip(kept, combinations, strict=True))
        return difference(one, other, chosen.level, "linear")

    total = of([{(v, effects.REAL): 1} for v in (of_a, of_b)])
    terms = {name: of([_definition(name, v) for v in (of_a, of_b)]) for name in names}
    found = {name: term for name, term in terms.items() if term is not None}
    if total is None or len(found) < len(names):
        return None, [], "no launch has all the arms on both sides"
    step_s = float(np.mean(list(_values(kept[0], {(of_a, effects.REAL): 1}).values())))
    judged = [verdict.judge(term, chosen, chosen.margin * step_s) for term in found.values()]
    if not chosen.is_look(total.n):
        judged = [verdict.untested(entry, chosen.next_look(total.n)) for entry in judged]
    adjusted = verdict.holm(judged, FAMILY_OF_BARS)
    bars = [results.Bar(NAMES[name], found[name], entry) for name, entry in zip(found, adjusted, strict=True)]
    return total, bars, ""


def _with_fastest(side: Side, variant: str) -> Side:
    numbers = list(side.launches)
    made = effects.with_fastest([side.launches[n] for n in numbers], [variant])
    return dataclasses.replace(side, launches=dict(zip(numbers, made, strict=True)))


def _definition(name: str, variant: str) -> dict[effects.Key, float]:
    return {(variant, effects.ELIDED): 1.0} if name == effects.ELIDED else effects.terms(name, variant)


def _terms(sides: Sequence[Side], variants: Sequence[str]) -> list[str]:
    """The finest terms that both sides have."""

    def both(arm: str) -> bool:
        known = zip(sides, variants, strict=True)
        return all(effects.having(list(side.launches.values()), [(v, arm)]) for side, v in known)

    exposed = [effects.EXPOSED_LATENCY, effects.EXPOSED_BYTES] if both(effects.TOKEN) else [effects.EXPOSED]
    compute = [effects.IMBALANCE, effects.COMPUTE] if both(effects.FASTEST) else [effects.ELIDED]
    return exposed + compute


def refusals(sides: Sequence[Side]) -> list[str]:
    """Frameworks that ran the same workload and have no comparison in common: what is unlike, one sentence each."""
    made = []
    timed = [side for side in sides if any(arm.timed for arm in side.world.arms.values())]
    for a, b in itertools.combinations(timed, 2):
        one, other = (next(iter(side.world.arms.values())).cell for side in (a, b))
        names = (one.framework, other.framework)
        shared = {_of(s).comparison for s in timed if _of(s).framework == names[0]} & {
            _of(s).comparison for s in timed if _of(s).framework == names[1]
        }
        if names[0] != names[1] and not shared:
            made.append(f"no ratio of {names[0]} and {names[1]}: {_unlike(one, other)}")
    return list(dict.fromkeys(made))


def _of(side: Side) -> cells.Cell:
    return next(iter(side.world.arms.values())).cell


def _unlike(one: cells.Cell, other: cells.Cell) -> str:
    words = {"strategy": "strategies", "mesh": "ranks", "transport": "transports", "dtype": "dtypes"}
    found = []
    for name, word in {**words, "workload": "workloads", "batch_size": "batch sizes"}.items():
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            shown = ["x".join(map(str, value)) if name == "mesh" else str(value) for value in (mine, theirs)]
            found.append(f"unlike {word} ({shown[0]} and {shown[1]})")
    return ", ".join(found) or "unlike work"
