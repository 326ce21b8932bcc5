"""The neutral runtime: any captured program in jaxlib's own CPU client, without the framework that emitted it.

Runs in the graph's child process. The program goes to the client as it is; of JAX only `device_put` is used, since
jaxlib 0.10.2 alone has no way to put an array on a device.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import time
from typing import Any

import jax
import jaxlib
import numpy as np
from jaxlib import _jax

from xlacompare.core import errors, program, program_values
from xlacompare.graph import parsing, program_file, runnable


@dataclasses.dataclass
class JaxlibRunnable:
    """A program in jaxlib's client, see `runnable.Runnable`.

    Attributes:
      executable: Of jaxlib.
      buffers: On the device, in call order.
    """

    client: str
    compile_s: float
    executable: Any
    buffers: list[Any]
    _last: list[Any] = dataclasses.field(default_factory=list)

    def dispatch(self) -> None:
        """Starts one run on the same inputs."""
        results = self.executable.execute_sharded(self.buffers).disassemble_into_single_device_arrays()
        self._last = [parts[0] for parts in results]

    def synchronize(self) -> None:
        """Waits for the last run; a device runs its programs in order."""
        for item in self._last:
            item.block_until_ready()

    def results(self) -> list[np.ndarray]:
        """Outputs of the last run."""
        return [np.asarray(item) for item in self._last]

    def close(self) -> None:
        """Frees everything."""
        self.executable, self.buffers, self._last = None, [], []


def prepare(captured: program.Program) -> JaxlibRunnable:
    """Compiles a program and places its inputs.

    Raises:
      BadInputError: Not StableHLO, bytecode that is damaged or too new, or inputs that do not fit.
    """
    program_values.check(captured.inputs, captured.arguments)
    source = program.without_donation(captured)
    check_fits(source, captured.inputs)
    with jax.enable_x64(True):  # else 64-bit inputs are cut
        buffers = jax.device_put(captured.arguments, jax.devices("cpu")[0], may_alias=False)
    device = jax.devices("cpu")[0]
    begin = time.perf_counter()
    executable = device.client.compile_and_load(source, [device], _jax.CompileOptions())
    return JaxlibRunnable(f"jaxlib {jaxlib.__version__}", time.perf_counter() - begin, executable, buffers)


def check_fits(source: bytes | str, inputs: tuple[program.Tensor, ...]) -> None:
    """Raises BadInputError where the program takes other inputs than the summary describes, or is no StableHLO."""
    wanted = parsing.parameters(source)
    given = [(parsing.NAMES.get(item.dtype, item.dtype), item.shape) for item in inputs]
    if len(wanted) != len(given):
        raise errors.BadInputError(
            f"the program takes {len(wanted)} inputs, {len(given)} are described: capture it again"
        )
    for place, (one, other) in enumerate(zip(wanted, given, strict=True)):
        if one != other:
            name = inputs[place].name or inputs[place].role
            raise errors.BadInputError(
                f"input {place} ({name}) is described as {other[0]}{list(other[1])}, the program takes "
                f"{one[0]}{list(one[1])}: capture it again"
            )


def run(folder: str, runs: int = 0) -> dict[str, Any]:
    """Runs a saved program; compares with what its framework computed, and times `runs` runs.

    Returns:
      {"client", "outputs": [{"name", "role", "error" relative to the largest element, "of_allowed"}], "wrong": names,
      "median_s": None without runs, "compile_s"}.
    """
    captured = program_file.load(pathlib.Path(folder))
    return outcome(captured, prepare(captured), runs)


def outcome(captured: program.Program, made: runnable.Runnable, runs: int) -> dict[str, Any]:
    """Runs a program in its client; returns what `run` does."""
    made.dispatch()
    made.synchronize()
    outputs = program_values.judged(captured, made.results())
    seconds = [_timed(made) for _ in range(runs)]
    return {
        "client": made.client,
        "outputs": outputs,
        "wrong": [item["name"] for item in outputs if not item["of_allowed"] <= 1.0],
        "compile_s": made.compile_s,
        "median_s": statistics.median(seconds) if seconds else None,
    }


def _timed(made: runnable.Runnable) -> float:
    begin = time.perf_counter()
    made.dispatch()
    made.synchronize()
    return time.perf_counter() - begin
