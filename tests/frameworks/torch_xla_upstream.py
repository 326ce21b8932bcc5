"""Upstream's faults in torch_xla's collectives, each run in a process of its own: most end in an abort by XLA.

python -m tests.frameworks.torch_xla_ranks NAME
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.frameworks.torch_xla_ranks import SEED, executions, make, one, start
from xlacompare.collectives import inputs
from xlacompare.core import errors


def _threads(body: Callable[[int], Any], n: int = 2, **changed: str) -> list[Any]:
    """`body` on every rank at once, without the staging of `Lanes.first`."""
    world: Any = start("threads", n, **changed)
    found: dict[int, Any] = {}

    def task(lane: int) -> None:
        found[lane] = body(lane)

    world.lanes.each(task)
    world.lanes.settle()
    world.close()
    return [found[lane] for lane in sorted(found)]


def _vector(rank: int = 0, count: int = 8, dtype: str = "float32") -> Any:
    import torch
    import torch_xla

    return (torch.arange(count) + 10 * rank).to(getattr(torch, dtype)).to(torch_xla.device())


def default_all_gather() -> Any:
    """Mismatch 1."""
    from torch_xla.core import xla_model

    return _threads(lambda rank: xla_model.all_gather(_vector(rank)).cpu().tolist())


def rendezvous() -> Any:
    """xm.rendezvous gathers with xm.all_gather as it ships."""
    from torch_xla.core import xla_model

    return _threads(lambda rank: xla_model.rendezvous("here") and rank)


def small_pool() -> Any:
    """Four ranks with torch_xla's pool as large as it is by default on two cores."""
    wanted = make("all_reduce", "float32", (4,), None, "sum")
    return one(start("threads", 4, XLA_THREAD_POOL_SIZE="2"), wanted)["problem"]


def unstaged() -> Any:
    """Two threads compile one large graph at the same time."""
    import torch_xla
    from torch_xla.core import xla_model

    def body(rank: int) -> Any:
        out = xla_model.all_reduce(xla_model.REDUCE_SUM, _vector(rank))
        for power in range(300):
            out = (out * 0.5 + power).cumsum(0).sin()
        torch_xla.sync()
        return out.cpu().tolist()

    return _threads(body)


def world_of_one() -> dict[str, Any]:
    """Mismatches 2 and 3, and what connecting twice or with too few devices says."""
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2", NPROC="8", XLA_THREAD_POOL_SIZE="8")
    from torch_xla import runtime
    from torch_xla._internal import pjrt
    from torch_xla.core import xla_model

    answer: dict[str, Any] = {}

    def body(ordinal: int) -> None:
        if ordinal == 0:
            answer["world_size"] = runtime.world_size()
            answer["all_reduce"] = xla_model.all_reduce(xla_model.REDUCE_SUM, _vector(1)).cpu().tolist()

    pjrt.spawn_threads(body)
    try:
        start("threads", 2)
    except errors.UnsupportedError as error:
        answer["second"] = str(error)
    return answer


def process_group() -> dict[str, Any]:
    """Mismatch 3: the 'xla' process group of torch.distributed."""
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1")
    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch import distributed

    distributed.init_process_group("xla", init_method="xla://")
    answer: dict[str, Any] = {}
    x = _vector()
    try:
        distributed.all_reduce(x, op=distributed.ReduceOp.AVG)
    except ValueError as error:
        answer["average"] = str(error)
    torch_xla.sync()
    before = executions()
    y = _vector() + 1
    work = distributed.all_reduce(y, async_op=True)
    answer["completed"], answer["executed"] = work.is_completed(), executions() - before
    barrier = distributed.barrier(async_op=True)
    answer["barrier"], answer["barrier_executed"] = barrier.is_completed(), executions() - before
    try:
        distributed.all_to_all_single(_vector(), y, [8], [8])
    except AssertionError as error:
        answer["splits"] = str(error)
    return answer


def graphs() -> dict[str, Any]:
    """Mismatches 1, 17, 18 in programs before the compiler, 16 on two ranks, and an all_reduce of bfloat16."""
    import torch_xla
    from torch_xla.core import xla_model

    world: Any = start("threads", 2)
    x = _vector()
    calls: dict[str, Callable[[], Any]] = {
        "default": lambda: xla_model.all_gather(x),
        "all_gather": lambda: xla_model.all_gather(x, pin_layout=False),
        "reduce_scatter": lambda: xla_model.reduce_scatter(xla_model.REDUCE_SUM, x, 1.0, 0, 2),
        "ppermute": lambda: xla_model.collective_permute(x, [[0, 1]]),
        "all_reduce": lambda: xla_model.all_reduce(xla_model.REDUCE_SUM, x),
    }
    answer = {}
    for name, call in calls.items():
        answer[name] = torch_xla._XLAC._get_xla_tensors_hlo([call()])
        torch_xla._XLAC._set_all_reduce_token(torch_xla._XLAC._xla_get_default_device(), None)
    wanted = make("broadcast", "float32", (2,), None)
    values = {rank: inputs.values(wanted, rank, SEED) for rank in world.local}
    values[0][0] = float("nan")  # rank 1 is the root
    step = world.build(wanted, values)
    step.run(0)
    answer["broadcast"] = [bool(got[0] == got[0]) for got in step.outputs().values()]
    pinned, free = (xla_model.all_reduce("sum", x), xla_model.all_gather(x, pin_layout=False))
    answer["mixed"] = torch_xla._XLAC._get_xla_tensors_hlo([pinned, free])
    del pinned, free
    torch_xla._XLAC._set_all_reduce_token(torch_xla._XLAC._xla_get_default_device(), None)
    narrow = xla_model.all_reduce(xla_model.REDUCE_SUM, x.bfloat16())
    try:
        torch_xla.sync()
        answer["bfloat16"] = str(narrow.dtype)
    except ValueError as error:
        answer["bfloat16"] = str(error)
    return answer


def _manual(call: Callable[[Any], Any]) -> list[list[float]]:
    """What a call gives between the calls of manual sharding, rank by rank."""
    import numpy as np
    import torch
    import torch_xla
    from torch_xla.core import xla_model
    from torch_xla.distributed import spmd as xs

    mesh = xs.Mesh(np.arange(2), (2,), ("ranks",))
    x = torch.cat([torch.arange(8.0), torch.arange(8.0) + 10]).to(torch_xla.device())
    out = call(xs.enable_manual_sharding(x, ("ranks",), mesh=mesh).global_tensor)
    full = xs.disable_manual_sharding(out, ("ranks",), (2 * out.shape[0],), mesh=mesh).global_tensor
    torch_xla.sync()
    xla_model.wait_device_ops()
    return full.cpu().reshape(2, -1).tolist()


def spmd_silent() -> dict[str, Any]:
    """Mismatch 2, and the calls that SPMD_LACKS names, the one that aborts excepted."""
    from torch_xla.core import xla_model

    start("spmd", 2)
    groups = [[0, 1]]

    def broadcast(x: Any) -> Any:
        out = x.clone()
        xla_model.collective_broadcast([out], root_ordinal=1, groups=groups, pin_layout=False)
        return out

    answer: dict[str, Any] = {
        "all_reduce": _manual(lambda x: xla_model.all_reduce(xla_model.REDUCE_SUM, x, groups=groups)),
        "broadcast": _manual(broadcast),
    }
    try:
        answer["all_to_all"] = _manual(lambda x: xla_model.all_to_all(x, 0, 0, 2, groups=groups, pin_layout=False))
    except RuntimeError as error:
        answer["error"] = str(error)
    return answer


def spmd_permute() -> Any:
    """Aborts."""
    from torch_xla.core import xla_model

    start("spmd", 2)
    return _manual(lambda x: xla_model.collective_permute(x, [[0, 1], [1, 0]]))


REPRODUCERS: dict[str, Callable[[], Any]] = {
    found.__name__: found
    for found in (
        default_all_gather,
        rendezvous,
        small_pool,
        unstaged,
        world_of_one,
        process_group,
        graphs,
        spmd_silent,
        spmd_permute,
    )
}
