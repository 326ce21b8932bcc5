"""Made events of torch's profiler: communication by the library's records and the profiler's links."""

from __future__ import annotations

from typing import Any

import pytest

from xlacompare.core import errors, kineto_trace, timeline
from xlacompare.core.timeline import COMMUNICATION, COMPUTE

OPERATORS = {("aten", "mm"), ("aten", "linear"), ("c10d", "allreduce_"), ("_c10d_functional", "wait_tensor")}
MAIN, WORKER, STREAM = 11, 22, 7


def event(name: str, start: float, end: float, cat: str = "cpu_op", tid: int = MAIN, **args: Any) -> dict[str, Any]:
    """Times in seconds; a trace has microseconds."""
    return {
        "name": name,
        "ts": start * 1e6,
        "dur": (end - start) * 1e6,
        "cat": cat,
        "tid": tid,
        "ph": "X",
        "args": args,
    }


def record(name: str, start: float, end: float, **args: Any) -> dict[str, Any]:
    return event(name, start, end, "user_annotation", WORKER, **args)


MARK = event(f"{kineto_trace.MARKER}3", 0, 10, "user_annotation")


def traced(*events: dict[str, Any]) -> timeline.Trace:
    return kineto_trace.trace([MARK, *events], 5, lambda space, name: (space, name) in OPERATORS)


def step(*events: dict[str, Any]) -> timeline.Totals:
    (found,) = timeline.totals(traced(*events))
    assert (found.step, found.rank) == (3, 5)
    return found


def seen(found: timeline.Totals, kind: str) -> dict[str, int]:
    return {name: op.count for name, op in found.operations.items() if op.kind == kind}


def test_a_record_is_communication_and_its_call_is_neither():
    call = event("c10d::allreduce_", 1, 2)
    found = step(call, record("gloo:all_reduce", 1.5, 6), event("aten::mm", 3, 5))
    assert seen(found, COMMUNICATION) == {"gloo:all_reduce": 1} and seen(found, COMPUTE) == {"aten::mm": 1}
    assert (found.compute_only_s, found.overlap_s) == (0, pytest.approx(2))
    assert (found.exposed_s, found.idle_s) == (pytest.approx(2.5), pytest.approx(5.5))


def test_an_operator_that_waits_inside():
    """As DTensor's: the operator holds a collective and the wait for it."""
    waits = event("_c10d_functional::wait_tensor", 3, 8)
    found = step(
        event("aten::mm", 1, 9),
        event("aten::mm", 8, 9),
        event("c10d::allreduce_", 2, 3),
        waits,
        record("gloo:x", 2, 8),
    )
    assert (found.compute_only_s, found.exposed_s, found.overlap_s) == (pytest.approx(2), pytest.approx(6), 0)


def test_a_call_in_another_thread_takes_nothing_away():
    other = {**event("_c10d_functional::wait_tensor", 0, 10), "tid": 99}
    assert step(event("aten::mm", 1, 4), other).compute_s == pytest.approx(3)


def test_what_is_no_operator_is_not_compute():
    """Nodes of autograd and annotations hold waits that nobody records."""
    names = (
        "autograd::engine::evaluate_function: MmBackward0",
        "MmBackward0",
        "detach",
        "torch::autograd::AccumulateGrad",
    )
    found = step(*(event(name, 0, 9) for name in names), event("aten::mm", 1, 2, "user_annotation"))
    assert found.idle_s == 10


def test_a_compiled_graph_stands_for_its_operators():
    found = step(event("## Call CompiledFxGraph fabc ##", 1, 5), event("_c10d_functional::wait_tensor", 2, 3))
    assert (found.compute_s, seen(found, COMPUTE)) == (pytest.approx(3), {"compiled graph": 1})


def test_a_users_annotation_is_no_record():
    found = step(event("gloo:all_reduce", 1, 9, "user_annotation"), event("aten::linear", 2, 3))
    assert found.communication_s == 0
    barrier = step(event("c10d::barrier", 1, 2), record("gloo:barrier", 1, 2))
    assert seen(barrier, COMMUNICATION) == {"gloo:barrier": 1}


def test_what_the_library_computes_is_its_own():
    """gloo copies on its threads by operators: part of the collective."""
    copy = {**event("aten::mm", 2, 3), "tid": WORKER}
    found = step(event("c10d::allreduce_", 0, 1), record("gloo:all_gather", 1, 5), copy)
    assert (found.compute_s, found.exposed_s) == (0, pytest.approx(4))


def test_calls_without_records_are_told():
    with pytest.raises(errors.UnsupportedError, match=r"called 2 times .* records of 1"):
        traced(event("c10d::allreduce_", 1, 2), event("c10d::send", 2, 3), record("gloo:all_reduce", 1, 2))


def kernel(name: str, start: float, end: float, link: int, cat: str = "kernel") -> dict[str, Any]:
    return event(name, start, end, cat, STREAM, **{"External id": link, "correlation": link})


def test_a_kernel_is_what_launched_it():
    """On a GPU: whatever NCCL's kernel is called, its launch stands under the record of torch.distributed."""
    host = [
        event("aten::mm", 0, 1, **{"External id": 1}),
        event("c10d::allreduce_", 1, 2, **{"External id": 2}),
        event("record_param_comms", 1, 2, **{"External id": 3, "Collective name": "allreduce"}),
    ]
    kernels = [
        kernel("ncclDevKernel_AllReduce", 2, 4, link=1),
        kernel("banana", 3, 7, link=3),
        kernel("Memcpy DtoD", 8, 9, link=4, cat="gpu_memcpy"),
    ]
    found = step(*host, *kernels)
    assert seen(found, COMMUNICATION) == {"nccl:allreduce": 1}
    assert seen(found, COMPUTE) == {"aten::mm": 1, "gpu_memcpy of no operator": 1}
    parts = [getattr(found, name) for name in timeline.PARTS]
    assert parts == [pytest.approx(2), pytest.approx(1), pytest.approx(3), pytest.approx(4)]
