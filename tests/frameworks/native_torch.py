"""Native torch's side of `native`."""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Callable
from concurrent import futures
from typing import Any

import torch

from tests.frameworks import cases

GATE_ARM = "eager"

_BACKENDS = {"eager": "eager", "captured": "aot_eager", "compiled": "inductor", "inductor_model": "inductor"}
_sizes = itertools.count(7001)


def compile_something(arm: str) -> None:
    """A function that Dynamo has not seen, by the arm's backend; the arm `eager` meets one in its user's code."""
    function = types.FunctionType(_double.__code__.replace(), globals(), "new")
    torch.compile(function, backend=_BACKENDS[arm], dynamic=False)(torch.zeros(next(_sizes)))


def _double(array: torch.Tensor) -> torch.Tensor:
    return array * 2 + 1


class Queued:
    """A step that returns at once and does its work in another thread, as a device does: torch on the CPU does not."""

    def __init__(self, step: Any) -> None:
        self._step, self._device = step, futures.ThreadPoolExecutor(1)
        self._last: Any = None

    def run(self, index: int) -> None:
        self._last = self._device.submit(self._step.run, index)

    def synchronize(self) -> None:
        self._last.result()

    def loss(self) -> float:
        self.synchronize()
        return self._step.loss()


def asynchronous_step(framework: Any) -> Any:
    """A queued step."""
    return Queued(cases.build(framework, "mlp of 1024", "eager"))


def false_fences() -> dict[str, Callable[[], Any]]:
    """A clock without synchronisation: right on the CPU, wrong on every device that queues its work."""
    return {"nothing": lambda: None}


def hand_loop(step: Any, n: int, first: int) -> float:
    """The step's function over the batches; on the CPU it is done when it returns."""
    train, batches = step._program.step, step._batches
    start = time.perf_counter()
    for i in range(first, first + n):
        loss = train(batches[i % len(batches)])
    if loss.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    step._loss = loss
    return seconds
