"""A step of known compute and known collectives under torch's profiler, in the process of a rank."""

from __future__ import annotations

import pathlib
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import profiler

from xlacompare.core import errors, timeline
from xlacompare.frameworks.on_torch import c10d_log, profiling

STEPS, PRODUCTS, SMALL = 12, 4, 3
SIDE, COUNT = 256, 1 << 20  # float32 elements


class Step:
    """A sum of COUNT elements beside products; then SMALL gathers. Annotations mislead on purpose, for a census not."""

    names = ("aten::mm", "gloo:all_reduce")

    def __init__(self) -> None:
        self.x, self.large = torch.full((SIDE, SIDE), 1e-3), torch.full((COUNT,), 1e-3)
        self.parts, self.small = torch.empty(2 * 64), torch.ones(64)

    def run(self, index: int) -> None:
        with profiler.record_function(self.names[0]):
            work = dist.all_reduce(self.large, async_op=True)
        with profiler.record_function(self.names[1]):
            y = self.x
            for _ in range(PRODUCTS):
                y = torch.tanh(y @ self.x)
        work.wait()
        for _ in range(SMALL):
            dist.all_gather_into_tensor(self.parts, self.small)

    def synchronize(self) -> None:
        """The CPU is done when `run` returns."""


def collect(ranks: Any) -> dict[str, Any]:
    """Totals of the traced steps, the census of one, and how long the sum takes alone."""
    step = Step()
    for index in range(3):
        step.run(index)
    dist.barrier()
    with tempfile.TemporaryDirectory(prefix="xlacompare_tests_") as folder:
        try:
            trace = profiling.profiled(ranks, step, STEPS, pathlib.Path(folder))
        except errors.UnsupportedError as error:
            return {"unsupported": str(error)}
        kept = (pathlib.Path(folder) / trace.files[0]).stat().st_size
    step.names = ("sum", "products")
    return {
        "totals": [found.to_dict() for found in timeline.totals(trace)],
        "census": [op.opcode for op in c10d_log._of_profiler(step)],
        "alone_s": _alone_s(step),
        "kept": kept,
    }


def _alone_s(step: Step) -> list[float]:
    found = []
    dist.barrier()
    for _ in range(STEPS):
        begin = time.perf_counter()
        dist.all_reduce(step.large)
        found.append(time.perf_counter() - begin)
    return found
