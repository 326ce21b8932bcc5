"""Blocks with and without something that compiles in their middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.frameworks import native
from xlacompare.core import timing
from xlacompare.frameworks import interface

STEPS = 4


class Disturbed:
    """A step during whose second run something else is compiled, as in a user's loop that meets a new shape."""

    def __init__(self, step: interface.TrainStep, compile_something: Callable[[], None]) -> None:
        self._step, self._compile_something = step, compile_something
        self.synchronize = step.synchronize

    def run(self, index: int) -> None:
        self._step.run(index)
        if index == 1:
            self._compile_something()


def blocks(framework: interface.Framework, step: interface.TrainStep, arm: str) -> list[dict[str, Any]]:
    """Three blocks as they stand in a record: untouched, with something that compiles in its middle, untouched."""
    step.reset()
    timing.warm_up(step, 0, framework.compile_count)
    plant = native.load(framework.name).compile_something
    disturbed = Disturbed(step, lambda: plant(arm))
    return [timing.time_block(s, STEPS, 0, framework.compile_count).to_dict() for s in (step, disturbed, step)]
