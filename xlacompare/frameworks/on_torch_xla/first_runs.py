"""The first two runs of a lazy program over ranks, which compile it and show that nothing is left to compile."""

from __future__ import annotations

import time
from collections.abc import Callable

from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch_xla import counters, dumps

Run = Callable[[], object]


def compiled(
    first: Run, again: Run, wait: Run, kept: dumps.Dumps, key: bytes, contains: str = ""
) -> interface.CompileTimes:
    """Runs a program twice; XLA's dump of it is kept under `key`.

    Args:
      first: Launches it in an order in which it is compiled once.
      again: Launches it as ever after.
      wait: Returns when all that was launched is done.
      kept: Where the dump goes.
      key: Under which name.
      contains: What the first run's extra time holds beside tracing and lowering, for the note.
    """
    kept.clear()
    before = counters.snapshot()
    cold_s = _seconds(first, wait)
    made = counters.snapshot() - before
    warm_s = _seconds(again, wait)
    kept.keep(key)
    return interface.CompileTimes(
        trace_s=max(0.0, cold_s - warm_s - made.compile_s),
        compile_s=made.compile_s,
        note=f"{made.programs} programs; trace_s is the rest of the first run's extra time, with lowering{contains}",
    )


def _seconds(launch: Run, wait: Run) -> float:
    start = time.perf_counter()
    launch()
    wait()
    return time.perf_counter() - start
