"""Time lines of traced steps: where compute ran, where communication, both at once, or neither. Interval algebra only.

A profiler gives spans: on several threads, one inside the other, across the borders of steps. Here a kind's spans are
united first, so that what is nested or parallel counts once, and cut at the borders of each step. Then, for every step,

    length = compute only + communication only + both (overlap) + neither (idle)

Communication that no compute covers is what the step pays for it: it is exposed. Clocks of different ranks are never
compared: each rank's spans and windows are on its own clock.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xlacompare.core import estimates, intervals, pairs

COMPUTE, COMMUNICATION = "compute", "communication"
KINDS = (COMPUTE, COMMUNICATION)
# What a step is made of, in the order of a table: name -> in words.
PARTS = {
    "compute_only_s": "compute alone",
    "overlap_s": "compute and communication at once",
    "exposed_s": "communication alone (exposed)",
    "idle_s": "neither (host, dispatch, waiting)",
}


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that a rank did.

    Attributes:
      start_s, end_s: On the rank's clock.
      kind: "compute" or "communication".
      name: The profiler's name for it; decides nothing.
      operation: Type of the operation, by which `kind` was decided ("all-reduce", "fusion", "aten::mm").
      rank: Global rank.
      counted: False for what is left of an operation behind a hole in it: its begin has been counted.
    """

    start_s: float
    end_s: float
    kind: str
    name: str
    operation: str
    rank: int
    counted: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: a span is one of {', '.join(KINDS)}, not {self.kind!r}")
        if not self.start_s <= self.end_s:
            raise ValueError(f"{self.name} ends before it starts: {self.start_s} to {self.end_s} s")


@dataclasses.dataclass(frozen=True)
class Window:
    """When a rank was in a step: from its marker's begin to its end."""

    step: int
    rank: int
    start_s: float
    end_s: float


@dataclasses.dataclass
class Trace:
    """The traced steps of one process.

    Attributes:
      windows: One per step and rank.
      spans: Of the ranks of this process, in any order; also outside of windows.
      files: Raw traces that were kept, for Perfetto or XProf.
      notes: What this profiler does not see here, in words.
    """

    windows: list[Window]
    spans: list[Span]
    files: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Operation:
    """Of one type of operation in one step.

    Attributes:
      kind: "compute" or "communication".
      count: Operations that began in the step.
      seconds: In which at least one of them was going on.
    """

    kind: str
    count: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Totals:
    """One step of one rank, in seconds; the four parts sum to `length_s`."""

    step: int
    rank: int
    length_s: float
    compute_only_s: float
    exposed_s: float
    overlap_s: float
    idle_s: float
    operations: Mapping[str, Operation]

    @property
    def communication_s(self) -> float:
        """In which any communication was going on."""
        return self.exposed_s + self.overlap_s

    @property
    def compute_s(self) -> float:
        """In which any compute was going on."""
        return self.compute_only_s + self.overlap_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Totals:
        """Inverse of `to_dict`, also after JSON."""
        found = {name: Operation(**entry) for name, entry in values["operations"].items()}
        return cls(**{**values, "operations": found})


def totals(trace: Trace) -> list[Totals]:
    """Every step of every rank, in the order of `windows`.

    Raises:
      ValueError: Windows of one rank overlap (a moment would count in two steps), or an operation is of both kinds.
    """
    _check(trace.windows)
    by_rank = {window.rank: _Rank(window.rank, trace.spans) for window in trace.windows}
    return [by_rank[window.rank].totals(window) for window in trace.windows]


def _check(windows: Iterable[Window]) -> None:
    ends: dict[int, float] = {}
    for window in sorted(windows, key=lambda window: (window.rank, window.start_s)):
        if window.start_s < ends.get(window.rank, window.start_s):
            raise ValueError(f"step {window.step} of rank {window.rank} begins before the step before it ended")
        ends[window.rank] = window.end_s


class _Rank:
    """One rank's spans, united by kind and by operation once for all steps."""

    def __init__(self, rank: int, spans: Iterable[Span]) -> None:
        self.kinds = {kind: [] for kind in KINDS}  # type: dict[str, intervals.Intervals]
        self.operations: dict[str, tuple[str, list[float], intervals.Intervals]] = {}
        for span in sorted((span for span in spans if span.rank == rank), key=lambda span: span.start_s):
            self.kinds[span.kind].append((span.start_s, span.end_s))
            kind, starts, parts = self.operations.setdefault(span.operation, (span.kind, [], []))
            if kind != span.kind:
                raise ValueError(f"operation {span.operation!r} is both compute and communication")
            if span.counted:
                starts.append(span.start_s)
            parts.append((span.start_s, span.end_s))
        self.kinds = {kind: intervals.union(parts) for kind, parts in self.kinds.items()}
        self.operations = {
            name: (kind, at, intervals.union(all_)) for name, (kind, at, all_) in self.operations.items()
        }

    def totals(self, window: Window) -> Totals:
        """What lies in a window."""
        inside: intervals.Intervals = [(window.start_s, window.end_s)]
        compute, communication = (intervals.intersection(self.kinds[kind], inside) for kind in KINDS)
        both = intervals.seconds(intervals.intersection(compute, communication))
        alone = intervals.seconds(compute) - both, intervals.seconds(communication) - both
        length = window.end_s - window.start_s
        found = {}
        for name, (kind, starts, parts) in self.operations.items():
            count = bisect.bisect_left(starts, window.end_s) - bisect.bisect_left(starts, window.start_s)
            spent = intervals.seconds(intervals.intersection(parts, inside))
            if count or spent:
                found[name] = Operation(kind, count, spent)
        return Totals(window.step, window.rank, length, *alone, both, length - sum(alone) - both, found)


@dataclasses.dataclass(frozen=True)
class Figures:
    """One rank over its traced steps; every estimate in seconds a step, its interval by t over the steps, with the
    effective number from their lag-1 correlation (`pairs`).

    Attributes:
      length, compute_only, exposed, overlap, idle: Of `Totals`.
      communication: Exposed and overlapped together.
    """

    rank: int
    length: estimates.Estimate
    compute_only: estimates.Estimate
    exposed: estimates.Estimate
    overlap: estimates.Estimate
    idle: estimates.Estimate
    communication: estimates.Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return dataclasses.asdict(self)


def figures(steps: Sequence[Totals], level: float = 0.95) -> list[Figures]:
    """Means over the steps of each rank, in the order of ranks. One step has no spread: its intervals are unbounded.

    The units are steps of one launch: the intervals know nothing of the spread between launches.
    """
    return [_figures([step for step in steps if step.rank == rank], level) for rank in sorted({s.rank for s in steps})]


def _figures(steps: Sequence[Totals], level: float) -> Figures:
    def over(name: str) -> estimates.Estimate:
        values = [getattr(step, name) for step in steps]
        found = pairs.block_pair_interval(values, [0.0] * len(values), level, "linear")
        return dataclasses.replace(found, method="t over traced steps")

    return Figures(
        rank=steps[0].rank,
        length=over("length_s"),
        compute_only=over("compute_only_s"),
        exposed=over("exposed_s"),
        overlap=over("overlap_s"),
        idle=over("idle_s"),
        communication=over("communication_s"),
    )


@dataclasses.dataclass(frozen=True)
class Mean:
    """One type of operation over steps: its kind, and how often and how many seconds a step on the average."""

    operation: str
    kind: str
    count: float
    seconds: float


def by_operation(steps: Sequence[Totals]) -> list[Mean]:
    """Types of operation over steps (of one rank), communication first, then the longest first.

    Seconds of different types overlap where one operation holds another, and need not add up.
    """
    kinds = {name: found.kind for step in steps for name, found in step.operations.items()}
    none = Operation("", 0, 0.0)
    made = []
    for name, kind in kinds.items():
        found = [step.operations.get(name, none) for step in steps]
        count, spent = sum(one.count for one in found), sum(one.seconds for one in found)
        made.append(Mean(name, kind, count / len(steps), spent / len(steps)))
    return sorted(made, key=lambda mean: (mean.kind != COMMUNICATION, -mean.seconds))


def last_to_arrive(ranks: Sequence[Figures]) -> Figures:
    """The rank whose communication is to be set beside the communication arms.

    The arms take the slowest rank: E = T(real) - max over ranks of T(elided). Every rank's step lasts T(real), so E is
    the least exposed communication of any rank: the others' holds their waiting for it as well.
    """
    return min(ranks, key=lambda figure: figure.exposed.mean)


def waiting_s(ranks: Sequence[Figures]) -> dict[int, float]:
    """Seconds a step by rank that it waited for the last to arrive, by their exposed communication."""
    least = last_to_arrive(ranks).exposed.mean
    return {figure.rank: figure.exposed.mean - least for figure in ranks}
