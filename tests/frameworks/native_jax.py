"""JAX's side of `native`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.frameworks import cases
from xlacompare.frameworks.on_jax import compiler

GATE_ARM = "compiled"

_sizes = itertools.count(7001)


def compile_something(arm: str) -> None:
    """Met with a new shape: one primitive (eager), or a jitted function with the arm's options."""
    array = np.zeros(next(_sizes), np.float32)
    if arm in compiler.COMPILER_OPTIONS:
        function = jax.jit(lambda x: x * 2 + 1, compiler_options=compiler.COMPILER_OPTIONS[arm])
    else:
        function = jax.lax.neg
    jax.block_until_ready(function(array))


def asynchronous_step(framework: Any) -> Any:
    """A big batch: jitted calls are asynchronous on every platform."""
    return cases.build(framework, "mlp of 1024", "compiled")


def false_fences() -> dict[str, Callable[[], Any]]:
    """No block_until_ready, or one on an output that was ready before."""
    old = jax.block_until_ready(jax.numpy.zeros(()))
    return {"nothing": lambda: None, "block_until_ready on another array": lambda: jax.block_until_ready(old)}


def hand_loop(step: Any, n: int, first: int) -> float:
    """A training loop as the JAX documentation has it."""
    call, state, batches = step._call, step._state, step._batches
    start = time.perf_counter()
    for i in range(first, first + n):
        state, loss = call(state, batches[i % len(batches)])
    jax.block_until_ready((state, loss))
    seconds = time.perf_counter() - start
    step._state, step._loss = state, loss
    return seconds
