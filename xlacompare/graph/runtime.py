"""The neutral runtime: any captured program in jaxlib's own CPU client, without the framework that emitted it.

Runs in the graph's child process. The program goes to the client as it is; of JAX only `device_put` is used, since
jaxlib 0.10.2 alone has no way to put an array on a device.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax
import jaxlib
import numpy as np
from jaxlib import _jax

from xlacompare.core import errors, program
from xlacompare.graph import parsing, program_file, runnable

_MARK = r"(?:tf\.aliasing_output = \d+ : i32|jax\.buffer_donor = true)"
DONATION = re.compile(rf", {_MARK}|{_MARK}(?:, )?")
EPSILONS = 64  # of float32 against the largest element: two XLA builds order their sums differently


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
    check(captured.inputs, captured.arguments)
    source = _without_donation(captured)
    check_fits(source, captured.inputs)
    with jax.enable_x64(True):  # else 64-bit inputs are cut
        buffers = jax.device_put(captured.arguments, jax.devices("cpu")[0], may_alias=False)
    device = jax.devices("cpu")[0]
    begin = time.perf_counter()
    executable = device.client.compile_and_load(source, [device], _jax.CompileOptions())
    return JaxlibRunnable(f"jaxlib {jaxlib.__version__}", time.perf_counter() - begin, executable, buffers)


def _without_donation(captured: program.Program) -> bytes | str:
    """The program without the mark that an input may be overwritten, so that every run finds its inputs."""
    bare = DONATION.sub("", captured.stablehlo)
    return captured.bytecode if bare == captured.stablehlo else bare


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


def check(inputs: tuple[program.Tensor, ...], arguments: list[np.ndarray]) -> None:
    """Raises BadInputError where values are missing or do not have the described type."""
    if len(inputs) != len(arguments):
        raise errors.BadInputError(f"{len(arguments)} values for {len(inputs)} inputs: capture the program with values")
    for place, (item, array) in enumerate(zip(inputs, arguments, strict=True)):
        if (item.dtype, item.shape) != (str(array.dtype), tuple(array.shape)):
            raise errors.BadInputError(
                f"input {place} ({item.name or item.role}) is {array.dtype}{list(array.shape)}, "
                f"the program takes {item.dtype}{list(item.shape)}"
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
    outputs = _judged(captured, made.results())
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


def _judged(captured: program.Program, got: list[np.ndarray]) -> list[dict[str, Any]]:
    """Each output's error, and its share of what rounding explains."""
    before = {item.name: array for item, array in zip(captured.inputs, captured.arguments, strict=True) if item.name}
    exact = dict(zip((item.name for item in captured.outputs), captured.expected, strict=True))
    found = []
    for item, one in zip(captured.outputs, got, strict=True):
        other = exact[item.name].astype(np.float64)
        error = np.abs(one.astype(np.float64) - other) if one.shape == other.shape else np.full((), np.inf)
        allowed = np.asarray(_allowed(item, before, exact))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(error == 0, 0.0, error / allowed)
        scale = float(np.max(np.abs(other), initial=0.0)) or 1.0
        found.append(
            {
                "name": item.name,
                "role": item.role,
                "error": float(np.max(error, initial=0.0)) / scale,
                "of_allowed": float(np.max(np.nan_to_num(share, nan=np.inf), initial=0.0)),
            }
        )
    return found


def _allowed(item: program.Tensor, before: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> np.ndarray:
    """Error that two orders of summation explain, by element.

    AdamW's first update is learning rate * g / (|g| + eps): where g is no larger than its rounding error (the gradient
    of a key's bias is zero but for rounding), the error is as large as the update. Hence a parameter may differ by
    largest update * rounding of g / |g| more, at most twice the largest update.
    """
    base = _rounding(exact[item.name])
    moments = [exact[name] for name in (f"mu of {item.name}", f"exp_avg of {item.name}") if name in exact]
    if item.role != "parameter" or not moments or item.name not in before:
        return np.asarray(base)
    update = float(np.max(np.abs(exact[item.name] - before[item.name]), initial=0.0))
    size = np.abs(moments[0].astype(np.float64))
    share = np.divide(_rounding(moments[0]), size, out=np.full(size.shape, 2.0), where=size > 0)
    return np.asarray(base + update * np.minimum(share, 2.0))


def _rounding(array: np.ndarray) -> float:
    if not np.issubdtype(array.dtype, np.floating):
        return 0.0
    return EPSILONS * float(np.finfo(array.dtype).eps) * float(np.max(np.abs(array), initial=0.0))
