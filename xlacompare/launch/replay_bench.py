"""A program without its framework's Python inside a worker: built in the worker's XLA, checked, timed like a step."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

from xlacompare import frameworks
from xlacompare.core import errors, program, program_values, timing
from xlacompare.frameworks import interface
from xlacompare.graph import program_file, runnable
from xlacompare.launch import bench

COMPUTATION = "computation.pb"  # beside the program's other files: what XLA reads where it cannot read StableHLO


@dataclasses.dataclass
class ReplayBench(runnable.Repeated):
    """A replay that is ready to be timed; stands beside `bench.Bench` in a worker.

    Attributes:
      steps_per_block: Runs of a block.
      step_s: Seconds a run of the pilot block that sized the blocks.
    """

    framework: interface.Framework
    steps_per_block: int = 1
    step_s: float = 0.0

    def block(self, mode: str, untimed: bool) -> timing.Block:
        """Runs one block, after one untimed run where the worker comes from another cell."""
        if untimed:
            self.run(0)
            self.synchronize()
        return timing.MODES[mode](self, self.steps_per_block, 0, self.framework.compile_count)

    def finish(self, rebuild: bool) -> dict[str, Any]:
        """Frees the program; a replay has neither a peak of memory nor a second build."""
        self.made.close()
        return {"memory": None}


def request(name: str, folder: pathlib.Path, computation: pathlib.Path, min_block_s: float) -> dict[str, Any]:
    """What a worker is asked, to build a replay; see `build`. Later requests know it as the cell `name`."""
    files = {"folder": str(folder), "computation": str(computation)}
    return {"op": "replay", "cell": name, **files, "min_block_s": min_block_s}


def build(
    framework: interface.Framework, folder: pathlib.Path, computation: pathlib.Path, min_block_s: float
) -> tuple[ReplayBench, dict[str, Any]]:
    """Compiles a captured program in the framework's own XLA and checks its values.

    Args:
      framework: The adapter.
      folder: Of the program.
      computation: The same as an HLO module that the graph's child process made of it.
      min_block_s: Least seconds of a block.

    Returns:
      The bench, and what the record holds of its building.

    Raises:
      MismatchError: The values are not those that the framework which emitted the program computed.
      UnsupportedError: The framework runs no programs but its own.
    """
    begin = time.perf_counter()
    captured = program_file.load(folder)
    program_values.check(captured.inputs, captured.arguments)
    made = frameworks.replay(framework.name, captured, computation.read_bytes())
    found = ReplayBench(made, framework)
    found.run(0)
    found.synchronize()
    worst = _checked(captured, made)
    warm = timing.warm_up(found, 0, framework.compile_count)
    bench.size_blocks(found, warm, min_block_s)
    return found, {
        "replay": {"client": made.client, "fingerprint": captured.fingerprint, "worst": worst},
        "compile": {"compile_s": made.compile_s},
        "warm_up": dataclasses.asdict(warm),
        "steps_per_block": found.steps_per_block,
        "step_s": found.step_s,
        "seconds": time.perf_counter() - begin,
    }


def _checked(captured: program.Program, made: runnable.Runnable) -> dict[str, Any]:
    """The worst output.

    Raises:
      MismatchError: Rounding does not explain it.
    """
    outputs = program_values.judged(captured, made.results())
    worst = max(outputs, key=lambda item: float(item["of_allowed"]))
    if not worst["of_allowed"] <= 1.0:
        raise errors.MismatchError(
            f"{captured.framework}'s program in {made.client} computes other values: {worst['name']} is off by "
            f"{worst['error']:.2g} of its largest element, {worst['of_allowed']:.3g} times what rounding explains"
        )
    return worst
