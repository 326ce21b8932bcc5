"""Planted causes of steps over ranks that need more than the step: a second step, a collective, a compilation.

A cell carries them in `changed`, as those of `planted`; no adapter knows them, so that they are the same everywhere:
  extra_step=1          after each step, one more without communication: its products and its host, whole
  extra_all_reduce=N    after each step, an all-reduce of N bytes, as the arm has collectives: whole, of one element in
                        the arms of tokens, none in `elided`
  only=1                with extra_all_reduce, in `alone`: the all-reduce without the arm's own collectives, which is
                        what it takes by itself
  recompile=1           once in each visit something is compiled: a collective of a size that was never asked for
  epsilon=X             the optimizer's epsilon is X in the step that is built: other work, for the gate to find
  host_s=X              every rank waits for what it dispatched and then sleeps X seconds before each dispatch
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from xlacompare.collectives import request as requests
from xlacompare.core import cell as cells
from xlacompare.core import errors
from xlacompare.frameworks import interface
from xlacompare.frameworks import ranks as seam
from xlacompare.launch import planted
from xlacompare.workloads import spec

FLOAT_BYTES = 4
NOT_IN_ELIDED, OF_TOKENS = "elided", ("token", "alone_token")
COMPILES_IN_RUN = 2  # of a visit: the first one is untimed, and no block
FIRST_SIZE = 1001  # of the collectives that are compiled: an odd one, which nobody else asks for


class Runnable(Protocol):
    """What stands beside a step: another step, or a collective."""

    def run(self, index: int) -> None:
        """Dispatches it once."""
        ...

    def synchronize(self) -> None:
        """Waits for it."""
        ...

    def close(self) -> None:
        """Frees it."""
        ...


class WaitingStep(planted.Wrapped):
    """Waits for what was dispatched, then sleeps: no device works meanwhile, so that all of it shows."""

    def __init__(self, step: interface.TrainStep, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(step)
        self._seconds, self._sleep = seconds, sleep

    def run(self, index: int) -> None:
        """Waits, sleeps, then dispatches step `index`."""
        self.within.synchronize()
        self._sleep(self._seconds)
        self.within.run(index)


class Borrowed(planted.Wrapped):
    """A step of another cell: given back and not closed."""

    def __init__(self, step: interface.TrainStep, give_back: Callable[[], None]) -> None:
        super().__init__(step)
        self._give_back = give_back

    def close(self) -> None:
        """Gives it back."""
        self._give_back()


class StepBeside(planted.Wrapped):
    """Runs a second step after each step, which must be done first: two programs at once would hide one another."""

    def __init__(self, step: interface.TrainStep, other: interface.TrainStep) -> None:
        super().__init__(step)
        self._other = other

    def run(self, index: int) -> None:
        """Both, one after the other."""
        self.within.run(index)
        self.within.synchronize()
        self._other.run(index)
        self._other.synchronize()

    def reset(self) -> None:
        """Both back to the start."""
        self.within.reset()
        self._other.reset()

    def free(self) -> None:
        """Frees what stands beside the step."""
        self._other.close()


class CollectiveBeside(planted.Wrapped):
    """Runs a collective after each step; runtimes keep the order of collectives, so that nobody waits in between."""

    def __init__(self, step: interface.TrainStep, other: Runnable, only: bool = False) -> None:
        super().__init__(step)
        self._other, self._only = other, only

    def run(self, index: int) -> None:
        """The step, where it is not the collective alone, then the collective."""
        if not self._only:
            self.within.run(index)
        self._other.run(index)

    def synchronize(self) -> None:
        """Waits for both."""
        self.within.synchronize()
        self._other.synchronize()

    def free(self) -> None:
        """Frees what stands beside the step."""
        self._other.close()


class RecompilingStep(planted.Wrapped):
    """Compiles something in the second run after a reset, which is in the first block of a visit."""

    def __init__(self, step: interface.TrainStep, compile_anew: Callable[[], None]) -> None:
        super().__init__(step)
        self._compile, self._runs = compile_anew, COMPILES_IN_RUN

    def reset(self) -> None:
        """A visit begins."""
        self.within.reset()
        self._runs = 0

    def run(self, index: int) -> None:
        """The step, then what is compiled."""
        self.within.run(index)
        self._runs += 1
        if self._runs == COMPILES_IN_RUN:
            self._compile()


def optimizer(workload: spec.Workload, changed: Mapping[str, Any]) -> spec.Workload:
    """The workload that is built: with another epsilon, where a cell plants one."""
    if planted.EPSILON not in changed:
        return workload
    wrong = dataclasses.replace(workload.optimizer, eps=float(changed[planted.EPSILON]))
    made: spec.Workload = dataclasses.replace(workload, optimizer=wrong)  # type: ignore[type-var]
    return made


def beside(
    step: interface.TrainStep, cell: cells.Cell, ranks: seam.Ranks, again: Callable[[str], interface.TrainStep]
) -> interface.TrainStep:
    """The step with what the cell plants beside it; the step itself where it plants nothing of the kind.

    Args:
      step: The step, with what else is planted.
      cell: The cell.
      ranks: The ranks of this process.
      again: Builds another step of this cell under a communication arm.

    Raises:
      UnsupportedError: The framework cannot do what is planted.
    """
    changed = dict(cell.changed)
    if planted.HOST_S in changed:
        step = WaitingStep(step, float(changed[planted.HOST_S]))
    if planted.EXTRA_STEP in changed:
        step = StepBeside(step, again(NOT_IN_ELIDED))
    if planted.EXTRA_ALL_REDUCE in changed and cell.communication != NOT_IN_ELIDED:
        count = 1 if cell.communication in OF_TOKENS else int(changed[planted.EXTRA_ALL_REDUCE]) // FLOAT_BYTES
        if count < 1:
            raise errors.BadInputError(f"{planted.EXTRA_ALL_REDUCE}: at least the {FLOAT_BYTES} bytes of one element")
        step = CollectiveBeside(step, all_reduce(ranks, count, cell.mesh[0]), bool(changed.get(planted.ONLY)))
    return RecompilingStep(step, Compiling(ranks, cell.mesh[0])) if planted.RECOMPILE in changed else step


def all_reduce(ranks: seam.Ranks, count: int, size: int) -> seam.CollectiveStep:
    """A sum of `count` float32 over all ranks."""
    asked = requests.Request("all_reduce", "float32", count, (size,), reduction="sum")
    return ranks.build(asked, {rank: np.ones(count, np.float32) for rank in ranks.local})


class Compiling:
    """Builds a collective of a new size and runs it: whoever compiles programs must compile this one."""

    def __init__(self, ranks: seam.Ranks, size: int) -> None:
        self._ranks, self._size, self._count = ranks, size, FIRST_SIZE

    def __call__(self) -> None:
        """All ranks together."""
        self._count += 2
        made = all_reduce(self._ranks, self._count, self._size)
        made.run(0)
        made.synchronize()
        made.close()
