"""Planted causes: a cell whose extra work is known exactly, to show that a procedure finds it.

A cell carries them in `changed`, so that they are in its id and in its record:
  repeat_every=n   every n-th step runs twice: 1/n more work, whatever the machine
  process=NAME     a worker of its own, so that two equal cells are compared between processes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xlacompare.frameworks import interface

REPEAT_EVERY, PROCESS = "repeat_every", "process"
PROCESS_VARIABLE = "XLACOMPARE_PROCESS"


class RepeatingStep:
    """A training step that does `1 / every` more work and does not say so."""

    def __init__(self, step: interface.TrainStep, every: int) -> None:
        self.compile_times = step.compile_times
        self._step, self._every, self._calls = step, every, 0

    def run(self, index: int) -> None:
        """Dispatches step `index`, every n-th time twice."""
        self._step.run(index)
        self._calls += 1
        if self._calls % self._every == 0:
            self._step.run(index)

    def synchronize(self) -> None:
        """Waits for all of it."""
        self._step.synchronize()

    def loss(self) -> float:
        """Loss of the last step."""
        return self._step.loss()

    def state(self) -> tuple[Any, Any]:
        """Parameters and buffers."""
        return self._step.state()

    def reset(self) -> None:
        """Back to the start, but for the count: visits are shorter than `every`."""
        self._step.reset()

    def close(self) -> None:
        """Frees the step."""
        self._step.close()


def planted(step: interface.TrainStep, changed: Mapping[str, Any]) -> interface.TrainStep:
    """The step with what the cell plants; the step itself where it plants nothing."""
    return RepeatingStep(step, int(changed[REPEAT_EVERY])) if REPEAT_EVERY in changed else step


def environment(changed: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables that give a cell a process of its own."""
    return {PROCESS_VARIABLE: str(changed[PROCESS])} if PROCESS in changed else {}
