"""A few traced steps of torch: torch.profiler's trace, kept for Perfetto, and reduced to a time line.

Tried with torch 2.9.1 on the CPU, where gloo's worker threads are in the trace: an operation is seen from the moment
when a worker takes it until it is done, with the wait for ranks that come later; the time in gloo's queue is not.
The reduction of CUDA traces has been tried on made events only.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Protocol

import torch
import torch.distributed as dist
from torch import profiler

from xlacompare.core import errors, kineto_trace, timeline
from xlacompare.frameworks import ranks as ranks_seam

FILE = "trace.json.gz"


class Step(Protocol):
    """The part of `strategy.ParallelStep` that is used."""

    def run(self, index: int) -> None: ...
    def synchronize(self) -> None: ...


def profiled(ranks: ranks_seam.Ranks, step: Step, n: int, folder: pathlib.Path) -> timeline.Trace:
    """Runs n + 1 steps under the profiler, each with a fence; the first has no marker and is no window.

    Args:
      ranks: Those of this process.
      step: A built step that has run before. Every rank calls this with the same n.
      n: Steps that are marked.
      folder: Gets the trace; one of its own for each process.

    Raises:
      UnsupportedError: The trace does not say what ran, or would not.
    """
    backend = dist.get_backend()
    if backend not in (*kineto_trace.LIBRARIES, "nccl"):
        raise errors.UnsupportedError(
            f"torch's profiler does not see communication over {backend}: the backend is a Python class, whose calls "
            "pass no operator of the dispatcher and leave no record; choose --transport=gloo or nccl"
        )
    activities = [profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(profiler.ProfilerActivity.CUDA)
    folder.mkdir(parents=True, exist_ok=True)
    with profiler.profile(activities=activities) as made:  # shapes would slow each operator further
        _run(step, 0)
        for index in range(n):
            with profiler.record_function(f"{kineto_trace.MARKER}{index}"):
                _run(step, index)
    made.export_chrome_trace(str(folder / FILE))
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found = kineto_trace.trace(events, ranks.local[0], is_operator)
    found.files = [FILE]
    return found


def _run(step: Step, index: int) -> None:
    step.run(index)
    step.synchronize()


def is_operator(namespace: str, name: str) -> bool:
    """Whether torch's dispatcher has an operator of this name; "autograd::..." and the like are none."""
    return hasattr(getattr(torch.ops, namespace), name) if namespace.isidentifier() and name.isidentifier() else False
