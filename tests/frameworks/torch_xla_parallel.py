"""What the tests of torch_xla's training over ranks run in a process of its own, one line of JSON.

python -m tests.frameworks.torch_xla_parallel MODE RANKS    cases of training
python -m tests.frameworks.torch_xla_parallel staged        upstream's hang, which `Lanes.led` is there for
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.frameworks import cases, torch_xla_ranks
from xlacompare import frameworks
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks import gate, ranks
from xlacompare.graph import client
from xlacompare.parallel import arms, request, shards
from xlacompare.workloads import oracle

LONG = 20

# mode -> (strategy, arm, workload of `cases`, dtype), built in this order.
CASES: dict[tuple[str, int], tuple[tuple[str, str, str, str], ...]] = {
    ("threads", 2): (
        ("dp", "real", "mlp with adamw", "float64"),
        ("dp", "real", "transformer of 2", "float32"),
        *(("dp", arm, "mlp with adamw", "float32") for arm in arms.ARMS),
        *(("fsdp", arm, "mlp of 8", "float32") for arm in arms.ARMS),
        ("fsdp", "real", "mlp of 8", "float64"),
    ),
    ("threads", 4): (
        ("dp", "real", "mlp with adamw", "float64"),
        ("dp", "real", "mlp with adamw", "float32"),
        ("dp", "elided", "mlp with adamw", "float32"),
        ("fsdp", "real", "mlp with adamw", "float64"),
    ),
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
    work = step.work()
    found["work"] = work and {
        "bytecode": base64.b64encode(work.bytecode).decode(),
        "inputs": [item.to_dict() for item in work.inputs],
    }
    return found


def one(world: ranks.Ranks, asked: request.Request, variant: str) -> dict[str, Any]:
    """Builds a step and says what it does."""
    step = build(world, asked, variant)
    row: dict[str, Any] = {"request": {**asked.to_dict(), "schedule": []}, "variant": variant}
    if asked.communication in arms.WITHOUT_COMPUTE:
        compiles = world.compile_count()
        for index in range(LONG):
            step.run(index)
        step.synchronize()
        row["compiles"] = world.compile_count() - compiles
    else:
        row |= trained(world, step, variant, asked)
    row["lowered"] = step.communications()
    step.close()
    return row


@contextlib.contextmanager
def _sum() -> Iterator[None]:
    """Gradients are added up, not averaged: adamw's update hides it."""
    from torch_xla.core import xla_model

    plain = xla_model.all_reduce
    with mock.patch.object(xla_model, "all_reduce", lambda kind, tensors, scale=1.0: plain(kind, tensors)):
        yield


@contextlib.contextmanager
def _one_not_reduced() -> Iterator[None]:
    """The last gradient stays what the rank has."""
    from torch_xla.core import xla_model

    plain = xla_model.all_reduce
    with mock.patch.object(xla_model, "all_reduce", lambda kind, tensors, **more: plain(kind, tensors[:-1], **more)):
        yield


@contextlib.contextmanager
def _first_shard_twice() -> Iterator[None]:
    plain = shards.rows
    with mock.patch.object(shards, "rows", lambda batch, rank, n: plain(batch, 0 if rank == 1 else rank, n)):
        yield


MUTATIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "sum": _sum,
    "one_not_reduced": _one_not_reduced,
    "first_shard_twice": _first_shard_twice,
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


def _schedule(text: str) -> tuple[LoweredCollective, ...]:
    with client.Client(120.0) as reader:
        found = reader.collectives([text])[0]
    assert not isinstance(found, str), found
    return tuple(found)


def run(mode: str, size: int) -> dict[str, Any]:
    """All cases of a mode in one world, and with two lanes the mutations."""
    world = torch_xla_ranks.start(mode, size)
    schedule = functools.cache(_schedule)
    rows, real = [], ""
    for strategy, arm, variant, dtype in CASES[mode, size]:
        asked = request.Request(strategy, arm, "compiled", dtype, size)
        if arm in arms.WITHOUT_COMPUTE:
            asked = dataclasses.replace(asked, schedule=schedule(real))
        rows.append(one(world, asked, variant))
        real = rows[-1]["lowered"]["text"] if arm == "real" else real
    wrong = {name: mutated(world, name) for name in MUTATIONS} if (mode, size) == ("threads", 2) else {}
    world.close()
    return {"rows": rows, "mutations": wrong}


def staged() -> dict[str, Any]:
    """A training step whose lanes launch one after the other, each when the one before has returned."""
    world: Any = torch_xla_ranks.start("threads", 2)
    world.lanes.led = world.lanes.staged
    build(world, request.Request("dp", "real", "compiled", "float32", 2), "mlp of 8")
    return {}


if __name__ == "__main__":
    os.environ["PJRT_DEVICE"] = "CPU"  # torch_xla asks for it at its import
    print(json.dumps(staged() if sys.argv[1] == "staged" else run(sys.argv[1], int(sys.argv[2]))), flush=True)
    os._exit(0)
