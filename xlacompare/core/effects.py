"""Effects of communication and of the compiler: linear combinations of arms, visit by visit (DESIGN 2).

All arms of a framework are visited in turn: visit i of every arm lies next to visit i of the others, so that what the
machine does slowly cancels in a difference. An effect is evaluated on each visit; in one launch its interval is a t
over visits with the effective number from their lag-1 correlation (`pairs`), of several launches a t over their means.
Nothing here knows a record.

For a variant c (a compiler arm under one label), T(c, m) being the time under communication arm m:

  exposed E  = real - elided = [token - elided] (waiting, latency, barrier to fusion) + [real - token] (bytes)
  wire    W  = alone = [alone_token] (latency) + [alone - alone_token] (bytes)
  hidden  H  = W - E = elided + alone - real, which is the saving S of overlap; hidden share S / W
  overlap efficiency = S / min(elided, W): 1 is the best possible, 0 is serial, below 0 overlap costs more than it gains
  closure    = serial - elided - alone, which must include 0 before any hidden time is claimed
  contention = real - serial

`real` is the slowest rank's time, and so is `elided`; in `elided` no rank waits for another, so that there
elided = [compute: the fastest rank's time] + [imbalance: what the others need beyond it]. The fastest rank is the one
with the least mean over all launches, one for all of them: the least of every single block would be an order statistic
that falls with the noise, and a rank made slower would move it. A slower rank moves imbalance alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from xlacompare.core import estimates, pairs

Values = estimates.Values
Key = tuple[str, str]  # (variant, communication arm)
Terms = Mapping[Key, float]

REAL, ELIDED, TOKEN, SERIAL, ALONE, ALONE_TOKEN = "real", "elided", "token", "serial", "alone", "alone_token"
FASTEST = "elided, fastest rank"  # no arm of its own: the times of one rank in `elided`

EXPOSED, EXPOSED_LATENCY, EXPOSED_BYTES = "exposed", "exposed_latency", "exposed_bytes"
WIRE, WIRE_LATENCY, WIRE_BYTES = "wire", "wire_latency", "wire_bytes"
HIDDEN, SHARE, EFFICIENCY = "hidden", "hidden_share", "overlap_efficiency"
CLOSURE, CONTENTION = "closure", "contention"
COMPUTE, IMBALANCE = "compute", "imbalance"

# Effect -> the arms that it is made of, for one variant.
DEFINITIONS: dict[str, dict[str, float]] = {
    EXPOSED: {REAL: 1, ELIDED: -1},
    EXPOSED_LATENCY: {TOKEN: 1, ELIDED: -1},
    EXPOSED_BYTES: {REAL: 1, TOKEN: -1},
    WIRE: {ALONE: 1},
    WIRE_LATENCY: {ALONE_TOKEN: 1},
    WIRE_BYTES: {ALONE: 1, ALONE_TOKEN: -1},
    HIDDEN: {ELIDED: 1, ALONE: 1, REAL: -1},
    CLOSURE: {SERIAL: 1, ELIDED: -1, ALONE: -1},
    CONTENTION: {REAL: 1, SERIAL: -1},
    COMPUTE: {FASTEST: 1},
    IMBALANCE: {ELIDED: 1, FASTEST: -1},
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """The arms of one framework in one launch.

    Attributes:
      arms: Seconds a step by visit, [visits], the slowest rank's; the same visits in every arm, blocks of one visit
        and arm averaged.
      ranks: Variant -> the same of every rank in `elided`, [ranks, visits]; none where ranks have no clock of their
        own (one program or one process for all).
      worlds: Arm -> number of the set of processes that it ran in; empty: all in one. What is combined of arms of
        different processes was not visited in turn: it is one value a launch.
    """

    arms: Mapping[Key, Values]
    ranks: Mapping[str, Values] = dataclasses.field(default_factory=dict)
    worlds: Mapping[Key, int] = dataclasses.field(default_factory=dict)


def terms(name: str, variant: str) -> dict[Key, float]:
    """The definition of an effect under one variant."""
    return {(variant, arm): weight for arm, weight in DEFINITIONS[name].items()}


def total(parts: Iterable[tuple[float, Terms]]) -> dict[Key, float]:
    """Weighted sum of combinations; arms that cancel are left out."""
    made: dict[Key, float] = {}
    for factor, part in parts:
        for key, weight in part.items():
            made[key] = made.get(key, 0.0) + factor * weight
    return {key: weight for key, weight in made.items() if weight}


def fastest_rank(launches: Sequence[Launch], variants: Iterable[str]) -> int | None:
    """The rank with the least time in `elided` over all launches and variants; None without clocks of their own."""
    chosen = list(variants)
    known = [launch.ranks[v].mean(axis=1) for launch in launches for v in chosen if v in launch.ranks]
    return int(np.argmin(np.mean(known, axis=0))) if known and known[0].size > 1 else None


def with_fastest(launches: Sequence[Launch], variants: Iterable[str]) -> list[Launch]:
    """The same with the times of the fastest rank as one more series of each variant: one rank for all of them.

    A change between two variants needs the same rank on both sides; else noise would choose, and be taken for compute.
    """
    chosen = list(variants)
    rank, made = fastest_rank(launches, chosen), []
    for launch in launches:
        more = {(v, FASTEST): launch.ranks[v][rank] for v in chosen if rank is not None and v in launch.ranks}
        of_elided = {key: launch.worlds.get((key[0], ELIDED), 0) for key in more} if launch.worlds else {}
        made.append(dataclasses.replace(launch, arms={**launch.arms, **more}, worlds={**launch.worlds, **of_elided}))
    return made


def having(launches: Sequence[Launch], keys: Iterable[Key]) -> list[Launch]:
    """The launches that have all of these arms."""
    wanted = list(keys)
    return [launch for launch in launches if all(key in launch.arms for key in wanted)]


def series(launch: Launch, combination: Terms) -> Values:
    """A combination visit by visit, [visits]; one value, of the means, where its arms were not visited in turn."""
    chosen = {key: launch.arms[key] for key in combination}
    if len({launch.worlds.get(key, 0) for key in combination}) > 1:
        chosen = {key: values.mean(keepdims=True) for key, values in chosen.items()}
    return np.asarray(sum(weight * chosen[key] for key, weight in combination.items()), dtype=np.float64)


def over_visits(values: Values, level: float = 0.95) -> estimates.Estimate:
    """Mean of a series with its interval."""
    found = pairs.block_pair_interval(values, np.zeros_like(values), level, "linear")
    return dataclasses.replace(found, method="t over visits")


def pooled(many: Sequence[Values], level: float = 0.95) -> estimates.Estimate:
    """Mean over launches of the mean over visits; `many` has the series of each launch.

    One launch: over its visits, and it speaks for that launch. Several: t over the launches' means, which is exact
    whatever the visits are like. (The wider of the two, as `pairs.pool` takes it, covered in 97.5-100% at two to six
    launches of 12 visits, with intervals 1.1-2.2 times as wide; the t in 92.5-97.5%, standard error 1.1%.)
    """
    if len(many) == 1:
        return over_visits(many[0], level)
    return estimates.t_interval([values.mean() for values in many], level, method=f"t over {len(many)} launches")


def combined(launches: Sequence[Launch], combination: Terms, level: float = 0.95) -> estimates.Estimate | None:
    """A combination in seconds a step; None where no launch has all of its arms."""
    found = [series(launch, combination) for launch in having(launches, combination)]
    return pooled(found, level) if found else None


def effect(launches: Sequence[Launch], name: str, variant: str, level: float = 0.95) -> estimates.Estimate | None:
    """An effect of `DEFINITIONS`."""
    return combined(launches, terms(name, variant), level)


def ratio(launches: Sequence[Launch], above: Terms, below: Terms, level: float = 0.95) -> estimates.Estimate | None:
    """A ratio of two combinations, as a number; None without the arms, or where the interval of `below` reaches 0.

    It is the ratio r of the means, not a mean of ratios; its error by the delta method, from (above - r * below) /
    mean(below) visit by visit (Cochran 1977, section 6). Fieller's interval covers alike
    (`experiments/effect_coverage.py`) and has no standard error.
    """
    chosen = having(launches, [*above, *below])
    if not chosen:
        return None
    tops, bottoms = ([series(launch, part) for launch in chosen] for part in (above, below))
    if not pooled(bottoms, level).low > 0:
        return None
    scale = float(np.mean([bottom.mean() for bottom in bottoms]))
    value = float(np.mean([top.mean() for top in tops])) / scale
    rest = pooled([(top - value * bottom) / scale for top, bottom in zip(tops, bottoms, strict=True)], level)
    method = f"{rest.method}, ratio by the delta method"
    return estimates.estimate(value, rest.se, rest.df, rest.n, level, "linear", method)


def hidden_share(launches: Sequence[Launch], variant: str, level: float = 0.95) -> estimates.Estimate | None:
    """S / W."""
    return ratio(launches, terms(HIDDEN, variant), terms(WIRE, variant), level)


def efficiency(launches: Sequence[Launch], variant: str, level: float = 0.95) -> estimates.Estimate | None:
    """S / min(elided, W); the lesser of the two by their means. Where W's interval reaches 0 there is none."""
    wire, elided = effect(launches, WIRE, variant, level), combined(launches, {(variant, ELIDED): 1}, level)
    if wire is None or elided is None or not wire.low > 0:
        return None
    least = terms(WIRE, variant) if wire.mean <= elided.mean else {(variant, ELIDED): 1.0}
    return ratio(launches, terms(HIDDEN, variant), least, level)


def compiling(before: str, after: str) -> dict[str, dict[Key, float]]:
    """What one compiler arm changes against another: time without communication, and communication.

    The last two add up to the second: E(before) - E(after) = [W(before) - W(after)] + [H(after) - H(before)].
    """
    return {
        "compiler": {(before, ELIDED): 1.0, (after, ELIDED): -1.0},
        "exposed_change": total([(1, terms(EXPOSED, before)), (-1, terms(EXPOSED, after))]),
        "wire_change": total([(1, terms(WIRE, before)), (-1, terms(WIRE, after))]),
        "hidden_change": total([(1, terms(HIDDEN, after)), (-1, terms(HIDDEN, before))]),
    }


def step_ratio(launches: Sequence[Launch], before: str, after: str, level: float = 0.95) -> estimates.Estimate | None:
    """T(before, real) / T(after, real) on the log scale; None where no launch has both."""
    keys = [(before, REAL), (after, REAL)]
    both = [[launch.arms[key] for key in keys] for launch in having(launches, keys)]
    if not both:
        return None
    together = all(len({launch.worlds.get(key, 0) for key in keys}) == 1 for launch in launches)
    if len(both) == 1 and together:
        found = pairs.block_pair_interval(both[0][0], both[0][1], level, "log")
        return dataclasses.replace(found, method="t over visits")
    old, new = ([values[side].mean() for values in both] for side in (0, 1))
    found = estimates.paired_t_log(old, new, level)
    return dataclasses.replace(found, method=f"t over {len(both)} launches")


def changes(before: str, after: str) -> dict[str, dict[Key, float]]:
    """Every effect of one variant minus that of another: what a planted cause moved."""
    return {name: total([(1, terms(name, after)), (-1, terms(name, before))]) for name in DEFINITIONS}


def waiting(launches: Sequence[Launch], variant: str, level: float = 0.95) -> list[estimates.Estimate]:
    """What each rank has less to do than the slowest one, seconds a step: elided - the rank's own time there, [ranks].

    It is what a rank waits where ranks meet once in a block; those that meet in every step wait more, which is part of
    `exposed_latency`. Empty where ranks have no clock of their own.
    """
    known = [launch for launch in having(launches, [(variant, ELIDED)]) if variant in launch.ranks]
    if not known or len(known[0].ranks[variant]) < 2:
        return []
    return [
        pooled([launch.arms[variant, ELIDED] - launch.ranks[variant][rank] for launch in known], level)
        for rank in range(len(known[0].ranks[variant]))
    ]
