"""Traces beside communication arms: two ways to the same figures, and whether they disagree beyond their intervals.

The arms say what a step costs more because it communicates (E = T(real) - T(elided)), and how much of the wire's time
that leaves hidden (H = W - E). A trace says when communication and compute were seen to run. They answer one question
and can be wrong in different ways: an arm changes the program, a profiler slows it down, and a trace takes time in
which two things ran at once for time saved, also where they slowed each other down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from xlacompare.core import estimates, pairs, timeline, units

Kind = Literal["agree", "disagree", "unknown"]
MARGIN = 0.02  # of a step of `real`: a difference that lies inside is called negligible
EXPOSED, HIDDEN = "exposed communication", "hidden communication"
# (figure, whether the trace has more) -> the usual cause.
CAUSES = {
    (EXPOSED, True): "the profiler delays communication, or the elided arm computes more slowly than the real one",
    (EXPOSED, False): (
        "communication slows down the compute beside it, or work that only communicating steps do (packing, dispatch) "
        "is compute or idle time in the trace"
    ),
    (HIDDEN, True): "compute and communication run at once and slow each other down: less is saved than overlaps",
    (HIDDEN, False): "the collectives take longer alone than beside compute, so that the arms count more as hidden",
}


@dataclasses.dataclass(frozen=True)
class Opinion:
    """One figure, from both.

    Attributes:
      figure: `EXPOSED` or `HIDDEN`.
      trace: Seconds a step: communication that no compute covers, or that some does.
      arms: Seconds a step: E or H.
      difference: Trace minus arms.
      kind: "disagree": the interval of the difference excludes 0; "unknown": one side's spread is not known.
      negligible: Whether that interval lies within `MARGIN` of a step.
    """

    figure: str
    trace: estimates.Estimate
    arms: estimates.Estimate
    difference: estimates.Estimate
    kind: Kind
    negligible: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class SecondOpinion:
    """A cell's traces beside its arms.

    Attributes:
      opinions: Of the figures that the arms have.
      slowdown: Length of a traced step by that of an untraced one of `real`; a traced step has a fence of its own.
      ranks: Figures of every rank, over the launches.
      operations: Types of operation of the rank that is compared, over all traced steps.
      notes: What the profilers do not see, in words.
    """

    opinions: tuple[Opinion, ...]
    slowdown: float
    ranks: tuple[timeline.Figures, ...]
    operations: tuple[timeline.Mean, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def disagrees(self) -> bool:
        """Whether any figure does, by more than what is negligible."""
        return any(opinion.kind == "disagree" and not opinion.negligible for opinion in self.opinions)


def compare(
    traced: Sequence[Sequence[timeline.Totals]],
    exposed: estimates.Estimate | None,
    hidden: estimates.Estimate | None,
    real_s: float,
    notes: Sequence[str] = (),
    level: float = 0.95,
) -> SecondOpinion:
    """Sets one cell's traces beside its arms.

    Args:
      traced: Of each launch that was traced, the steps of all ranks.
      exposed: E of the arms in seconds a step, None where it was withheld or not measured.
      hidden: H likewise.
      real_s: Seconds of an untraced step of `real`.
      notes: What the profilers said that they do not see.
      level: Two-sided level of every interval.
    """
    ranks = over_launches(traced, level)
    last = timeline.last_to_arrive(ranks)
    sides = ((EXPOSED, last.exposed, exposed), (HIDDEN, last.overlap, hidden))
    opinions = [_opinion(name, trace, arms, real_s, level) for name, trace, arms in sides if arms is not None]
    slowdown = max(figures.length.mean for figures in ranks) / real_s
    operations = timeline.by_operation([step for steps in traced for step in steps if step.rank == last.rank])
    return SecondOpinion(tuple(opinions), slowdown, tuple(ranks), tuple(operations), tuple(dict.fromkeys(notes)))


def over_launches(traced: Sequence[Sequence[timeline.Totals]], level: float = 0.95) -> list[timeline.Figures]:
    """Figures of each rank, pooled over launches as effects are (`pairs.pool`).

    Raises:
      ValueError: Nothing was traced.
    """
    if not traced or not all(traced):
        raise ValueError("no traced step")
    made = [timeline.figures(steps, level) for steps in traced]
    names = [field.name for field in dataclasses.fields(timeline.Figures) if field.name != "rank"]
    found = []
    for same in zip(*made, strict=True):
        pooled = {name: pairs.pool([getattr(figures, name) for figures in same], level) for name in names}
        found.append(timeline.Figures(rank=same[0].rank, **pooled))
    return found


def _opinion(figure: str, trace: estimates.Estimate, arms: estimates.Estimate, real_s: float, level: float) -> Opinion:
    difference = estimates.combine([(1, trace), (-1, arms)], level)
    kind: Kind = "agree" if difference.low <= 0 <= difference.high else "disagree"
    if difference.df <= 0:
        kind = "unknown"
    bound = MARGIN * real_s
    negligible = difference.df > 0 and -bound < difference.low and difference.high < bound
    return Opinion(figure, trace, arms, difference, kind, negligible)


def sentence(opinion: Opinion) -> str:
    """For the report: what both say, whether they disagree, by how much, and the usual cause."""
    both = f"{opinion.figure}: {_interval(opinion.trace)} by the trace, {_interval(opinion.arms)} by the arms"
    if opinion.kind == "unknown":
        return f"{both}; not compared: a spread takes at least two traced steps and two visits"
    if opinion.kind == "agree":
        largest = units.format_duration(max(abs(opinion.difference.low), abs(opinion.difference.high)))
        return f"{both}; they agree (no difference larger than {largest} is compatible with both)"
    more = opinion.difference.mean > 0
    by = f"the trace has {_interval(_positive(opinion.difference))} {'more' if more else 'less'}"
    if opinion.negligible:
        return f"{both}; {by} (negligible: within {units.format_percent(MARGIN)} of a step)"
    return f"{both}; they DISAGREE: {by}; usual cause: {CAUSES[opinion.figure, more]}"


def _positive(difference: estimates.Estimate) -> estimates.Estimate:
    return difference if difference.mean > 0 else difference.inverse()


def _interval(estimate: estimates.Estimate) -> str:
    return units.format_duration_interval(estimate.mean, estimate.low, estimate.high)


def remarks(found: SecondOpinion) -> list[str]:
    """What must be known to read the sentences."""
    waits = timeline.waiting_s(found.ranks)
    waiting = "; ".join(f"rank {rank} {units.format_duration(seconds)}" for rank, seconds in waits.items())
    rank = timeline.last_to_arrive(found.ranks).rank
    return [
        f"traced steps took {found.slowdown:.2f}x an untraced one (each has a fence of its own)",
        f"compared is rank {rank}, for which the others wait; waiting in a traced step: {waiting}",
        *found.notes,
    ]


def sentences(found: SecondOpinion) -> list[str]:
    """All that is to be said."""
    return [*map(sentence, found.opinions), *remarks(found)]
