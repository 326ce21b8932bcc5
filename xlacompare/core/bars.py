"""The gap between two frameworks by the 2x2 of programs and runtimes. That the bars add up is algebra, not evidence.

K(p, r) is the time of framework p's program in framework r's runtime (its XLA build under its client), replayed with its
inputs ready: no Python, no tracing. For frameworks a and b, launch by launch:

  host       = [T_a - K(a, a)] - [T_b - K(b, b)]
  lowering   = mean of the program differences: 1/2 [K(a, a) - K(b, a)] + 1/2 [K(a, b) - K(b, b)]
  XLA build  = mean of the runtime differences: 1/2 [K(a, a) - K(a, b)] + 1/2 [K(b, a) - K(b, b)]
  fit        = half the difference of the program differences: 1/2 [K(a, a) - K(b, a)] - 1/2 [K(a, b) - K(b, b)]

K(b, a) and K(a, b) stand in lowering and XLA build with opposite signs, so lowering + XLA build = K(a, a) - K(b, b) and
host + lowering + XLA build = T_a - T_b exactly. Whatever of K is in neither mean is the fit ("program fits runtime"): the
means have taken it in with weight zero, so it is a bar of its own beside the sum and not in it. It is on the scale of
the others: a's program costs lowering + fit more than b's in a's runtime, lowering - fit in b's (main effects and
interaction of a 2x2 factorial design; Box, Hunter and Hunter 2005, chapter 5). A form with the fit as a summand exists
(both differences taken at one corner), but it depends on which framework is called the base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from xlacompare.core import cell as cells
from xlacompare.core import estimates, results, samples

# The fit against the lowering bar: above this share the report says that the split depends on the runtime.
MAX_FIT = 0.5
HOST, LOWERING, BUILD, FIT, DISPATCH = "host", "lowering", "XLA build and runtime", "program fits runtime", "dispatch"


@dataclasses.dataclass(frozen=True)
class Square:
    """Times of a pair, launch by launch, in seconds: [launches] each.

    Attributes:
      step_a, step_b: T of the frameworks' own steps.
      dispatch_a, dispatch_b: Until their dispatch returned.
      aa, ab, ba, bb: K(program, runtime).
    """

    step_a: samples.Values
    step_b: samples.Values
    dispatch_a: samples.Values
    dispatch_b: samples.Values
    aa: samples.Values
    ab: samples.Values
    ba: samples.Values
    bb: samples.Values

    def terms(self) -> dict[str, samples.Values]:
        """The bars; the first three add up to step_a - step_b."""
        in_a, in_b = self.aa - self.ba, self.ab - self.bb
        return {
            HOST: (self.step_a - self.aa) - (self.step_b - self.bb),
            LOWERING: (in_a + in_b) / 2,
            BUILD: ((self.aa - self.ab) + (self.ba - self.bb)) / 2,
            FIT: (in_a - in_b) / 2,
            DISPATCH: self.dispatch_a - self.dispatch_b,
        }


def replay_of(cell: cells.Cell, program: str) -> cells.Cell:
    """The cell that runs a framework's program in this cell's runtime."""
    return dataclasses.replace(cell, program=program)


def square(
    a: cells.Cell,
    b: cells.Cell,
    found: Mapping[str, samples.CellSamples],
    replays: Mapping[str, samples.CellSamples],
) -> Square | str:
    """The times of a pair; a sentence where one of them is missing, "" where no replays were asked for."""
    corners = [replay_of(r, p.framework) for p, r in ((a, a), (a, b), (b, a), (b, b))]
    present = [replays.get(corner.id) for corner in corners]
    if not any(present):
        return ""
    for corner, entry in zip(corners, present, strict=True):
        if entry is None or not entry.timed:
            status, reason = ("not run", "") if entry is None else (entry.status, entry.reason)
            return f"{corner.program}'s program in {corner.framework}'s XLA: {status}: {reason or 'no samples'}"
    entries = [found[a.id], found[b.id], *(entry for entry in present if entry is not None)]
    launches = sorted(set.intersection(*(set(entry.launches) for entry in entries)))
    if not launches:
        return "no launch measured both steps and all replays"
    means = [np.array([entry.launches[n].mean_s for n in launches]) for entry in entries]
    dispatch = [np.array([entry.launches[n].dispatch_s.mean() for n in launches]) for entry in entries[:2]]
    return Square(means[0], means[1], dispatch[0], dispatch[1], *means[2:])


def by_replays(
    pair: results.Comparison, found: Mapping[str, samples.CellSamples], replays: Mapping[str, samples.CellSamples]
) -> results.Gap | None:
    """T_a - T_b as host, lowering and XLA build; None where the replays are not all there (`problems` says why)."""
    times = square(pair.a, pair.b, found, replays)
    if isinstance(times, str):
        return None
    a, b, terms = pair.a.framework, pair.b.framework, times.terms()
    step_s = float(times.step_a.mean())
    names = {
        HOST: f"host: {a} - {b}, not hidden",
        LOWERING: f"lowering: program of {a} - of {b}",
        BUILD: f"XLA build: runtime of {a} - of {b}",
    }
    beside = {FIT: f"{FIT} (not summed)", DISPATCH: f"dispatch: {a} - {b} (not summed)"}
    return results.Gap(
        pair.a,
        pair.b,
        estimates.t_interval(times.step_a - times.step_b),
        [bar(name, terms[key], step_s) for key, name in names.items()],
        "replays",
        [dataclasses.replace(bar(name, terms[key], step_s), gain=None) for key, name in beside.items()],
        notes(a, b, times),
    )


def notes(a: str, b: str, times: Square) -> list[str]:
    """The replays themselves, and whether the split depends on the runtime."""
    ms = {name: 1e3 * float(getattr(times, name).mean()) for name in ("aa", "ab", "ba", "bb")}
    made = [
        f"replays, ms: program of {a} in {a}'s XLA {ms['aa']:.3g}, in {b}'s {ms['ab']:.3g}; "
        f"program of {b} in {a}'s XLA {ms['ba']:.3g}, in {b}'s {ms['bb']:.3g}"
    ]
    if depends_on_runtime(times):
        made.append(
            f"the split depends on the runtime: {a}'s program costs {ms['aa'] - ms['ba']:+.3g} ms in {a}'s XLA, "
            f"{ms['ab'] - ms['bb']:+.3g} ms in {b}'s"
        )
    return made


def depends_on_runtime(times: Square) -> bool:
    """Whether the fit is there (its interval excludes 0) and is more than half of the lowering bar."""
    terms = times.terms()
    fit = estimates.t_interval(terms[FIT])
    return abs(fit.mean) > MAX_FIT * abs(float(terms[LOWERING].mean())) and not fit.low <= 0 <= fit.high


def problems(
    pairs: Sequence[results.Comparison],
    found: Mapping[str, samples.CellSamples],
    replays: Mapping[str, samples.CellSamples],
) -> list[str]:
    """One sentence for each pair whose bars are not printed though replays were asked for."""
    made = []
    for pair in pairs:
        if pair.difference is None:
            continue
        why = square(pair.a, pair.b, found, replays)
        if isinstance(why, str) and why:
            sides = f"{pair.a.workload}: {pair.a.framework} - {pair.b.framework}"
            made.append(f"{sides}: no bars by program and runtime: {why}")
    return made


def bar(name: str, values: samples.Values, step_s: float) -> results.Bar:
    """A bar with its interval over launches, and its share of the slower step."""
    mean = float(values.mean())
    return results.Bar(name, estimates.t_interval(values), mean / step_s if mean > 0 else None)
