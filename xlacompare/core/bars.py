"""The gap between two frameworks by the 2x2 of programs and runtimes. That the bars add up is algebra, not evidence.

K(p, r) is the time of framework p's program in framework r's runtime (its XLA build under its client), replayed with
its inputs ready: no Python, no tracing. For frameworks a and b, launch by launch:

  host       = [T_a - K(a, a)] - [T_b - K(b, b)]
  lowering   = mean of the program differences: 1/2 [K(a, a) - K(b, a)] + 1/2 [K(a, b) - K(b, b)]
  XLA build  = mean of the runtime differences: 1/2 [K(a, a) - K(a, b)] + 1/2 [K(b, a) - K(b, b)]
  fit        = half the difference of the program differences: 1/2 [K(a, a) - K(b, a)] - 1/2 [K(a, b) - K(b, b)]

K(b, a) and K(a, b) stand in lowering and XLA build with opposite signs, so lowering + XLA build = K(a, a) - K(b, b) and
host + lowering + XLA build = T_a - T_b exactly: the means use up the difference, and their interaction, the fit
("program fits runtime"), is a bar of its own beside the sum. It says how far one split can be trusted: a's program
costs lowering + fit more than b's in a's runtime, lowering - fit in b's (main effects and interaction of a 2x2
factorial design; Box, Hunter and Hunter 2005, chapter 5). A form with an interaction as a summand exists (both
differences taken at one corner, the rest is the interaction), but it depends on which framework is called the base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import cell as cells
from xlacompare.core import estimates, results, samples

# The fit against the lowering bar: above this share the report says that the split depends on the runtime.
MAX_FIT = 0.5
MOST = 3  # operations that are named behind a lowering bar
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
    pair: results.Comparison,
    found: Mapping[str, samples.CellSamples],
    replays: Mapping[str, samples.CellSamples],
    records: Sequence[Mapping[str, Any]],
) -> results.Gap | None:
    """T_a - T_b as host, lowering and XLA build; None where the replays are not all there (`problems` says why).

    `records`: of kind "operations", see `costliest`.
    """
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
        *costliest(pair, float(terms[LOWERING].mean()), records),
    )


def costliest(
    pair: results.Comparison, lowering_s: float, records: Sequence[Mapping[str, Any]]
) -> tuple[list[str], str]:
    """The operations that cost most behind a lowering bar, and where that comes from.

    Measured: those whose times in the two programs differ most in the bar's direction, in one client. Estimated: those
    of the diff with the most FLOPs, then bytes at stake, on the side that is slower by the bar.
    """
    found = next((r for r in records if (r["a"], r["b"]) == (pair.a.to_dict(), pair.b.to_dict())), None)
    turned = found is None
    if turned:
        found = next((r for r in records if (r["b"], r["a"]) == (pair.a.to_dict(), pair.b.to_dict())), None)
    if found is None:
        return [], ""
    sign = 1 if lowering_s >= 0 else -1
    here, there = (1, 0) if turned else (0, 1)
    if "problem" in found:
        return [], ""
    if found["measured"]:
        ranked = [(sign * (e["seconds"][here] - e["seconds"][there]), e) for e in found["entries"]]
        chosen = [entry for seconds, entry in sorted(ranked, key=lambda item: -item[0])[:MOST] if seconds > 0]
        lines = [_timed_operation(entry, pair, here, there) for entry in chosen]
        return lines, f"measured in {found['client']}"
    return [_estimated_operation(entry) for entry in found["entries"][:MOST]], "estimated, not measured"


def _timed_operation(entry: Mapping[str, Any], pair: results.Comparison, here: int, there: int) -> str:
    sides = [
        f"{1e3 * entry['seconds'][place]:.2g} ms ({entry['count'][place]}) in {cell.framework}'s"
        for place, cell in ((here, pair.a), (there, pair.b))
    ]
    return f"{entry['what']}: {', '.join(sides)}{_layers(entry)}"


def _estimated_operation(entry: Mapping[str, Any]) -> str:
    stake = f"{entry['flops'] / 1e6:.3g} MFLOP, " if entry["flops"] else ""
    return f"{entry['kind']}: {entry['count']} x {entry['what']}: {stake}{entry['bytes'] / 1e6:.3g} MB{_layers(entry)}"


def _layers(entry: Mapping[str, Any]) -> str:
    return (
        f"  [{', '.join(entry['layers'][:2])}{', ...' if len(entry['layers']) > 2 else ''}]" if entry["layers"] else ""
    )


def notes(a: str, b: str, times: Square) -> list[str]:
    """The replays themselves, and whether the split depends on the runtime."""
    ms = {name: 1e3 * float(getattr(times, name).mean()) for name in ("aa", "ab", "ba", "bb")}
    said = f"program of {a} in {a}'s XLA {ms['aa']:.3g}, in {b}'s {ms['ab']:.3g}"
    made = [f"replays, ms: {said}; program of {b} in {a}'s XLA {ms['ba']:.3g}, in {b}'s {ms['bb']:.3g}"]
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
