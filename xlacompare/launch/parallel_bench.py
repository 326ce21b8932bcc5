"""One built training step over ranks inside a rank's process: first step, gate, blocks behind a barrier, what ran.

Every rank runs the gate and answers with its verdict; none gives up alone, because the others would wait for it. How
often a step runs is the coordinator's choice, as with collectives (`rank_bench`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import errors, fence, timeline, timing
from xlacompare.frameworks import gate, interface, strategy
from xlacompare.frameworks import ranks as seam
from xlacompare.launch import planted, planted_ranks, rank_bench
from xlacompare.parallel import arms
from xlacompare.parallel import request as requests
from xlacompare.workloads import archive, load_workload, oracle, spec


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What every rank reads: the whole batch, and what must come out."""

    made: archive.Archive
    reference: oracle.Reference


@dataclasses.dataclass
class Bench(rank_bench.Blocks):
    """A built step.

    Attributes:
      step: The adapter's own.
      planted: What the clock runs: the same, with what the cell plants.
      asked: What was built.
      answer: What was said of building it.
      holders: Those that use the step (cells with something planted round it): the last one closes it.
      index: Steps so far, so that batches go round.
    """

    ranks: seam.Ranks
    cell: cells.Cell
    step: strategy.ParallelStep
    planted: interface.TrainStep
    notes: rank_bench.Notes
    asked: requests.Request
    answer: dict[str, Any] = dataclasses.field(default_factory=dict)
    holders: set[str] = dataclasses.field(default_factory=set)
    index: int = 0

    @property
    def name(self) -> str:
        """For notes."""
        cell = self.cell
        label = "" if cell.label == "matched" else f" {cell.label}"
        return f"{cell.workload} {cell.strategy} {cell.compiler} {cell.communication}{label}"

    @property
    def timed(self) -> timing.Runnable:
        """The step, with what is planted."""
        return self.planted

    @property
    def trains(self) -> bool:
        """Whether there is a state and a loss."""
        return self.cell.communication not in arms.WITHOUT_COMPUTE

    def blocks(self, n: int, count: int, untimed: bool, series: str) -> list[dict[str, Any]]:
        """As with collectives; where the ranks come from another arm, from the initial state.

        An elided arm trains on gradients that were never averaged: over a whole run its numbers would drift to where
        arithmetic has another speed.
        """
        if untimed and self.trains:
            self.notes.enter(f"a reset of {self.name}")
            self.planted.reset()
        return super().blocks(n, count, untimed, series)

    def fence_test(self, n: int) -> dict[str, Any]:
        """Does `synchronize` wait? One run of the self-test."""
        self.notes.enter(f"the fence's self-test of {self.name}")
        made = fence.self_test(self.planted, n, self.index, repeats=1)
        self.index += (1 + fence.GROWTH) * n
        return made.to_dict()

    def communications(self) -> dict[str, Any] | None:
        """What one step communicates; every rank asks, the process of rank 0 answers."""
        self.notes.enter(f"the communication of {self.name}")
        found = self.step.communications()
        return found if 0 in self.ranks.local else None

    def profile(self, n: int, folder: str) -> dict[str, Any]:
        """Traces n steps from the initial state, with what is planted; the raw traces stay under `folder`.

        A profiler that does not say what ran is an answer: the other ranks have run their steps, and the world lives.

        Returns:
          {"steps": [Totals.to_dict(), ...] of this process's ranks, "files", "notes", "reason": "" or why none}.
        """
        if self.trains:
            self.notes.enter(f"a reset of {self.name}")
            self.step.reset()
        self.block(1, f"an untimed run of {self.name}")
        self.notes.enter(f"the traced steps of {self.name}")
        own = pathlib.Path(folder) / f"rank{self.ranks.local[0]}"
        own.mkdir(parents=True, exist_ok=True)
        self.ranks.barrier()
        try:
            found = frameworks.profiled(self.cell.framework, self.ranks, _Traced(self.planted, self.step), n, own)
        except errors.UnsupportedError as error:
            return {"steps": [], "files": [], "notes": [], "reason": str(error)}
        self.index += n + 1
        steps = [step.to_dict() for step in timeline.totals(found)]
        files = [f"{own.name}/{name}" for name in found.files]
        return {"steps": steps, "files": files, "notes": found.notes, "reason": ""}

    def finish(self, work: str) -> dict[str, Any]:
        """What the step computes, where that is asked and can be said; frees the step.

        Every rank counts, which may run a step; the process of rank 0 answers.

        Args:
          work: File for the program, where whoever asks must count it; "" to leave it.
        """
        answer = self._work(pathlib.Path(work)) if work and self.trains else {}
        self.close()
        return answer

    def _work(self, path: pathlib.Path) -> dict[str, Any]:
        self.notes.enter(f"the work of {self.name}")
        counted = self.step.work()
        if counted is None or 0 not in self.ranks.local:
            return {}
        if counted.census is None:
            path.write_bytes(counted.bytecode)
        return {
            "source": counted.source,
            "census": None if counted.census is None else counted.census.to_dict(),
            "inputs": [item.to_dict() for item in counted.inputs],
        }

    def close(self) -> None:
        """Frees the step."""
        self.notes.enter(f"the end of {self.name}")
        planted.free(self.planted)
        self.release(self.cell.id)

    def release(self, who: str) -> None:
        """One of those that use the step is done with it."""
        self.holders.discard(who)
        if not self.holders:
            self.step.close()

    def equals(self, cell: cells.Cell, asked: requests.Request) -> bool:
        """Whether its step is that of a cell, but for what is planted round it."""
        own = planted.round_it(dict(self.cell.changed)) == planted.round_it(dict(cell.changed))
        return own and self.asked == asked and self.cell.comparison == cell.comparison


@dataclasses.dataclass(frozen=True)
class _Traced:
    """What the profiler sees run, and the program that says what it was."""

    timed: interface.TrainStep
    step: strategy.ParallelStep

    def run(self, index: int) -> None:
        """One step, with what is planted."""
        self.timed.run(index)

    def synchronize(self) -> None:
        """Waits for it."""
        self.timed.synchronize()

    def communications(self) -> dict[str, Any]:
        """Of the step itself."""
        return self.step.communications()


def build(
    ranks: seam.Ranks,
    cell: cells.Cell,
    asked: requests.Request,
    inputs: Inputs,
    notes: rank_bench.Notes,
    others: Sequence[rank_bench.Blocks] = (),
) -> tuple[Bench, dict[str, Any]]:
    """Builds a step, runs it once, checks it, and runs it once more as the first step of the warm-up.

    A cell that only plants something round a step that is built already, and has passed its gate, takes that step.

    Args:
      ranks: The ranks of this process.
      cell: The cell.
      asked: What is built for it.
      inputs: Batches, parameters and what must come out.
      notes: Where this rank is.
      others: What is built already in this process.

    Returns:
      The bench, and what the record holds of its building. The bench of a step whose gate failed is only good to be
      closed.
    """

    def built(wanted: requests.Request) -> Bench | None:
        steps = (other for other in others if isinstance(other, Bench))
        return next((bench for bench in steps if bench.equals(cell, wanted)), None)

    found = built(asked)
    made = _shared(found, cell) if found is not None else _built(ranks, cell, asked, inputs, notes)
    made.holders.add(cell.id)

    def again(communication: str) -> interface.TrainStep:
        wanted = dataclasses.replace(asked, communication=communication)
        other = built(wanted)
        if other is None:
            return _step(ranks, cell, wanted, inputs)
        who = f"{cell.id}, beside it"
        other.holders.add(who)
        return planted_ranks.Borrowed(other.step, functools.partial(other.release, who))

    if made.trains:
        made.step.reset()
        made.planted = planted.of_ranks(made.step, dict(cell.changed), ranks.local)
    made.planted = planted_ranks.beside(made.planted, cell, ranks, again)
    return made, {**made.answer, "warm": made.block(1, f"the warm-up of {made.name}").to_dict()}


def _shared(found: Bench, cell: cells.Cell) -> Bench:
    """Another cell's step, which is not built and not checked again."""
    return dataclasses.replace(found, cell=cell, planted=found.step)


def _step(ranks: seam.Ranks, cell: cells.Cell, asked: requests.Request, inputs: Inputs) -> strategy.ParallelStep:
    workload = planted_ranks.optimizer(_workload(cell), dict(cell.changed))
    made = inputs.made
    built: strategy.ParallelStep = frameworks.parallel(cell.framework).build(
        ranks, workload, made.parameters, made.buffers, made.batches, asked
    )
    return built


def _workload(cell: cells.Cell) -> spec.Workload:
    return load_workload(cell.workload, cell.preset, cell.batch_size, cell.optimizer)


def _built(
    ranks: seam.Ranks, cell: cells.Cell, asked: requests.Request, inputs: Inputs, notes: rank_bench.Notes
) -> Bench:
    """A step that was built, run once and checked."""
    notes.enter(f"building {cell.workload} {cell.strategy} {cell.compiler} {cell.communication}")
    begin, compiled = time.perf_counter(), ranks.compile_count()
    step = _step(ranks, cell, asked, inputs)
    build_s = time.perf_counter() - begin
    bench = Bench(ranks, cell, step, step, notes, asked)
    first = bench.block(1, f"the first step of {bench.name}")
    compiles = ranks.compile_count() - compiled
    times = {"build_s": build_s, "first_s": first.total_s, "compiles": compiles}
    checked = _gate(bench, _workload(cell), inputs)
    bench.answer = {"compile": {**dataclasses.asdict(step.compile_times), **times}, "gate": checked}
    return bench


def _gate(bench: Bench, workload: spec.Workload, inputs: Inputs) -> dict[str, Any]:
    """{"kind", "passed", "message", ...}: values against the reference, or that the losses stay finite."""
    bench.notes.enter(f"the gate of {bench.name}")
    steps = len(inputs.made.batches)
    if not bench.trains:
        return {"kind": "none", "passed": True, "message": "no training step: there are no values"}
    if bench.cell.communication in arms.EXACT:
        return _values(bench, workload, inputs, steps)
    bench.step.reset()
    losses = []
    for index in range(steps):
        bench.step.run(index)
        bench.step.synchronize()
        losses.append(bench.step.loss())
    finite = all(map(math.isfinite, losses))
    message = "" if finite else f"gate failed: the losses of {steps} steps are not finite: {losses}"
    return {"kind": "finite", "passed": finite, "message": message, "losses": losses if finite else []}


def _values(bench: Bench, workload: spec.Workload, inputs: Inputs, steps: int) -> dict[str, Any]:
    """Gradients, loss, update, buffers and the trace of losses of the step that is timed, on this process's ranks."""
    made = inputs.made
    gradients = bench.step.gradients()
    result = gate.arm_gate(
        *(bench.step, workload, made.parameters, made.buffers, inputs.reference, bench.cell.dtype, steps), gradients
    )
    return {"kind": "values", "message": "" if result.passed else result.message(), **result.to_dict()}
