"""What the analysis of a collective run says, as plain dataclasses: what reports read."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlacompare.core import collective_cell as cells
from xlacompare.core import estimates, verdict

Interval = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class CollectiveResult:
    """One cell over its launches; times in seconds, rates in bytes/s. Without `time` nothing was measured.

    Attributes:
      status, reason: `ok`, or why there is no time.
      time: Mean seconds an operation (block of n, one fence, max over ranks): t over launches; over the blocks of the
        launch where there is one.
      median_s: Of the blocks.
      p50_s, p95_s, p99_s: Of single iterations (barrier, run, fence), each the maximum over ranks; they describe the
        spread of iterations and say nothing of the error of `time`. p95 from 20, p99 from 100 iterations.
      num_iterations: Iterations behind the percentiles.
      dispatch_s: Until dispatch returned, an operation, max over ranks.
      skew_s: Median difference between the first and the last rank's start of an iteration.
      copy_s: The copy that an operation contains because the library only works in place; None: none.
      size_bytes: What the rates are made of: the size that was run, pad included.
      algbw, busbw: size / mean time, and that times the bus factor of the collective.
      busbw_lowered: Bytes that the program which ran must move per rank, over the mean time; None: unknown.
      wire_bytes: Those bytes.
      checked, wrong: Values compared over all ranks and launches; None: not checked (imported).
      findings: What ran instead of what was asked for, one line each.
      fence_ok: Result of the fence self-test.
      first_s: Build and first operation of the first launch.
      imported: Tool that measured it; "": we did.
    """

    cell: cells.CollectiveCell
    status: str
    reason: str
    time: estimates.Estimate | None = None
    median_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    num_iterations: int = 0
    dispatch_s: float | None = None
    skew_s: float | None = None
    copy_s: float | None = None
    size_bytes: int = 0
    algbw: float | None = None
    busbw: float | None = None
    busbw_lowered: float | None = None
    wire_bytes: float | None = None
    checked: int | None = None
    wrong: int | None = None
    findings: tuple[str, ...] = ()
    lowering: str = ""
    num_launches: int = 0
    num_blocks: int = 0
    num_disturbed: int = 0
    num_disturbed_used: int = 0
    num_compiled: int = 0
    oversubscribed: bool = False
    fence_ok: bool | None = None
    first_s: float | None = None
    imported: str = ""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Cell a against cell b of the same comparison: time(a) / time(b), the slower one first.

    Attributes:
      verdict: None where `problem` says why there is no ratio.
      difference: a - b in seconds.
    """

    a: cells.CollectiveCell
    b: cells.CollectiveCell
    verdict: verdict.Verdict | None = None
    difference: estimates.Estimate | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Fit:
    """The cost model of one series, framework and transport over its sizes; (value, low, high) in each parameter.

    Attributes:
      series, framework, mode, transport: What was fitted.
      algorithm: The one whose steps and bytes fit best, and what it cannot be told from.
      identified: Whether every other algorithm fits worse. On one number of ranks none can be told from another.
      latency_s: Of an empty operation; the same for all algorithms that fit equally well.
      bandwidth: busbw in bytes/s that large sizes approach; its high end is infinite where the time may not grow.
      parameters: alpha (seconds a message), beta (seconds a byte sent), gamma (seconds a byte combined) by name.
      crossover_bytes: Size at which latency and bytes take the same time; None: not resolved.
      residual: Largest relative residual.
      low_bytes, high_bytes: Sizes between which the model holds.
      above_floor: Size -> share of the time above the floor.
      floor: Framework that is the transport's floor here: a bare library where one was measured, else the one with the
        smallest times; "" for that one itself.
      gap: What the framework takes more than the floor, as latency and as bandwidth, in words.
      notes: What a reader must know, one line each.
      problem: Why there is no fit.
    """

    series: str
    framework: str
    mode: str
    transport: str
    algorithm: str = ""
    identified: bool = False
    latency_s: Interval | None = None
    bandwidth: Interval | None = None
    parameters: dict[str, Interval] = dataclasses.field(default_factory=dict)
    crossover_bytes: Interval | None = None
    residual: float | None = None
    low_bytes: float | None = None
    high_bytes: float | None = None
    above_floor: dict[int, float] = dataclasses.field(default_factory=dict)
    floor: str = ""
    gap: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclasses.dataclass
class CollectiveSummary:
    """A collective run, analysed.

    Attributes:
      ending: "complete", "interrupted", "error", or "" when the run never said.
      refusals: Ratios that are not made at all, one sentence each.
      launchers: How the processes were started.
      environments: By framework/transport: versions and what the framework says of its transport.
    """

    config: dict[str, Any]
    machine: dict[str, Any]
    plan: dict[str, Any] | None
    ending: str
    times: dict[str, float]
    cells: list[CollectiveResult]
    ratios: list[Ratio]
    refusals: list[str]
    fits: list[Fit]
    problems: list[str]
    launchers: list[str]
