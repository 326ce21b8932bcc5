"""What the analysis of a parallel run says, as plain dataclasses: what reports read."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import claims, estimates, findings, second_opinion, verdict


@dataclasses.dataclass(frozen=True)
class ArmResult:
    """One communication arm of one variant, over its launches.

    Attributes:
      variant: Compiler arm, with its label where that is not the matched one.
      status, reason: `ok`, or why there is no time.
      time: Mean seconds a step with positive ends, the slowest rank's: t over launches; over visits where there is one
        launch. None without a time.
      dispatch_share: Time until dispatch returned over step time; None where it was not recorded.
      census: "ops" (`core.census.LoweredCollective` as dicts), "wire_bytes", "findings"; {} where the record has none.
      gate: What the gate said; {} where it did not run.
      num_launches, num_visits, num_blocks, num_disturbed, num_compiled: Counts; visits are those that are used.
      num_disturbed_used: Disturbed visits among `num_visits`: launches that had too few others.
      oversubscribed: More ranks than cores.
    """

    cell: cells.Cell
    variant: str
    status: str
    reason: str
    time: estimates.Estimate | None = None
    dispatch_share: float | None = None
    census: dict[str, Any] = dataclasses.field(default_factory=dict)
    gate: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_launches: int = 0
    num_visits: int = 0
    num_blocks: int = 0
    num_disturbed: int = 0
    num_disturbed_used: int = 0
    num_compiled: int = 0
    oversubscribed: bool = False


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the traces of a variant's `real` say.

    Attributes:
      opinion: Their figures beside those of the arms; None: see `reasons`.
      folders: Where the raw traces are, by launch.
      reasons: Why there are none, or none of a launch.
    """

    opinion: second_opinion.SecondOpinion | None
    folders: tuple[str, ...]
    reasons: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FrameworkEffects:
    """The effects of one framework on one comparison.

    Attributes:
      cell: Of one of its arms: framework, workload, strategy, mesh, transport and mode are those of all.
      effects: Of all variants, and of variants against each other, with their verdicts.
      waiting: Variant -> what each rank has less to do than the slowest one, seconds a step, [ranks].
      fastest: Variant -> the rank whose time is called compute.
      traced: Variant -> a second opinion from traces, where some were made.
    """

    cell: cells.Cell
    effects: list[claims.Effect]
    waiting: dict[str, list[estimates.Estimate]]
    fastest: dict[str, int]
    traced: dict[str, Traced] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Bar:
    """One term of the gap between two frameworks, seconds a step; positive: a is slower by it."""

    name: str
    seconds: estimates.Estimate
    verdict: verdict.Verdict


@dataclasses.dataclass(frozen=True)
class Pair:
    """Framework a against b under one variant: the ratio of their real steps, and its difference in bars.

    Attributes:
      verdict: On time(a) / time(b), scale "log"; None: see `problem`.
      total: T_a - T_b over launches; of the launches that have all bars where there are any, so that they add up.
      bars: Add up to `total` exactly; [] where an arm is missing or a check withholds them: `no_bars` says why.
      notes: One sentence each.
    """

    a: cells.Cell
    b: cells.Cell
    variant: str
    verdict: verdict.Verdict | None = None
    total: estimates.Estimate | None = None
    bars: list[Bar] = dataclasses.field(default_factory=list)
    problem: str = ""
    no_bars: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ParallelSummary:
    """A parallel run, analysed.

    Attributes:
      ending: "complete", "interrupted", "error", or "" when the run never said (killed).
      arms: Every cell.
      frameworks: Effects within each framework.
      pairs: Between frameworks, the slower one first.
      refusals: Comparisons that look possible and are none, with the reason.
      findings: Pathologies with their evidence.
    """

    config: dict[str, Any]
    machine: dict[str, Any]
    plan: dict[str, Any] | None
    ending: str
    times: dict[str, float]
    arms: list[ArmResult]
    frameworks: list[FrameworkEffects]
    pairs: list[Pair]
    refusals: list[str]
    findings: list[findings.Finding]
    problems: list[str]
