"""The adapter of the stand-in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from xlacompare.core import errors
from xlacompare.frameworks import interface
from xlacompare.workloads import optimizers, oracle, spec, tape

FAULTS = (
    "crash_in_build",
    "linger",
    "crash_in_block",
    "stop_in_block",
    "raise",
    "out_of_memory",
    "out_of_memory_in_visit",
    "wrong",
    "recompile",
    "always_recompile",
    "unsupported",
)


def _fault(arm: str) -> str:
    where, _, fault = os.environ.get("STANDIN_FAULT", "").partition(":")
    return fault if where == arm else ""


class Step:
    """One training step on the tape."""

    def __init__(
        self, adapter: Adapter, workload: spec.Workload, initial: Any, batches: Any, dtype: str, arm: str
    ) -> None:
        self._adapter, self._workload, self._initial, self._batches = adapter, workload, initial, batches
        self._dtype, self._arm, self._fault, self._calls, self._resets = dtype, arm, _fault(arm), 0, 0
        self.compile_times = interface.CompileTimes(note="nothing is compiled")
        where, _, factor = os.environ.get("STANDIN_SLOW", "").partition(":")
        self._repeats = int(factor) if where == arm else 1
        self.reset()

    def reset(self) -> None:
        wide = tape.Tape(self._dtype).wide
        self._parameters, self._buffers = ({k: np.asarray(v, wide) for k, v in side.items()} for side in self._initial)
        self._state = optimizers.initial_state(self._workload.optimizer, self._parameters)
        self._count, self._loss = 0, float("nan")
        self._resets += 1  # the build, the gate, then one for each visit

    def run(self, index: int) -> None:
        self._calls += 1
        self._misbehave()
        batch = self._batches[index % len(self._batches)]
        for _ in range(self._repeats):
            loss, buffers, _, gradients = oracle.run_step(
                self._workload, tape.Tape(self._dtype), self._parameters, self._buffers, batch
            )
        if self._fault == "wrong":
            gradients = {name: gradient * 1.01 for name, gradient in gradients.items()}
        self._parameters, self._state = optimizers.update(
            self._workload.optimizer, self._count, self._parameters, gradients, self._state
        )
        self._buffers, self._loss, self._count = buffers, loss, self._count + 1

    def _misbehave(self) -> None:
        warm = self._calls > 40
        if self._fault == "always_recompile" or (self._fault == "recompile" and warm and self._calls % 5 == 0):
            self._adapter.compiles += 1
        if self._fault == "crash_in_block" and warm:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._fault == "stop_in_block" and warm:
            time.sleep(3600)
        if self._fault == "out_of_memory_in_visit" and self._resets > 6:
            raise MemoryError("planted in a visit")
        if self._fault == "raise" and warm:
            raise RuntimeError("planted: a step that raises")

    def synchronize(self) -> None:
        """Everything is done already."""

    def loss(self) -> float:
        return float(self._loss)

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        return {k: np.array(v) for k, v in self._parameters.items()}, {k: np.array(v) for k, v in self._buffers.items()}

    def close(self) -> None:
        self._parameters = self._state = self._batches = None


class Adapter:
    """NumPy."""

    name = "standin"
    convention = "flax"

    def __init__(self) -> None:
        self.compiles = 0
        self.kept: list[np.ndarray] = []
        mark = os.environ.get("STANDIN_DIES_AT_START", "")  # a file: the first start finds it and dies
        if mark and os.path.exists(mark):
            os.remove(mark)
            os.kill(os.getpid(), signal.SIGKILL)

    def describe(self) -> dict[str, Any]:
        return {
            "platform": "cpu",
            "threads": int(os.environ["OMP_NUM_THREADS"]),
            "asynchronous": False,
            "numpy": np.__version__,
        }

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        loss, _, activations, gradients = oracle.run_step(workload, tape.Tape(dtype), parameters, buffers, batch)
        return interface.Evaluation(loss, activations, gradients)

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> Step:
        fault = _fault(arm) if dtype != "float64" else ""
        if fault == "crash_in_build":
            os._exit(17)
        if fault == "linger":  # the stream ends, the process does not: some thread of a compiler holds it
            print("torch._inductor.exc.InductorError: InvalidCxxCompiler: planted", flush=True)
            os.closerange(3, 256)
            time.sleep(3600)
        if fault == "out_of_memory":
            raise MemoryError("planted")
        if fault == "unsupported":
            raise errors.UnsupportedError("planted: this arm cannot be built")
        self.compiles += 1
        if not self.kept:  # what a runtime loads at its first build and keeps, in MiB
            self.kept.append(np.ones(int(os.environ.get("STANDIN_KEEPS", "0")) << 20, np.uint8))
        step = Step(self, workload, (parameters, buffers), batches, dtype, arm)
        step._repeats *= 2 if settings.get("twice") else 1
        return step

    def compile_count(self) -> int:
        return self.compiles

    def memory_bytes(self) -> int | None:
        return None
