"""The self-test of a fence: does `synchronize` wait for the work?

Three statements are checked on the very step that is timed. The fenced time of n steps grows like n. A host read right
after the fence is immediate, i.e. no work was left over: a fence that returns early leaves the queue to the reader. The
value that is read is right (the gate holds the expected value).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from xlacompare.core import timing

# A fence that waits leaves nothing; the allowance is for a noisy machine. Work left over by a fence that does not wait
# is near 100% of it.
MAX_LATE_SHARE = 0.25
GROWTH = 4
REPEATS = 3
GROWTH_LOW, GROWTH_HIGH = 2.0, 8.0


class Readable(timing.Runnable, Protocol):
    """A step whose result can be read."""

    def loss(self) -> float:
        """Reads a value of the last step; waits for it."""
        ...


@dataclasses.dataclass(frozen=True)
class FenceReport:
    """Outcome of the self-test.

    Attributes:
      growth: Fenced time of 4n steps over that of n; 4 for a fence that waits.
      late_share: Work that a read found unfinished after the fence, as a share of all the work.
    """

    passed: bool
    growth: float
    late_share: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)


def self_test(
    step: Readable,
    n: int,
    first: int = 0,
    expected: float | None = None,
    repeats: int = REPEATS,
    clock: timing.Clock = time.perf_counter,
    near: Callable[[float, float], bool] = lambda got, want: abs(got - want) <= 1e-3 * abs(want) + 1e-6,
) -> FenceReport:
    """Checks the fence of `step` with n and 4n steps, `repeats` times, and judges the medians.

    Args:
      step: Warm (nothing left to compile).
      n: Steps of the short run.
      first: Index of the first step.
      expected: Value that the first short run must leave, where it is known.
      repeats: Runs of each length.
      clock: Seconds.
      near: When a value counts as right.
    """
    growths, lates, value = [], [], None
    for _ in range(repeats):
        short, late_short, read = _fenced(step, n, first, clock)
        long, late_long, _ = _fenced(step, GROWTH * n, first, clock)
        value = read if value is None else value
        growths.append(long / short)
        lates.append((late_short + late_long) / (short + long + late_short + late_long))
    growth, late = statistics.median(growths), statistics.median(lates)
    reason = ""
    if late > MAX_LATE_SHARE:
        reason = (
            f"a read after the fence waited for {late:.0%} of the work: the fence returned before the work was done"
        )
    elif not GROWTH_LOW <= growth <= GROWTH_HIGH:
        reason = f"{GROWTH}x the steps took {growth:.1f}x the fenced time: the fence does not wait for the steps"
    elif expected is not None and value is not None and not near(value, expected):
        reason = f"the value read after the fence is {value!r}, expected {expected!r}"
    return FenceReport(not reason, growth, late, reason)


def _fenced(step: Readable, n: int, first: int, clock: timing.Clock) -> tuple[float, float, float]:
    """Returns the fenced seconds of n steps, the seconds that a read then waited for work, and the value."""
    start = clock()
    for index in range(first, first + n):
        step.run(index)
    step.synchronize()
    fenced = clock()
    value = step.loss()
    first_read = clock()
    step.loss()  # the cost of a read when nothing is left to wait for
    second_read = clock()
    late = max(0.0, (first_read - fenced) - (second_read - first_read))
    return fenced - start, late, value
