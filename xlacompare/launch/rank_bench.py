"""One built collective inside a rank's process: first run, warm-up, blocks behind a barrier, values, what ran.

`Blocks` is the part of it that a training step over ranks (`parallel_bench`) has too.

Every rank gets the same requests in the same order, so that all of them run the collective equally often; how often is
the coordinator's choice, never a rank's. Nothing is noted or counted inside a timed block: the loop that is timed is
`core.timing.time_block`'s.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from xlacompare.collectives import check, inputs
from xlacompare.collectives import request as requests
from xlacompare.core import fence, timing
from xlacompare.frameworks import ranks as seam

REDUCING = ("all_reduce", "reduce_scatter")
COPY_REPEATS = 3


class Notes:
    """Where this rank is, for whoever asks while it hangs: one tuple, replaced whole."""

    def __init__(self) -> None:
        self.now: tuple[int, str] = (0, "started")

    def enter(self, text: str) -> None:
        """The next thing that all ranks do."""
        self.now = (self.now[0] + 1, text)


class Blocks:
    """Something that all ranks run together, behind barriers.

    Attributes:
      index: Runs so far.
    """

    ranks: seam.Ranks
    notes: Notes
    index: int

    @property
    def name(self) -> str:
        """For notes."""
        raise NotImplementedError

    @property
    def timed(self) -> timing.Runnable:
        """What the clock runs."""
        raise NotImplementedError

    def prepare(self) -> None:
        """What comes before the barrier of every block."""

    def block(self, n: int, what: str) -> timing.Block:
        """A barrier, then n runs with one fence."""
        self.prepare()
        self.notes.enter(f"the barrier before {what}")
        self.ranks.barrier()
        self.notes.enter(what)
        made = timing.time_block(self.timed, n, self.index, self.ranks.compile_count)
        self.index += n
        return made

    def blocks(self, n: int, count: int, untimed: bool, series: str) -> list[dict[str, Any]]:
        """`count` blocks of n runs; an untimed run before them where the rank comes from other work."""
        if untimed:
            self.block(1, f"an untimed run of {self.name}")
        return [self.block(n, f"{series} block {i} of {self.name}").to_dict() for i in range(count)]


@dataclasses.dataclass
class Bench(Blocks):
    """A built collective.

    Attributes:
      index: Runs so far.
    """

    ranks: seam.Ranks
    request: requests.Request
    seed: int
    step: seam.CollectiveStep
    notes: Notes
    index: int = 0

    @property
    def refilled(self) -> bool:
        """In place, where results would feed the next run: reductions grow without end, so every run starts afresh."""
        return self.request.placement == "in_place" and self.request.collective in REDUCING

    def prepare(self) -> None:
        """Puts the input back where the last run overwrote it."""
        if self.refilled:
            self.step.refill()

    @property
    def timed(self) -> timing.Runnable:
        """The collective."""
        return self.step

    @property
    def name(self) -> str:
        """For notes."""
        return f"{self.request.collective} of {self.request.count} {self.request.dtype}"

    def fence_test(self, n: int) -> dict[str, Any]:
        """Does `synchronize` wait? One run of the self-test; the reading is that of the output."""
        self.notes.enter(f"the fence's self-test of {self.name}")
        made = fence.self_test(_Readable(self.step), n, self.index, repeats=1)
        self.index += (1 + fence.GROWTH) * n
        return made.to_dict()

    def finish(self) -> dict[str, Any]:
        """Values of the timed program's output, the copy inside a run, what ran; frees the buffers."""
        if self.request.placement == "in_place":
            self.notes.enter(f"the run that is checked of {self.name}")
            self.step.refill()
            self.ranks.barrier()
            self.step.run(self.index)
            self.step.synchronize()
        self.notes.enter(f"the values of {self.name}")
        answer = {"values": self._values(), "copy_s": self._copy_s()}
        self.notes.enter(f"the program of {self.name}")
        lowered = self.step.lowered()
        if 0 in self.ranks.local:
            answer["lowered"] = lowered
        self.step.close()
        return answer

    def _values(self) -> dict[str, Any]:
        """Compares every rank of this process with the reference."""
        if self.request.count == 0:
            return {"checked": 0, "wrong": 0, "message": ""}
        found = [check.compare(self.request, rank, got, self.seed) for rank, got in sorted(self.step.outputs().items())]
        message = next((result.message for result in found if result.wrong), "")
        return {
            "checked": sum(result.checked for result in found),
            "wrong": sum(result.wrong for result in found),
            "message": message,
        }

    def _copy_s(self) -> float | None:
        """Least seconds of the copy that a run contains; None where it contains none."""
        seconds = []
        for _ in range(COPY_REPEATS):
            begin = time.perf_counter()
            if not self.step.copy():
                return None
            seconds.append(time.perf_counter() - begin)
        return min(seconds)


class _Readable:
    """The step as the fence's self-test sees it."""

    def __init__(self, step: seam.CollectiveStep) -> None:
        self._step = step
        self.run, self.synchronize = step.run, step.synchronize

    def loss(self) -> float:
        """One number of the output; waits for it."""
        got = next(iter(self._step.outputs().values()), np.zeros(0))
        return float(got.reshape(-1)[0]) if got.size else 0.0


def _values(request: requests.Request, rank: int, seed: int) -> np.ndarray:
    """A rank's input; a barrier's is empty."""
    return inputs.values(request, rank, seed) if request.count else np.zeros(0, inputs.numpy_dtype(request.dtype))


def build(ranks: seam.Ranks, request: requests.Request, seed: int, notes: Notes) -> tuple[Bench, dict[str, Any]]:
    """Builds a collective, runs it once, then once more as the first step of the warm-up.

    Returns:
      The bench, and what the record holds of its building; `step_s` sizes the blocks.
    """
    notes.enter(f"building {request.collective} of {request.count} {request.dtype}")
    begin, compiled = time.perf_counter(), ranks.compile_count()
    given = {rank: _values(request, rank, seed) for rank in ranks.local}
    made_inputs = time.perf_counter()
    step = ranks.build(request, given)
    build_s = time.perf_counter() - made_inputs
    del given  # at 256 MiB a rank's host copy would stand beside the device's for as long as the cell lives
    made = Bench(ranks, request, seed, step, notes)
    first = made.block(1, f"the first run of {made.name}")
    compiles = ranks.compile_count() - compiled
    warm = made.block(1, f"the warm-up of {made.name}")
    return made, {
        "compile": {
            **dataclasses.asdict(step.compile_times),
            "build_s": build_s,
            "first_s": first.total_s,
            "compiles": compiles,
        },
        "warm": warm.to_dict(),
        "inputs_s": made_inputs - begin,
    }
