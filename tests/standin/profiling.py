"""The stand-in's profiler: a clock before and after what a step does, and before and after what it sends.

STANDIN_PROFILE=blind: rank 1 sees nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from xlacompare.core import errors, intervals, timeline


def profiled(ranks: Any, step: Any, n: int, folder: Any) -> timeline.Trace:
    """See `xlacompare.frameworks.profiled`."""
    rank = ranks.local[0]
    runs: list[tuple[float, float]] = []
    sends: list[tuple[float, float]] = []
    windows = []
    with _watched(step.step, "run", runs), _watched(ranks.net, "all_inputs", sends):
        for index in range(n + 1):
            begin = time.perf_counter()
            step.run(index)
            step.synchronize()
            if index:
                windows.append(timeline.Window(index - 1, rank, begin, time.perf_counter()))
    if rank and os.environ.get("STANDIN_PROFILE") == "blind":
        raise errors.UnsupportedError("planted: rank 1's profiler sees nothing")
    computed = intervals.difference(intervals.union(runs), intervals.union(sends))
    spans = [timeline.Span(*at, timeline.COMPUTE, "step", "step", rank) for at in computed]
    spans += [timeline.Span(*at, timeline.COMMUNICATION, "send", "all-reduce", rank) for at in sends]
    (folder / "trace.txt").write_text("kept")
    return timeline.Trace(windows, spans, ["trace.txt"], ["the stand-in's clock"])


@contextlib.contextmanager
def _watched(owner: Any, name: str, times: list[tuple[float, float]]) -> Iterator[None]:
    """Notes begin and end of every call of a method."""
    method: Callable[..., Any] = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = method(*arguments)
        times.append((begin, time.perf_counter()))
        return result

    setattr(owner, name, watched)
    yield
    delattr(owner, name)
