"""A few traced steps of torch_xla: its profiler's trace, kept for XProf and Perfetto, and reduced to a time line.

XLA's of torch_xla 2.9.0 does not say which device an operation ran on; each rank's thread marks itself, and operations
are followed to the thread that launched them (`core.xla_threads`). One thread that launches for all devices (mode
`spmd`) does not tell its ranks apart.
"""

from __future__ import annotations

import pathlib
from typing import Any, Protocol

from torch_xla.debug import profiler

from xlacompare.core import errors, hlo_trace, timeline, xplane
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks.on_torch_xla import collectives, counters


class Step(Protocol):
    """The part of `strategy.ParallelStep` that is used."""

    def run(self, index: int) -> None: ...
    def synchronize(self) -> None: ...
    def communications(self) -> dict[str, Any]: ...


def profiled(ranks: ranks_seam.Ranks, step: Step, n: int, folder: pathlib.Path) -> timeline.Trace:
    """Runs n + 1 steps under the profiler, each with a fence; the first has no marker and is no window.

    Args:
      ranks: Those of this process.
      step: A built step that has run before.
      n: Steps that are marked.
      folder: Gets the trace.

    Raises:
      UnsupportedError: The trace does not say what ran, or would not.
    """
    if not isinstance(ranks, collectives.Lanes):
        raise errors.UnsupportedError(
            "torch_xla's traces do not say which device an operation ran on (no stat device_ordinal, 2.9.0), and in "
            "mode spmd one thread launches for all of them; mode threads has one for each"
        )
    what = step.communications()
    if what["source"] != "hlo" or not what.get("optimised", True):
        raise errors.UnsupportedError(
            "XLA's dump has no optimised program of this step (another --xla_dump_to in XLA_FLAGS?), and the trace "
            "names its instructions only"
        )
    profiler.start_trace(str(folder))
    try:
        ranks.lanes.each(lambda lane: _mark(ranks.local[lane]))
        _run(step, 0)
        for index in range(n):
            with counters.traced(hlo_trace.MARKER, **{hlo_trace.STEP: index}):
                _run(step, index)
    finally:
        profiler.stop_trace()
    files = sorted(folder.rglob("*.xplane.pb"))
    events = [event for path in files for event in xplane.events(path)]
    made = hlo_trace.trace(events, hlo_trace.Programs(what["text"]), ranks.local)
    made.files = [str(path.relative_to(folder)) for path in files]
    return made


def _mark(rank: int) -> None:
    with counters.traced(hlo_trace.RANK, rank=rank):
        pass


def _run(step: Step, index: int) -> None:
    step.run(index)
    step.synchronize()
