"""PyTorch/XLA's side of `native`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch_xla.core import xla_model

from xlacompare.frameworks.on_torch_xla import compiler, counters

GATE_ARM = "compiled"

_sizes = itertools.count(7001)


def compile_something(arm: str) -> None:
    """A function met with a new shape: op by op, through Dynamo, or as a lazy graph."""
    array = torch.zeros(next(_sizes)).to(torch_xla.device())
    plants = {"eager": _op_by_op, "openxla": torch.compile(_double, backend="openxla", dynamic=False)}
    made = plants.get(arm, _double)(array)  # kept: a lazy tensor that is dropped is never compiled
    torch_xla.sync()
    xla_model.wait_device_ops()
    del made


def _double(array: torch.Tensor) -> torch.Tensor:
    return array * 2 + 1


def _op_by_op(array: torch.Tensor) -> torch.Tensor:
    counters.set_eager(True)
    try:
        return _double(array)
    finally:
        counters.set_eager(False)


class Chain:
    """A chain of matrix products as a step.

    The launch of a training step is no example on the CPU: it donates the state, and then returns when the program is
    done more often than not (17 of 17 ms; with XLA_ENABLE_PARAM_ALIASING=0 after 5 of 18; torch_xla 2.9.0).
    """

    def __init__(self, size: int = 512, length: int = 12) -> None:
        generator = torch.Generator().manual_seed(0)
        self._start = torch.randn(size, size, generator=generator).to(torch_xla.device())
        self._factor = (torch.randn(size, size, generator=generator) / size**0.5).to(torch_xla.device())
        self._length = length

    def run(self, index: int) -> None:
        value = self._start
        for _ in range(self._length):
            value = torch.tanh(value @ self._factor)
        self._value = value[:1, :1].sum()
        del value
        torch_xla.sync()

    def synchronize(self) -> None:
        compiler.fence()

    def loss(self) -> float:
        return self._value.item()


def asynchronous_step(framework: Any) -> Any:
    """A chain: nothing is donated."""
    return Chain()


def false_fences() -> dict[str, Callable[[], Any]]:
    """No fence at all, and the one that torch_xla offers and that does not wait."""
    return {"nothing": lambda: None, "torch_xla.sync(wait=True)": compiler.unsafe_fence}


def hand_loop(step: Any, n: int, first: int) -> float:
    """Traces each step, launches it with sync(), and waits for the device once."""
    train, batches = step._training.step, step._batches
    start = time.perf_counter()
    for i in range(first, first + n):
        loss = train(batches[i % len(batches)])
        torch_xla.sync()
    xla_model.wait_device_ops()
    seconds = time.perf_counter() - start
    step._loss = loss
    return seconds
