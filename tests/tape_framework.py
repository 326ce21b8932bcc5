"""A framework made of the NumPy tape, with a place for every fault. The gate's own tests need no real framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import threadpoolctl

from xlacompare.frameworks import interface
from xlacompare.workloads import optimizers, oracle, spec, tape


def same(value):
    return value


class TapeFramework:
    """Right by default; each argument plants a fault.

    Arguments:
      workload: Changes the workload (its configuration or optimizer).
      make_tape: Another tape, with wrong operations.
      parameters, batch: Change what the model sees.
      gradients: Changes the gradients that the optimizer and the evaluation see.
      update: Another `optimizers.update`.
      buffers: Changes the updated buffers: (new, old) -> new.
    """

    name = "tape"
    convention = "flax"

    def __init__(
        self,
        workload: Callable = same,
        make_tape: type[tape.Tape] = tape.Tape,
        parameters: Callable = same,
        batch: Callable = same,
        gradients: Callable = same,
        update: Callable = optimizers.update,
        buffers: Callable = lambda new, old: new,
    ):
        self.workload, self.make_tape, self.parameters, self.batch = workload, make_tape, parameters, batch
        self.gradients, self.update, self.buffers = gradients, update, buffers

    def step(self, workload, dtype, parameters, buffers, batch):
        recorder = self.make_tape(dtype)
        seen = {name: np.asarray(value, recorder.wide) for name, value in self.parameters(parameters).items()}
        with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as oracle.evaluate
            loss, new, taps, gradients = oracle.run_step(
                self.workload(workload), recorder, seen, buffers, self.batch(batch)
            )
        return loss, self.buffers(new, buffers), taps, self.gradients(gradients)

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        loss, _, taps, gradients = self.step(workload, dtype, parameters, buffers, batch)
        return interface.Evaluation(loss, taps, gradients, {"erf": "composed"})

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> TapeStep:
        return TapeStep(self, workload, parameters, buffers, batches, dtype)


class TapeStep:
    def __init__(self, framework, workload, parameters, buffers, batches, dtype):
        self.framework, self.workload, self.batches, self.dtype = framework, workload, batches, dtype
        wide = tape.Tape(dtype).wide
        self.initial = tuple({k: np.asarray(v, wide) for k, v in side.items()} for side in (parameters, buffers))
        self.closed = False
        self.compile_times = interface.CompileTimes()
        self.reset()

    def reset(self) -> None:
        self.parameters, self.buffers = self.initial
        self.moments = optimizers.initial_state(self.workload.optimizer, self.parameters)
        self.count = 0

    def run(self, index: int) -> None:
        batch = self.batches[index % len(self.batches)]
        self.last, self.buffers, _, gradients = self.framework.step(
            self.workload, self.dtype, self.parameters, self.buffers, batch
        )
        optimizer = self.framework.workload(self.workload).optimizer
        self.parameters, self.moments = self.framework.update(
            optimizer, self.count, self.parameters, gradients, self.moments
        )
        self.count += 1

    def synchronize(self) -> None:
        pass

    def loss(self) -> float:
        return self.last

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        return self.parameters, self.buffers

    def close(self) -> None:
        self.closed = True
