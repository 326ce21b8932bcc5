"""What an analysis says, as plain dataclasses: the only thing that reports read."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import estimates, verdict


@dataclasses.dataclass(frozen=True)
class CellResult:
    """One cell over its launches.

    Attributes:
      status, reason: `ok`, or why there is no time.
      step: Mean seconds a step, with positive ends: t over launches; over the blocks of the launch where there is one.
        None without a time.
      median_s, p90_s, p99_s: Of blocks, seconds a step; p99 only from 1000 blocks.
      dispatch_share: Time until dispatch returned over block time; a call that waits for its work has 100%.
      host_share: CPU time of the dispatching thread over block time.
      pipelining: stepwise - block, in seconds a step: host time that back-to-back dispatch hides.
      bound: "host", "device", "mixed", "synchronous" (the dispatching thread does the work) or "unclear" (the machine
        was busy), see `cell_results.bound`.
      flops_per_s: Formula FLOPs of a step over its mean time.
      memory_bytes, memory_meaning: Largest over launches.
      first_step_s: Seconds of build and first step: {"cold", "disk", "memory"}; None where that state was not reached.
      phases: Of the cold build: trace_s, lower_s, compile_s, or None.
      disk_note: Why there is no "disk" figure.
      break_even_step: Steps after which the compile time has paid for itself against the eager arm; None: never, or no
        eager arm.
      num_launches, num_blocks, num_disturbed, num_compiled: Counts.
      num_disturbed_used: Disturbed blocks among `num_blocks`: launches that had too few others.
      busy: Whether others had the cores during most of what is used, see `samples.CellSamples.busy`.
      fence_ok: Result of the fence self-test.
      facts: flops_per_step, bytes_per_step, parameter_count, synthetic.
      census: Of the first launch: "status" ("ok", "mismatch", or why it was not checked, with "reason"), "source",
        "findings", "seconds", "census" (`core.census.Census` as a dict); {} where the record has none.
    """

    cell: cells.Cell
    status: str
    reason: str
    step: estimates.Estimate | None = None
    median_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    dispatch_share: float | None = None
    host_share: float | None = None
    pipelining: estimates.Estimate | None = None
    bound: str | None = None
    flops_per_s: float | None = None
    memory_bytes: int | None = None
    memory_meaning: str = ""
    first_step_s: dict[str, float | None] = dataclasses.field(default_factory=dict)
    phases: dict[str, float | None] = dataclasses.field(default_factory=dict)
    disk_note: str = ""
    break_even_step: float | None = None
    num_launches: int = 0
    num_blocks: int = 0
    num_disturbed: int = 0
    num_compiled: int = 0
    num_disturbed_used: int = 0
    busy: bool = False
    fence_ok: bool | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    census: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cell a against cell b: ratio a / b with a verdict, and the difference a - b in seconds a step.

    Attributes:
      how: "launches" (between processes) or "blocks" (inside one process).
      problem: Why there is no ratio (a failed gate, environments that differ); the other fields are None then.
    """

    a: cells.Cell
    b: cells.Cell
    how: str
    verdict: verdict.Verdict | None = None
    difference: estimates.Estimate | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Bar:
    """One term of a gap, in seconds a step; positive: a is slower by it.

    Attributes:
      name: What the term is.
      seconds: The term with its interval.
      gain: "gain if fixed": share of a's step time that would go if the term went; None for a term that helps a.
    """

    name: str
    seconds: estimates.Estimate
    gain: float | None


@dataclasses.dataclass(frozen=True)
class Gap:
    """T_a - T_b as bars that add up.

    Attributes:
      how: "threads" (the dispatching thread and the rest), "arms" (eager against the arm, on both sides) or "replays"
        (host, lowering, XLA build).
      beside: Bars that are not in the sum.
      notes: One sentence each.
      operations: What costs most behind the lowering bar, the most first.
      operations_from: Where that was measured, or what it is estimated from.
    """

    a: cells.Cell
    b: cells.Cell
    total: estimates.Estimate
    bars: list[Bar]
    how: str = "arms"
    beside: list[Bar] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    operations: list[str] = dataclasses.field(default_factory=list)
    operations_from: str = ""


@dataclasses.dataclass(frozen=True)
class Changed:
    """One differing setting of a framework: matched against its own default."""

    framework: str
    comparison: str
    label: str
    settings: dict[str, Any]
    effect: Comparison


@dataclasses.dataclass(frozen=True)
class FlagEffect:
    """One XLA option changed, against the default of the same cell.

    Attributes:
      option: "name=value".
      note: What it does; "" for an option that is not in `xla_options`.
      since: Which XLA builds have it; "" likewise, and where it was not looked up.
      effect: The changed cell (a) against the default (b).
      status, reason: Of the changed cell.
      in_force: Whether XLA compiled with another value of the option than by default, see `xla_dump.in_force`; None
        where nothing tells. False: nothing was ablated, and there is no verdict.
      same_program: Whether the optimised HLO is that of the default; None where it is not known.
      same_code: Whether the code that XLA generated is; None likewise.
      acts_below: It acts below the HLO, or nobody declared where: an equal HLO does not say that nothing changed.
    """

    option: str
    note: str
    since: str
    effect: Comparison
    status: str
    reason: str
    in_force: bool | None
    same_program: bool | None
    same_code: bool | None
    acts_below: bool


@dataclasses.dataclass
class Summary:
    """A run, analysed.

    Attributes:
      ending: "complete", "interrupted", "error", or "" when the run never said (killed).
      pairs: Between frameworks, same arm; the primary family is those of the headline arm.
      arms: Within a framework: eager against each other arm.
      definitions: Framework -> arm -> what it is.
      flags: XLA options against the default, the largest effect first.
      shares: "timed": share of the wall time after warm-up inside timed blocks; "start", "build", "measure": shares of
        the whole launch time.
    """

    config: dict[str, Any]
    machine: dict[str, Any]
    plan: dict[str, Any] | None
    mde: dict[str, Any] | None
    ending: str
    times: dict[str, float]
    cells: list[CellResult]
    headline_arm: str
    pairs: list[Comparison]
    arms: list[Comparison]
    gaps: list[Gap]
    settings: list[Changed]
    shares: dict[str, float]
    problems: list[str]
    definitions: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    flags: list[FlagEffect] = dataclasses.field(default_factory=list)
