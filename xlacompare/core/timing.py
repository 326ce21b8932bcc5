"""The clock: blocks of steps with one fence, compile counts around them, warm-up, calibration.

The datum is a block: n steps dispatched back to back and one fence, so that host dispatch that a framework hides stays
hidden. `stepwise` puts the fence after every step; the difference is the host time that pipelining hides.
A block during which something was compiled is not a sample. Nothing here knows a framework; the clock is injected.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from xlacompare.core import errors

Clock = Callable[[], float]
MAX_WARM_UP_STEPS = 30


class Runnable(Protocol):
    """The part of a training step that the clock needs."""

    def run(self, index: int) -> None:
        """Dispatches step `index`."""
        ...

    def synchronize(self) -> None:
        """Waits for everything that was dispatched."""
        ...


@dataclasses.dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
      mode: "block" (one fence) or "stepwise" (a fence after every step).
      n: Steps.
      total_s: Seconds from the first dispatch to the return of the last fence, for all n steps.
      dispatch_s: Seconds until the last dispatch returned (in stepwise mode: the sum over steps).
      host_s: CPU seconds of the thread that dispatches: Python, tracing, dispatch. A thread that waits uses none, so
        this is the host's part even where a call blocks until its work is done, unless the work runs in this thread.
      compiles: Compilations during the block; a sample has none.
      start_s: Clock value at its start (same clock for all processes of a machine).
    """

    mode: str
    n: int
    total_s: float
    dispatch_s: float
    host_s: float
    compiles: int
    start_s: float

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.total_s / self.n

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)


def time_block(
    step: Runnable,
    n: int,
    first: int,
    compile_count: Callable[[], int],
    clock: Clock = time.perf_counter,
    host_clock: Clock = time.thread_time,
) -> Block:
    """Runs n steps with one fence at the end.

    Args:
      step: The step.
      n: Number of steps, at least 1.
      first: Index of the first step (picks the batch).
      compile_count: Compilations so far in this process.
      clock: Seconds; monotonic.
      host_clock: CPU seconds of the calling thread.
    """
    compiled = compile_count()
    run = step.run
    host, start = host_clock(), clock()
    for index in range(first, first + n):
        run(index)
    dispatched = clock()
    step.synchronize()
    end, host = clock(), host_clock() - host
    return Block("block", n, end - start, dispatched - start, host, compile_count() - compiled, start)


def time_stepwise(
    step: Runnable,
    n: int,
    first: int,
    compile_count: Callable[[], int],
    clock: Clock = time.perf_counter,
    host_clock: Clock = time.thread_time,
) -> Block:
    """Runs n steps with a fence after each; arguments as `time_block`."""
    compiled = compile_count()
    dispatch = 0.0
    host, start = host_clock(), clock()
    for index in range(first, first + n):
        begin = clock()
        step.run(index)
        dispatch += clock() - begin
        step.synchronize()
    end, host = clock(), host_clock() - host
    return Block("stepwise", n, end - start, dispatch, host, compile_count() - compiled, start)


MODES: dict[str, Callable[..., Block]] = {"block": time_block, "stepwise": time_stepwise}


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """What the warm-up took, and the seconds of its last, compile-free step."""

    steps: int
    seconds: float
    step_s: float
    compiles: int


def warm_up(step: Runnable, first: int, compile_count: Callable[[], int], clock: Clock = time.perf_counter) -> WarmUp:
    """Steps, each fenced, until two in a row compiled nothing.

    Raises:
      UnsupportedError: It is still compiling after `MAX_WARM_UP_STEPS` steps: no steady state to time.
    """
    start_count, start, quiet, step_s = compile_count(), clock(), 0, 0.0
    for done in range(1, MAX_WARM_UP_STEPS + 1):
        block = time_block(step, 1, first + done - 1, compile_count, clock)
        quiet, step_s = (quiet + 1 if block.compiles == 0 else 0), block.total_s
        if quiet == 2:
            return WarmUp(done, clock() - start, step_s, compile_count() - start_count)
    raise errors.UnsupportedError(
        f"still compiling after {MAX_WARM_UP_STEPS} steps ({compile_count() - start_count} compilations): "
        "a shape or a Python value changes at every step; there is no steady state to time"
    )


def steps_per_block(step_s: float, min_block_s: float) -> int:
    """Steps for a block of at least `min_block_s`.

    At least two, so that the untimed step after a switch of arms costs no more than a third of the time.
    """
    return max(2, math.ceil(min_block_s / max(step_s, 1e-7)))
