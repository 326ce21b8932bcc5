"""One built cell inside a worker: compile cost, the gate of its arm, warm-up, fence self-test, blocks, memory.

The first steps after the build are the gate: the losses and the updated parameters of the very program that is timed
are compared with the reference, so a program that is fast because it does something else never gets a time.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from typing import Any, Protocol

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import fence, machine, parity, timing
from xlacompare.frameworks import gate, interface
from xlacompare.launch import planted
from xlacompare.workloads import archive, oracle, spec

MEMORY_MEANING_HOST = (
    "resident memory that the cell gave back when it was freed, plus the peak of a block of steps above what was "
    "resident before it; not the framework, the compiler, nor the batches where the archive's own memory serves"
)
MEMORY_MEANING_DEVICE = "peak bytes in use of the device's allocator since the process began, all of its cells so far"


class Sized(Protocol):
    """What `size_blocks` needs of a bench."""

    steps_per_block: int
    step_s: float

    def block(self, mode: str, untimed: bool) -> timing.Block:
        """Runs one block."""
        ...


class GateFailed(Exception):
    """The arm's gate failed; `details` is the gate's result."""

    def __init__(self, result: parity.GateResult) -> None:
        super().__init__(result.message())
        self.details = result.to_dict()


@dataclasses.dataclass
class Bench:
    """A cell that is ready to be timed.

    Attributes:
      steps_per_block: Steps of a block of mode "block"; "stepwise" blocks have as many.
      step_s: Seconds per step of the pilot block that sized the blocks.
      next_index: Index of the next step, so that batches go round.
    """

    framework: interface.Framework
    workload: spec.Workload
    cell: cells.Cell
    inputs: archive.Archive
    step: interface.TrainStep
    steps_per_block: int = 1
    step_s: float = 0.0
    next_index: int = 0

    def block(self, mode: str, untimed: bool) -> timing.Block:
        """Runs one block; where the worker comes from another cell, from the initial state and after one untimed step.

        Where the state lies made 0.9% of a JAX step (standard deviation between two builds of one cell in one process,
        75 runs) that no number of blocks averages out. JAX's reset places the state anew, and that is noise like any
        other; torch's and torch_xla's copy into the tensors that are there, whose place the build chose for good.
        """
        if untimed:
            self.step.reset()
            self.step.run(self.next_index)
            self.step.synchronize()
            self.next_index += 1
        block = timing.MODES[mode](self.step, self.steps_per_block, self.next_index, self.framework.compile_count)
        self.next_index += block.n
        return block

    def finish(self, rebuild: bool) -> dict[str, Any]:
        """Peak memory, and with `rebuild` the cost of building the same cell again in this process; frees the cell."""
        answer: dict[str, Any] = {"memory": self._freed(), "steps": self.next_index}
        if rebuild:
            compiled = self.framework.compile_count()
            again, build_s = _built(self.framework, self.workload, self.cell, self.inputs)
            first_step_s = timing.time_block(again, 1, 0, self.framework.compile_count).total_s
            answer["rebuild"] = {
                "build_s": build_s,
                "first_step_s": first_step_s,
                "compiles": self.framework.compile_count() - compiled,
            }
            again.close()
        return answer

    def _freed(self) -> dict[str, Any]:
        """Closes the step; returns the memory that it needed.

        Both parts are differences over a moment in which only this cell does something: which cells the process holds
        or built before does not matter. Growth during the build would depend on it, because the first cell pays for
        what framework and compiler load and keep. All of it comes after the last timed block: a trimmed heap makes the
        next step fault its pages in again.
        """
        device = self.framework.memory_bytes()
        if device is not None:
            self.step.close()
            return {"peak_bytes": device, "meaning": MEMORY_MEANING_DEVICE}
        gc.collect()
        before = _settled_bytes()
        self.step.reset()
        known = machine.reset_peak_memory()  # after the reset, which may hold the old and the new state for a moment
        timing.time_block(self.step, self.steps_per_block, self.next_index, self.framework.compile_count)
        peak, held = machine.peak_memory_bytes(), _settled_bytes()
        self.step.close()
        gc.collect()
        after = _settled_bytes()
        if not known or before is None or peak is None or held is None or after is None:
            return {"peak_bytes": None, "meaning": "not known on this platform"}
        return {"peak_bytes": max(0, peak - before) + max(0, held - after), "meaning": MEMORY_MEANING_HOST}


def build(
    framework: interface.Framework,
    workload: spec.Workload,
    cell: cells.Cell,
    inputs: archive.Archive,
    reference: oracle.Reference,
    min_block_s: float,
    fence_test: bool,
) -> tuple[Bench, dict[str, Any]]:
    """Builds and checks a cell.

    Returns:
      The bench, and what the record holds of its building.

    Raises:
      GateFailed: The arm does not do the same work.
      UnsupportedError: The framework lacks the arm, or the step never stops compiling.
    """
    begin = time.perf_counter()
    compiled = framework.compile_count()
    step, build_s = _built(framework, workload, cell, inputs)
    first = timing.time_block(step, 1, 0, framework.compile_count)
    result = gate.arm_gate(
        step, workload, inputs.parameters, inputs.buffers, reference, cell.dtype, len(inputs.batches)
    )
    if not result.passed:
        step.close()
        raise GateFailed(result)
    step = planted.planted(step, dict(cell.changed))
    made = Bench(framework, workload, cell, inputs, step, next_index=len(inputs.batches))
    warm = timing.warm_up(step, made.next_index, framework.compile_count)
    made.next_index += warm.steps
    size_blocks(made, warm, min_block_s)
    report = None
    if (
        fence_test
    ):  # a slow step is tested once: five steps of a second are long enough to see a fence that does not wait
        slow = made.step_s > min_block_s
        report = fence.self_test(
            step, max(1, made.steps_per_block // 2), made.next_index, repeats=1 if slow else fence.REPEATS
        )
    return made, {
        "compile": {
            **dataclasses.asdict(step.compile_times),
            "build_s": build_s,
            "first_step_s": first.total_s,
            "compiles": framework.compile_count() - compiled,
        },
        "gate": result.to_dict(),
        "warm_up": dataclasses.asdict(warm),
        "fence": None if report is None else report.to_dict(),
        "steps_per_block": made.steps_per_block,
        "step_s": made.step_s,
        "seconds": time.perf_counter() - begin,
    }


def _settled_bytes() -> int | None:
    """Resident memory without what is freed and not yet given back to the system."""
    machine.trim_heap()
    return machine.resident_bytes()


def _built(
    framework: interface.Framework, workload: spec.Workload, cell: cells.Cell, inputs: archive.Archive
) -> tuple[interface.TrainStep, float]:
    begin = time.perf_counter()
    step = framework.build(
        workload,
        inputs.parameters,
        inputs.buffers,
        inputs.batches,
        cell.dtype,
        cell.compiler,
        frameworks.build_settings(cell.framework, dict(cell.changed)),
    )
    return step, time.perf_counter() - begin


def size_blocks(made: Sized, warm: timing.WarmUp, min_block_s: float) -> None:
    """Sizes the block from one pilot block: a single fenced step takes longer than a step inside a block."""
    made.steps_per_block = timing.steps_per_block(warm.step_s, min_block_s)
    made.step_s = made.block("block", untimed=False).step_s
    made.steps_per_block = timing.steps_per_block(made.step_s, min_block_s)
