"""The first two runs of a lazy program over ranks, which compile it and show that nothing is left to compile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch_xla import counters, dumps


class Program(Protocol):
    """What can be run."""

    def first(self, index: int) -> None:
        """Launches it on every rank in an order in which it is compiled once."""
        ...

    def launch(self, index: int) -> None:
        """Launches it on every rank."""
        ...

    def wait(self) -> None:
        """Returns when all that was launched is done."""
        ...


def compiled(program: Program, kept: dumps.Dumps, key: bytes) -> interface.CompileTimes:
    """Runs a program twice; XLA's dump of it is kept under `key`."""
    kept.clear()
    before = counters.snapshot()
    cold_s = _seconds(program, program.first, 0)
    made = counters.snapshot() - before
    warm_s = _seconds(program, program.launch, 1)
    kept.keep(key)
    return interface.CompileTimes(
        trace_s=max(0.0, cold_s - warm_s - made.compile_s),
        compile_s=made.compile_s,
        note=f"{made.programs} programs; trace_s is the rest of the first run's extra time, with lowering",
    )


def _seconds(program: Program, launch: Callable[[int], None], index: int) -> float:
    start = time.perf_counter()
    launch(index)
    program.wait()
    return time.perf_counter() - start
