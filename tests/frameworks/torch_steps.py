"""What torch ranks do with training steps for the tests; each function runs on every rank of a world."""

from __future__ import annotations

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist
from torch.autograd import profiler
from torch.nn import parallel as nn_parallel

from tests.frameworks import cases
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks import gate
from xlacompare.frameworks.on_torch import arm_group, ddp, parallel, tensor_parallel
from xlacompare.parallel import arms, request, shards

FINITE_STEPS = 20
REAL_ONLY = ("dp in views", "fsdp", "fsdp again", "tp mlp")
# Name -> strategy, variant of `cases`, dtype, settings.
WORLD_OF_2: dict[str, tuple[str, str, str, dict]] = {
    "dp": ("dp", "transformer of 2", "float64", {"bucket_mb": 0.05}),
    "dp flat": ("dp", "mlp of 8", "float32", {"flat": True}),
    "dp in views": ("dp", "mlp of 8", "float32", {"gradient_as_bucket_view": True}),
    "dp convnet": ("dp", "convnet of 2 stages", "float64", {}),
    "fsdp": ("fsdp", "transformer of 2", "float64", {}),
    "fsdp mlp": ("fsdp", "mlp of 8", "float32", {}),
    "fsdp again": ("fsdp", "mlp of 8", "float32", {"reshard_after_forward": True}),
    "tp": ("tp", "transformer of 2", "float64", {}),
    "tp mlp": ("tp", "mlp of 8", "float32", {}),
}
WORLD_OF_4: dict[str, tuple[str, str, str, dict]] = {
    "dp": ("dp", "mlp with adamw", "float64", {"bucket_mb": 0.5}),
    "fsdp": ("fsdp", "mlp with adamw", "float64", {}),
    "fsdp convnet": ("fsdp", "convnet of 2 stages", "float64", {}),
    "tp": ("tp", "transformer of 2", "float64", {}),
}


def two(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """All that a world of two ranks has to answer, in one start."""
    return {
        "cases": {
            name: _arms(ranks, size, case, ("real",) if name in REAL_ONLY else arms.ARMS)
            for name, case in WORLD_OF_2.items()
        },
        "faults": {name: _fault(ranks, size, name) for name in FAULTS},
        "buckets": {str(mb): len(_ops(ranks, size, {"bucket_mb": mb})) for mb in (25, 1, 0.01)},
        "overlaps": {arm: _overlaps(ranks, size, arm) for arm in ("real", "serial")},
        "groups": dist.distributed_c10d._world.group_count,
        "left": len(dist.distributed_c10d._world.pg_map),
    }


def four(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """The gates of a world of four."""
    return {"cases": {name: _arms(ranks, size, case, ("real",)) for name, case in WORLD_OF_4.items()}}


def compiled(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """The compiled arm: its gate, what it sends, what it compiles when it runs again."""
    before = ranks.compile_count()
    step = _build(ranks, size, ("dp", "mlp of 8", "float32", {"bucket_mb": 0.5}), "real", (), "compiled")
    first = ranks.compile_count()
    found = {"gate": _gate(step, "mlp of 8", "float32"), "note": step.compile_times.note}
    found |= {"ops": step.communications()["ops"], "work": step.work().census.to_dict()}
    step.close()
    return {**found, "compiles": first - before, "later": ranks.compile_count() - first}


def _build(
    ranks: Any, size: int, case: tuple[str, str, str, dict], arm: str, schedule: Any, compiler: str = "eager"
) -> Any:
    strategy, variant, dtype, settings = case
    workload, made = cases.inputs(variant)
    asked = request.Request(strategy, arm, compiler, dtype, size, tuple(sorted(settings.items())), tuple(schedule))
    return parallel.build(ranks, workload, made.parameters, made.buffers, made.batches, asked)


def _arms(ranks: Any, size: int, case: tuple[str, str, str, dict], wanted: tuple[str, ...]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    schedule: list[LoweredCollective] = []
    for arm in wanted:
        step = _build(ranks, size, case, arm, schedule)
        found: dict[str, Any] = {"ops": step.communications()["ops"]}
        if arm == "real":
            schedule = [LoweredCollective.from_dict(op) for op in found["ops"]]
        if arm in arms.WITHOUT_COMPUTE:
            step.run(0)
            step.synchronize()
        else:
            found["work"] = step.work().census.to_dict()
            found |= {"gate": _gate(step, *case[1:3])} if arm in arms.EXACT else _finite(step, case[1])
        step.close()
        answers[arm] = found
    return answers


def _gate(step: Any, variant: str, dtype: str) -> dict[str, Any]:
    """The verdict, and whether asking for gradients left the state alone."""
    workload, made = cases.inputs(variant)
    step.run(0)
    before, gradients, after = step.state(), step.gradients(), step.state()
    reference = cases.reference(variant, dtype)
    result = gate.arm_gate(
        step, workload, made.parameters, made.buffers, reference, dtype, cases.STEPS, gradients=gradients
    )
    kept = all(np.array_equal(x[name], y[name]) for x, y in zip(before, after, strict=True) for name in x)
    first = result.message() if not result.passed else ""
    return {"passed": result.passed, "message": first, "kept": kept}


def _finite(step: Any, variant: str) -> dict[str, Any]:
    _, made = cases.inputs(variant)
    step.reset()
    for index in range(FINITE_STEPS):
        step.run(index)
    parameters, _ = step.state()
    return {
        "finite": bool(np.isfinite(step.loss()) and all(np.isfinite(p).all() for p in parameters.values())),
        "moved": all((parameters[name] != made.parameters[name]).any() for name in parameters),
    }


def _ops(ranks: Any, size: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    step = _build(ranks, size, ("dp", "mlp of 8", "float32", settings), "real", ())
    try:
        return step.communications()["ops"]
    finally:
        step.close()


def _overlaps(ranks: Any, size: int, arm: str) -> int:
    """Operations of aten that began between a call of c10d and the end of its work, in one step with many buckets."""
    step = _build(ranks, size, WORLD_OF_2["dp"], arm, ())
    with profiler.profile(use_cpu=True) as profile:
        step.run(0)
    step.close()
    with tempfile.TemporaryDirectory(prefix="xlacompare_tests_") as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]
    calls = sorted(e["ts"] for e in events if e["name"] == "c10d::allreduce_")
    ends = sorted(e["ts"] + e["dur"] for e in events if e["name"] == "gloo:all_reduce")
    assert len(calls) == len(ends) > 3
    starts = [e["ts"] for e in events if e["name"].startswith("aten::")]
    return sum(any(begin < start < end for begin, end in zip(calls, ends, strict=True)) for start in starts)


def _fault(ranks: Any, size: int, name: str) -> dict[str, Any]:
    """The gate of a step that is wrong in one way."""
    case, fault = FAULTS[name]
    with fault():
        step = _build(ranks, size, case, "real", ())
        found = _gate(step, *case[1:3])
    step.close()
    return found


def _sum_for_mean() -> Any:
    """Only `gradients` shows it under adamw."""

    def wrong(self: ddp.DataParallel) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.group)

    return mock.patch.object(ddp.DataParallel, "_reduce_flat", wrong)


def _left_out() -> Any:
    """DDP is told to leave a parameter alone."""
    right = nn_parallel.DistributedDataParallel

    def wrong(module: Any, **options: Any) -> Any:
        right._set_params_and_buffers_to_ignore_for_model(module, ["model.head.bias"])
        return right(module, **options)

    return mock.patch.object(nn_parallel, "DistributedDataParallel", wrong)


def _shard_twice() -> Any:
    right = shards.rows
    return mock.patch.object(shards, "rows", lambda batch, rank, size: right(batch, 0, size))


def _not_summed_back() -> Any:
    """The gradient through the other rank's columns is missing."""
    return mock.patch.object(tensor_parallel._Enter, "backward", staticmethod(lambda ctx, gradient: (gradient, None)))


def _others_masks() -> Any:
    """Every rank drops what rank 0 must drop."""
    return mock.patch.object(
        tensor_parallel.TensorParallel,
        "shard",
        lambda self, batch: {
            name: array[:, : array.shape[1] // 2] if name.endswith(".attention") else array
            for name, array in batch.items()
        },
    )


@contextlib.contextmanager
def _elided() -> Iterator[None]:
    """An arm that does not talk must not pass for one that does."""
    with mock.patch.object(arm_group, "group_of", return_value=arm_group.group_of("elided")):
        yield


ADAMW = ("mlp with adamw", "float64")
FAULTS: dict[str, tuple[tuple[str, str, str, dict], Callable[[], Any]]] = {
    "sum for mean": (("dp", *ADAMW, {"flat": True}), _sum_for_mean),
    "parameter left out": (("dp", *ADAMW, {}), _left_out),
    "shard taken twice": (("dp", *ADAMW, {}), _shard_twice),
    "fsdp shard taken twice": (("fsdp", *ADAMW, {}), _shard_twice),
    "fsdp elided": (("fsdp", *ADAMW, {}), _elided),
    "tp not summed back": (("tp", "transformer of 2", "float64", {}), _not_summed_back),
    "tp masks of rank 0": (("tp", "transformer of 2", "float64", {}), _others_masks),
}
