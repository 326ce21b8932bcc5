"""One built cell inside a worker: compile cost, the gate of its arm, warm-up, fence self-test, blocks, memory.

The first steps after the build are the gate: the losses and the updated parameters of the very program that is timed
are compared with the reference, so a program that is fast because it does something else never gets a time.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import fence, machine, parity, timing
from xlacompare.frameworks import gate, interface
from xlacompare.launch import planted
from xlacompare.workloads import archive, oracle, spec

MEMORY_MEANING_HOST = "peak resident memory while steps ran, minus resident memory just before the cell was built"
MEMORY_MEANING_DEVICE = "peak bytes in use of the device's allocator"


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
    resident_before: int | None
    steps_per_block: int = 1
    step_s: float = 0.0
    next_index: int = 0

    def block(self, mode: str, untimed: bool) -> timing.Block:
        """Runs one block; where the worker comes from another cell, from the initial state and after one untimed step.

        The reset places the state anew. Where it lies made 0.9% of a step (standard deviation between two builds of one
        cell in one process, 75 runs) that no number of blocks averages out; placed anew it is noise like any other.
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
        answer: dict[str, Any] = {"memory": self._memory(), "steps": self.next_index}
        self.step.close()
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

    def _memory(self) -> dict[str, Any]:
        device = self.framework.memory_bytes()
        if device is not None:
            return {"peak_bytes": device, "meaning": MEMORY_MEANING_DEVICE}
        peak = machine.peak_memory_bytes()
        if peak is None or self.resident_before is None:
            return {"peak_bytes": None, "meaning": "not known on this platform"}
        return {"peak_bytes": max(0, peak - self.resident_before), "meaning": MEMORY_MEANING_HOST}


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
    machine.trim_heap()
    resident = machine.resident_bytes()
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
    made = Bench(framework, workload, cell, inputs, step, resident, next_index=len(inputs.batches))
    warm = timing.warm_up(step, made.next_index, framework.compile_count)
    made.next_index += warm.steps
    _size_blocks(made, warm, min_block_s)
    report = None
    if (
        fence_test
    ):  # a slow step is tested once: five steps of a second are long enough to see a fence that does not wait
        slow = made.step_s > min_block_s
        report = fence.self_test(
            step, max(1, made.steps_per_block // 2), made.next_index, repeats=1 if slow else fence.REPEATS
        )
    machine.trim_heap()  # what the compiler freed is not the step's memory
    machine.reset_peak_memory()
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


def _size_blocks(made: Bench, warm: timing.WarmUp, min_block_s: float) -> None:
    """Sizes the block from one pilot block: a single fenced step takes longer than a step inside a block."""
    made.steps_per_block = timing.steps_per_block(warm.step_s, min_block_s)
    made.step_s = made.block("block", untimed=False).step_s
    made.steps_per_block = timing.steps_per_block(made.step_s, min_block_s)
