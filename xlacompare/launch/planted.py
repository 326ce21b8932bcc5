"""Planted causes: a cell whose extra work is known exactly, to show that a procedure finds it.

A cell carries them in `changed`, so that they are in its id and in its record:
  repeat_every=n   every n-th step runs twice: 1/n more work, whatever the machine
  process=NAME     a worker of its own, so that two equal cells are compared between processes
  sleep_s=x        x seconds of sleep before each dispatch: host time that is no work of the program
  xla_flags=TEXT   a worker of its own whose XLA has these flags: another XLA build, as far as programs can tell
Over ranks also:
  slow_rank=R:x    rank R does x seconds more work in each step (on the host, after all that was dispatched before)
  planted_link=T   the ranks' link has this rate while the cell is measured, in tc's words (`rank_link`)
and what stands in `planted_ranks`.
Over ranks the arms without compute plant none of what belongs to the compute.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xlacompare.core import errors
from xlacompare.frameworks import interface

REPEAT_EVERY, PROCESS, SLEEP_S, XLA_FLAGS = "repeat_every", "process", "sleep_s", "xla_flags"
SLOW_RANK, LINK = "slow_rank", "planted_link"
# Beside a step, over ranks: `planted_ranks`.
EXTRA_STEP, EXTRA_ALL_REDUCE, ONLY, RECOMPILE = "extra_step", "extra_all_reduce", "only", "recompile"
EPSILON, HOST_S = "epsilon", "host_s"
BESIDE = (EXTRA_STEP, EXTRA_ALL_REDUCE, ONLY, RECOMPILE, EPSILON, HOST_S)
NAMES = (REPEAT_EVERY, PROCESS, SLEEP_S, XLA_FLAGS, SLOW_RANK, LINK, *BESIDE)
PROCESS_VARIABLE = "XLACOMPARE_PROCESS"


class Wrapped:
    """A training step that passes everything on.

    Attributes:
      within: The step that is wrapped.
    """

    def __init__(self, step: interface.TrainStep) -> None:
        self.compile_times = step.compile_times
        self.within = step

    def run(self, index: int) -> None:
        """Dispatches step `index`."""
        self.within.run(index)

    def synchronize(self) -> None:
        """Waits for all of it."""
        self.within.synchronize()

    def loss(self) -> float:
        """Loss of the last step."""
        return self.within.loss()

    def state(self) -> tuple[Any, Any]:
        """Parameters and buffers."""
        return self.within.state()

    def reset(self) -> None:
        """Back to the start."""
        self.within.reset()

    def free(self) -> None:
        """Frees what was planted and leaves the step."""

    def close(self) -> None:
        """Frees all."""
        self.free()
        self.within.close()


class RepeatingStep(Wrapped):
    """Does `1 / every` more work and does not say so. A reset leaves the count: visits are shorter than `every`."""

    def __init__(self, step: interface.TrainStep, every: int) -> None:
        super().__init__(step)
        self._every, self._calls = every, 0

    def run(self, index: int) -> None:
        """Dispatches step `index`, every n-th time twice."""
        self.within.run(index)
        self._calls += 1
        if self._calls % self._every == 0:
            self.within.run(index)


class SleepingStep(Wrapped):
    """Sleeps before each dispatch."""

    def __init__(self, step: interface.TrainStep, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(step)
        self._seconds, self._sleep = seconds, sleep

    def run(self, index: int) -> None:
        """Sleeps, then dispatches step `index`."""
        self._sleep(self._seconds)
        self.within.run(index)


class BusyStep(Wrapped):
    """Computes on the host before each dispatch, as a rank with more to do would.

    It waits first for what was dispatched: a framework that dispatches ahead would else hide the host's time behind
    the device's, and the rank would not be late.
    """

    def __init__(
        self, step: interface.TrainStep, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(step)
        self._seconds, self._clock = seconds, clock

    def run(self, index: int) -> None:
        """Waits, is busy, then dispatches step `index`."""
        self.within.synchronize()
        end = self._clock() + self._seconds
        while self._clock() < end:
            pass
        self.within.run(index)


def slow_rank(text: str) -> tuple[int, float]:
    """Rank and seconds of `slow_rank`.

    Raises:
      BadInputError: Not RANK:SECONDS.
    """
    rank, _, seconds = text.partition(":")
    try:
        return int(rank), float(seconds)
    except ValueError:
        raise errors.BadInputError(f"{SLOW_RANK}={text}: give RANK:SECONDS, like 1:0.005") from None


def parsed(text: str) -> tuple[tuple[str, Any], ...]:
    """What a twin's `changed` holds, from "name=value,name=value".

    Raises:
      BadInputError: No name or no value, or a cause that needs a process of its own.
    """
    found: dict[str, Any] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        if not name or not value:
            raise errors.BadInputError(f"--planted={text}: give name=value, like {SLOW_RANK}=1:0.005")
        if name in (PROCESS, XLA_FLAGS):
            raise errors.BadInputError(f"--planted={text}: {name} needs a process of its own, a twin shares its world")
        if name == SLOW_RANK:
            slow_rank(value)
        found[name] = _number(value)
    return tuple(sorted(found.items()))


def _number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def of_ranks(step: interface.TrainStep, changed: Mapping[str, Any], local: Sequence[int]) -> interface.TrainStep:
    """As `planted`, in the process of the ranks `local`."""
    step = planted(step, changed)
    if SLOW_RANK in changed:
        rank, seconds = slow_rank(str(changed[SLOW_RANK]))
        return BusyStep(step, seconds) if rank in local else step
    return step


def planted(step: interface.TrainStep, changed: Mapping[str, Any]) -> interface.TrainStep:
    """The step with what the cell plants; the step itself where it plants nothing."""
    if REPEAT_EVERY in changed:
        step = RepeatingStep(step, int(changed[REPEAT_EVERY]))
    return SleepingStep(step, float(changed[SLEEP_S])) if SLEEP_S in changed else step


def round_it(changed: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of a cell's changes without what is planted round its step: cells alike in it have equal steps."""
    return {name: value for name, value in changed.items() if name not in NAMES or name == EPSILON}


def free(step: interface.TrainStep) -> None:
    """Frees whatever is planted round a step, and leaves the step."""
    while isinstance(step, Wrapped):
        step.free()
        step = step.within


def unwrapped(step: interface.TrainStep) -> interface.TrainStep:
    """The adapter's own step, for those who look inside it."""
    while isinstance(step, Wrapped):
        step = step.within
    return step


def environment(changed: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables that give a cell a process of its own."""
    named = {PROCESS: PROCESS_VARIABLE, XLA_FLAGS: "XLA_FLAGS"}
    return {variable: str(changed[name]) for name, variable in named.items() if name in changed}
