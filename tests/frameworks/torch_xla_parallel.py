"""What the tests of torch_xla's training over ranks run in a process of its own, one line of JSON.

python -m tests.frameworks.torch_xla_parallel MODE RANKS
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from tests.frameworks import cases, torch_xla_ranks
from xlacompare import frameworks
from xlacompare.frameworks import gate, ranks
from xlacompare.parallel import arms, request
from xlacompare.workloads import oracle

LONG = 20

# mode -> (strategy, arm, workload of `cases`, dtype), built in this order.
CASES: dict[tuple[str, int], tuple[tuple[str, str, str, str], ...]] = {
    ("spmd", 2): (
        ("dp", "real", "mlp with adamw", "float64"),
        ("dp", "real", "transformer of 2", "float32"),
        ("dp", "real", "convnet of 2 stages", "float32"),
        ("fsdp", "real", "mlp with adamw", "float64"),
        ("tp", "real", "transformer of 2", "float32"),
    ),
    ("spmd", 4): (
        ("dp", "real", "mlp with adamw", "float64"),
        ("dp", "real", "mlp with adamw", "float32"),
        ("fsdp", "real", "mlp with adamw", "float64"),
        ("tp", "real", "mlp with adamw", "float64"),
    ),
}


def build(world: ranks.Ranks, asked: request.Request, variant: str) -> Any:
    """As a rank's process does."""
    workload, made = cases.inputs(variant)
    return frameworks.parallel("torch_xla").build(world, workload, made.parameters, made.buffers, made.batches, asked)


def worst_gradient(gradients: dict[str, Any], variant: str, dtype: str) -> float:
    """The largest error of a gradient against float64, in units of its limit."""
    reference = cases.reference(variant, dtype)
    exact = reference.oracle.gradients
    return max(
        oracle.gradient_error(value, exact, name) / reference.limit("gradient", name)
        for name, value in gradients.items()
    )


def trained(world: ranks.Ranks, step: Any, variant: str, asked: request.Request) -> dict[str, Any]:
    """What comes out of a step with compute."""
    workload, made = cases.inputs(variant)
    found: dict[str, Any] = {"gradient": worst_gradient(step.gradients(), variant, asked.dtype)}
    if asked.communication in arms.EXACT:
        reference = cases.reference(variant, asked.dtype)
        result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, asked.dtype, cases.STEPS)
        found |= {"passed": result.passed, "message": "" if result.passed else result.message()}
        found["after"] = worst_gradient(step.gradients(), variant, asked.dtype)
    step.reset()
    compiles = world.compile_count()
    for index in range(LONG):
        step.run(index)
    step.synchronize()
    found |= {"compiles": world.compile_count() - compiles, "loss": step.loss()}
    found["work"] = step.work()
    return found


def one(world: ranks.Ranks, asked: request.Request, variant: str) -> dict[str, Any]:
    """Builds a step and says what it does."""
    step = build(world, asked, variant)
    row: dict[str, Any] = {"request": {**asked.to_dict(), "schedule": []}, "variant": variant}
    row |= trained(world, step, variant, asked)
    row["lowered"] = step.communications()
    step.close()
    return row


@contextlib.contextmanager
def _sum() -> Iterator[None]:
    """Gradients are those of the sum over two ranks, not of the mean: adamw's update hides it."""
    from xlacompare.frameworks.on_torch_xla import replica

    plain = replica.backward
    with mock.patch.object(replica, "backward", lambda loss: plain(2 * loss)):
        yield


@contextlib.contextmanager
def _first_half_twice() -> Iterator[None]:
    """The second rank's rows are the first one's."""
    from xlacompare.frameworks.on_torch_xla import partitioned, replica

    plain = replica.Replica

    def given(device: Any, workload: Any, initial: Any, batches: Any, dtype: str) -> Any:
        half = [{name: np.concatenate([a[: len(a) // 2]] * 2) for name, a in batch.items()} for batch in batches]
        return plain(device, workload, initial, half, dtype)

    with mock.patch.object(partitioned.replica, "Replica", given):
        yield


MUTATIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "sum": _sum,
    "first_half_twice": _first_half_twice,
}


def mutated(world: ranks.Ranks, name: str) -> dict[str, Any]:
    """Gate and gradients of a step that is wrong."""
    variant = "mlp with adamw"
    workload, made = cases.inputs(variant)
    reference = cases.reference(variant, "float32")
    asked = request.Request("dp", "real", "compiled", "float32", world.describe()["devices"])
    with MUTATIONS[name]():
        step = build(world, asked, variant)
        answer = {"gradient": worst_gradient(step.gradients(), variant, "float32")}
        result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, "float32", 2)
        answer["passed"] = result.passed
        step.close()
    return answer


def run(mode: str, size: int) -> dict[str, Any]:
    """All cases of a mode in one world, and with two ranks the mutations."""
    world = torch_xla_ranks.start(mode, size)
    rows = []
    for strategy, arm, variant, dtype in CASES[mode, size]:
        asked = request.Request(strategy, arm, "compiled", dtype, size)
        rows.append(one(world, asked, variant))
    wrong = {name: mutated(world, name) for name in MUTATIONS} if size == 2 else {}
    world.close()
    return {"rows": rows, "mutations": wrong}


if __name__ == "__main__":
    os.environ["PJRT_DEVICE"] = "CPU"  # torch_xla asks for it at its import
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))), flush=True)
    os._exit(0)
