"""The bars of a gap between two frameworks. That they add up is algebra, not evidence for a cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import bars, cell_results, estimates, results, samples


def gaps(
    between: Sequence[results.Comparison],
    arm: str,
    found: Mapping[str, samples.CellSamples],
    replays: Mapping[str, samples.CellSamples],
    operations: Sequence[Mapping[str, Any]] = (),
) -> list[results.Gap]:
    """The gaps of the headline pairs, in every way in which they can be split: by programs and runtimes first."""
    pairs = [pair for pair in between if pair.a.compiler == arm and pair.difference is not None]
    split = [
        made
        for pair in pairs
        for made in (bars.by_replays(pair, found, replays, operations), by_threads(pair, found), by_arms(pair, found))
    ]
    return [gap for gap in split if gap is not None]


def by_threads(pair: results.Comparison, found: Mapping[str, samples.CellSamples]) -> results.Gap | None:
    """T_a - T_b as CPU time of the dispatching threads and the rest, where on both sides others do the work.

    With one core a side, what the dispatching thread computes cannot overlap with the work: the two parts are times.
    With more cores some of the host's part may be hidden, and the bar is an upper limit.
    None on a busy machine: what others took would be in the rest, and the larger bar could be theirs.
    """
    a, b = found[pair.a.id], found[pair.b.id]
    if a.busy or b.busy:
        return None
    if not (cell_results.asynchronous(a) and cell_results.asynchronous(b)):
        return None
    launches = samples.common_launches(a, b)
    total, host = (
        np.array([getattr(a.launches[n], name).mean() - getattr(b.launches[n], name).mean() for n in launches])
        for name in ("step_s", "host_s")
    )
    step_s = cell_results.step_time(a).mean
    made = [
        bars.bar(f"host thread: {pair.a.framework} - {pair.b.framework}", host, step_s),
        bars.bar("the rest: programs, kernels, runtime", total - host, step_s),
    ]
    return results.Gap(pair.a, pair.b, estimates.t_interval(total), made, "threads")


def by_arms(pair: results.Comparison, found: Mapping[str, samples.CellSamples]) -> results.Gap | None:
    """T_a - T_b split by the compiler effect of each side, where both eager arms were measured.

    T_a(c) - T_b(c) = [T_a(eager) - T_b(eager)] - [T_a(eager) - T_a(c)] + [T_b(eager) - T_b(c)], launch by launch: the
    bars add up exactly.
    """
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
    made = [bars.bar(name, values, mean_a) for name, values in terms]
    return results.Gap(pair.a, pair.b, estimates.t_interval(a - b), made)
