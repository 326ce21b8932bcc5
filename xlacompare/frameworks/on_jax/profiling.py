"""A few traced steps of JAX: jax.profiler's trace, kept for XProf and Perfetto, and reduced to a time line."""

from __future__ import annotations

import pathlib
from typing import Any, Protocol

import jax

from xlacompare.core import hlo_trace, timeline, xplane
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks.on_jax import private


class Step(Protocol):
    """The part of `strategy.ParallelStep` that is used."""

    def run(self, index: int) -> None: ...
    def synchronize(self) -> None: ...
    def communications(self) -> dict[str, Any]: ...


def profiled(ranks: ranks_seam.Ranks, step: Step, n: int, folder: pathlib.Path) -> timeline.Trace:
    """Runs n + 1 steps under the profiler, each with a fence; the first has no marker and is no window.

    Args:
      ranks: Those of this process.
      step: A built step that has run before. Every rank calls this with the same n.
      n: Steps that are marked.
      folder: Gets the trace; one of its own for each process.

    Raises:
      UnsupportedError: The trace does not say what ran.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # a Python function costs more to trace than many an operation takes
    with jax.profiler.trace(str(folder), profiler_options=options):
        _run(step, 0)
        for index in range(n):
            with jax.profiler.StepTraceAnnotation(hlo_trace.MARKER, **{hlo_trace.STEP: index}):
                _run(step, index)
    files = sorted(folder.rglob("*.xplane.pb"))
    events = [event for path in files for event in xplane.events(path)]
    what = step.communications()
    own = what["text"] if what["source"] == "hlo" else ""
    programs = hlo_trace.Programs(own, private.live_programs(hlo_trace.modules(events)))
    made = hlo_trace.trace(events, programs, ranks.local)
    made.files = [str(path.relative_to(folder)) for path in files]
    return made


def _run(step: Step, index: int) -> None:
    step.run(index)
    step.synchronize()
