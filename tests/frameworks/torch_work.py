"""What torch ranks do for the tests; each function runs on every rank of a world and answers with plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from xlacompare.collectives import check, inputs, lowering, sizes, table
from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks.on_torch import calls, transports

SEED = 3
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32")
OPEN_CHAIN = "pairs:0>1"


def requests_of(size: int) -> Iterator[requests.Request]:
    """The table: every collective, dtype, reduction, axis and placement that the table allows, at odd sizes."""
    meshes_of = [((size,), None)] + [((2, 2), axis) for axis in (0, 1) if size == 4]
    for dtype in DTYPES:
        for entry in table.TABLE.values():
            for reduction in entry.reductions or ("",):
                if table.unsupported(entry.name, reduction, dtype):
                    continue
                for mesh, axis in meshes_of:
                    yield from _variants(entry, dtype, reduction, mesh, axis)


def _variants(
    entry: table.Collective, dtype: str, reduction: str, mesh: tuple[int, ...], axis: int | None
) -> Iterator[requests.Request]:
    n = meshes.group_size(mesh, axis)
    patterns = ("ring", OPEN_CHAIN, "pairs:0>0,1>1") if entry is table.PPERMUTE else ("",)
    for placement in table.PLACEMENTS if entry.in_place else ("out_of_place",):
        for pattern in patterns:
            pairs = meshes.parse_pattern(pattern, n) if pattern else ()
            root = n - 1 if entry is table.BROADCAST else 0
            for nbytes in (4097, 1) if reduction in ("", "sum") and axis is None else (4097,):
                count, _ = sizes.counts(entry.name, nbytes, dtype, n)
                yield requests.Request(entry.name, dtype, count, mesh, axis, reduction, pairs, root, placement)


def whole_table(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """Every request: values, what ran, and whether the input is as it was."""
    return {"describe": ranks.describe(), "cells": [_cell(ranks, rank, request) for request in requests_of(size)]}


def everything(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """All that a world of two ranks has to answer, in one start; what breaks a group comes last."""
    answer = {**whole_table(ranks, rank, size), **facts(ranks, rank, size)}
    return {**answer, **failures(ranks, rank, size)} if gloo() else answer


def _cell(ranks: Any, rank: int, request: requests.Request) -> dict[str, Any]:
    transport = "gloo" if gloo() else "mpi"
    reason = transports.unsupported(transport, "process", request, "cpu")
    cell: dict[str, Any] = {"request": request.to_dict(), "unsupported": reason}
    if reason:
        return cell
    step = ranks.build(request, {rank: inputs.values(request, rank, SEED)})
    in_place = request.placement == "in_place"
    for index in range(1 if in_place else 3):
        step.run(index)
    step.synchronize()
    cell["first"] = check.compare(request, rank, step.outputs()[rank], SEED).to_dict()
    cell["copied"] = step.copy()
    step.refill()
    step.run(0)
    step.synchronize()
    cell["again"] = check.compare(request, rank, step.outputs()[rank], SEED).to_dict()
    if request.reduction in ("", "sum") and request.count != 1:
        cell["lowered"] = step.lowered()
        judged = lowering.judge(request, [LoweredCollective.from_dict(op) for op in cell["lowered"]["ops"]])
        cell["findings"], cell["wire_bytes"] = judged.findings, judged.wire_bytes
    cell["compiled"] = ranks.compile_count()
    step.close()
    return cell


def facts(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """How torch differs from the table (research/collectives.md, section 2), asked of torch itself and of our steps."""
    return {function.__name__: function(ranks, rank, size) for function in FACTS}


def _request(collective: str, count: int, size: int, **values: Any) -> requests.Request:
    if collective in ("all_reduce", "reduce_scatter"):
        values.setdefault("reduction", "sum")
    return requests.Request(collective, values.pop("dtype", "float32"), count, (size,), **values)


def _build(ranks: Any, rank: int, request: requests.Request) -> Any:
    return ranks.build(request, {rank: inputs.values(request, rank, SEED)})


def _wrong(request: requests.Request, rank: int, step: Any) -> int:
    return check.compare(request, rank, step.outputs()[rank], SEED).wrong


def _raises(function: Callable[[], Any]) -> str:
    """Type and message of the error, "" without one."""
    try:
        function()
    except (RuntimeError, ValueError, TypeError, errors.XlacompareError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def gloo() -> bool:
    return dist.get_backend() == "gloo"


def growth_in_place(ranks: Any, rank: int, size: int) -> list[float]:
    """Without a refill the sum grows by a factor n per run; after one it is right."""
    request = _request("all_reduce", 64, size, placement="in_place")
    step = _build(ranks, rank, request)
    values = []
    for index in range(3):
        step.run(index)
        values.append(float(step.outputs()[rank][0]))
    step.refill()
    step.run(0)
    return [values[1] / values[0], values[2] / values[1], _wrong(request, rank, step)]


def average(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """ReduceOp.AVG, which we do not use: values as sum-then-divide, refused for integers."""
    request = _request("all_reduce", 64, size, reduction="mean")
    tensor = torch.from_numpy(inputs.values(request, rank, SEED).copy())
    refused = _raises(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), dist.ReduceOp.AVG))
    float_error = _raises(lambda: dist.all_reduce(tensor, dist.ReduceOp.AVG))
    wrong = 0 if float_error else check.compare(request, rank, tensor.numpy(), SEED).wrong
    return {"integers": refused, "floats": float_error, "wrong": wrong}


def self_edge(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """torch refuses a transfer of a rank to itself; our permutation copies."""
    request = _request("ppermute", 64, size, pairs=tuple((i, i) for i in range(size)))
    step = _build(ranks, rank, request)
    step.run(0)
    raised = _raises(lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(4), rank)])) if gloo() else ""
    return {"torch": raised, "wrong": _wrong(request, rank, step), "ops": step.lowered()["ops"]}


def open_chain(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """batch_isend_irecv leaves the buffer of a rank without a source as it was; ours has zeros there."""
    buffer = torch.full((4,), 7.0)
    transfers = {0: [dist.P2POp(dist.isend, torch.ones(4), 1)], 1: [dist.P2POp(dist.irecv, buffer, 0)]}
    calls.wait(dist.batch_isend_irecv(transfers[rank])) if rank in transfers else None
    request = _request("ppermute", 64, size, pairs=((0, 1),))
    step = _build(ranks, rank, request)
    step.run(0)
    return {"torch": buffer.tolist(), "wrong": _wrong(request, rank, step)}


def unwaited_work(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """Were every call of torch asynchronous, our step would still be done when it returns."""
    real = dist.all_reduce
    request = _request("all_reduce", 1 << 20, size)
    step = _build(ranks, rank, request)
    returned = []

    def asynchronous(*args: Any, **options: Any) -> Any:
        work = real(*args, **{**options, "async_op": True})
        returned.append(mock.Mock(wraps=work))
        return returned[-1]

    with mock.patch.object(dist, "all_reduce", asynchronous):
        step.run(0)
    step.synchronize()
    return {"waited": [work.wait.call_count for work in returned], "wrong": _wrong(request, rank, step)}


def input_kept(ranks: Any, rank: int, size: int) -> dict[str, bool]:
    """Out of place the given array stays as it was, and so does what the step reads."""
    kept = {}
    for name in ("all_reduce", "reduce_scatter", "broadcast"):
        request = _request(name, 64 * size, size)
        array = inputs.values(request, rank, SEED)
        before = array.copy()
        step = ranks.build(request, {rank: array})
        outputs = []
        for index in range(3):
            step.run(index)
            outputs.append(step.outputs()[rank])
        kept[name] = bool((array == before).all() and all((out == outputs[0]).all() for out in outputs))
    return kept


def fence(ranks: Any, rank: int, size: int) -> list[float]:
    """Seconds of a run with its fence, of 1 KiB and of 16 MiB: the least of some."""
    seconds = []
    for count in (1 << 8, 1 << 22):
        step = _build(ranks, rank, _request("all_reduce", count, size))
        step.run(0)
        times = []
        for index in range(4):
            ranks.barrier()
            start = time.perf_counter()
            step.run(index)
            step.synchronize()
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds


def refusals(ranks: Any, rank: int, size: int) -> dict[str, str]:
    """Requests that end in one line instead of a wrong number."""
    asked = {
        "integer mean": _request("all_reduce", 8, size, dtype="int32", reduction="mean"),
        "in place": _request("all_to_all", 8 * size, size, placement="in_place"),
        "dtype": _request("all_reduce", 8, size, dtype="int8"),
    }
    reasons = {}
    for name, request in asked.items():
        try:
            ranks.build(request, {rank: np.zeros(request.count, np.float32)})
        except errors.UnsupportedError as error:
            reasons[name] = str(error)
    return reasons


def our_backend(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """Calls of c10d that the table does not use, and misuse of the MPI backend."""
    if gloo():
        return {}
    from xlacompare.frameworks.on_torch import mpi, mpi_types

    parts = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 3), float(rank)))
    sent, received = [[1, 2], [3, 1]][rank % 2], [[1, 3], [2, 1]][rank % 2]
    rows = torch.zeros(sum(received), 2)
    dist.all_to_all_single(rows, torch.full((sum(sent), 2), float(rank)), received, sent)
    return {
        "all_gather": [part.tolist() for part in parts],
        "uneven": rows[:, 0].tolist(),
        "strided": _raises(lambda: dist.all_reduce(torch.ones(4, 4).t()[:, ::2])),
        "dtype": _raises(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int16))),
        "place": _raises(lambda: mpi.check_place(rank + 1, size)),
        "asynchronous": dist.all_reduce(torch.ones(4), async_op=True).is_completed(),
        "kinds": {str(dtype): mpi_types.own_kind(dtype) != mpi.MPI.DATATYPE_NULL for dtype in calls.DTYPES.values()},
    }


FACTS = (our_backend, growth_in_place, average, self_edge, open_chain, unwaited_work, input_kept, fence, refusals)


def failures(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """What breaks a group of gloo, each in a group of its own; the last in the world."""
    return {function.__name__: function(rank) for function in (uneven_gather, refused_on_one_rank, missing_rank)}


def _group(seconds: float) -> dist.ProcessGroup:
    dist.barrier()
    return dist.new_group([0, 1], timeout=timedelta(seconds=seconds))


def uneven_gather(rank: int) -> str:
    """Ranks that gather unlike numbers of elements."""
    group = _group(5)
    parts = [torch.zeros(2), torch.zeros(3)]
    return _raises(lambda: dist.all_gather(parts, torch.ones(2 + rank), group=group))


def refused_on_one_rank(rank: int) -> str:
    """Rank 0 asks for what gloo refuses and moves on; the error surfaces at rank 1, which asked for nothing wrong."""
    group = _group(5)
    if rank == 0:
        op = dist._make_nccl_premul_sum(2.0)
        return _raises(lambda: dist.all_reduce(torch.ones(4), op, group=group))
    return _raises(lambda: dist.all_reduce(torch.ones(4), group=group))


def missing_rank(rank: int) -> dict[str, Any]:
    """Rank 1 does not take part: rank 0 must get an error after the deadline of the group."""
    group = _group(5)
    start = time.monotonic()
    error = _raises(lambda: dist.all_reduce(torch.ones(4), group=group)) if rank == 0 else ""
    seconds = time.monotonic() - start
    dist.barrier()
    return {"error": error, "seconds": seconds}


def profiled(ranks: Any, rank: int, size: int) -> dict[str, Any]:
    """See `torch_profiles`."""
    from tests.frameworks import torch_profiles

    return torch_profiles.collect(ranks)
