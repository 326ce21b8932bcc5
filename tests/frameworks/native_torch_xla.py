"""PyTorch/XLA's side of `native`."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch_xla
from torch_xla.core import xla_model

from tests.frameworks import fences
from xlacompare.frameworks.on_torch_xla import compiler, counters

GATE_ARM = FENCE_ARM = "compiled"

_sizes = itertools.count(7001)


def compile_something(arm: str) -> None:
    """A function met with a new shape: op by op, through Dynamo, or as a lazy graph."""
    array = torch.zeros(next(_sizes)).to(torch_xla.device())
    plants = {"eager": _op_by_op, "openxla": torch.compile(_double, backend="openxla", dynamic=False)}
    plants.get(arm, _double)(array)
    torch_xla.sync()
    xla_model.wait_device_ops()


def _double(array: torch.Tensor) -> torch.Tensor:
    return array * 2 + 1


def _op_by_op(array: torch.Tensor) -> None:
    counters.set_eager(True)
    try:
        _double(array)
    finally:
        counters.set_eager(False)


def false_fences(step: Any) -> dict[str, Any]:
    """No fence at all, and the one that torch_xla offers and that does not wait."""
    return {
        "nothing": fences.Fenced(step, lambda: None),
        "torch_xla.sync(wait=True)": fences.Fenced(step, compiler.unsafe_fence),
    }


def true_fence(step: Any) -> Any:
    """The step itself: programs run beside the host on every platform."""
    return step


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
