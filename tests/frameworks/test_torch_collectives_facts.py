"""How torch differs from the table: mismatches of research/collectives.md, section 2, each held by a reproducer.

A test of torch's own behaviour goes red when torch changes; then ours can become simpler.
"""

from __future__ import annotations

import pytest

from tests.frameworks import torch_ranks
from tests.frameworks.test_torch_collectives import MPI, needs_mpi
from xlacompare.frameworks.on_torch import c10d_log

both = pytest.mark.parametrize("transport", ["gloo", MPI])


def facts(transport: str, name: str) -> list:
    return [answer[name] for answer in torch_ranks.answers(transport, 2, "everything")]


@both
def test_in_place_results_grow_without_a_refill(transport):
    """Mismatch 12: by a factor n per run."""
    for answer in facts(transport, "growth_in_place"):
        assert answer == [2.0, 2.0, 0]


def test_average_of_gloo():
    """Mismatch 11: gloo has ReduceOp.AVG (we sum, then divide, as everywhere); of integers it has none."""
    for answer in facts("gloo", "average"):
        assert answer["floats"] == "" and answer["wrong"] == 0
        assert "Float can't be cast" in answer["integers"], "then the mean of integers could be had"


@needs_mpi
def test_average_of_mpi():
    for answer in facts("mpi", "average"):
        assert "sum, max, min only" in answer["floats"]


@both
def test_self_edge(transport):
    """Mismatch 10: gloo raises; our permutation copies, and nothing is sent."""
    for answer in facts(transport, "self_edge"):
        assert answer["wrong"] == 0 and answer["ops"] == []
        if transport == "gloo":
            assert "Pair is not connected" in answer["torch"]


@both
def test_a_rank_without_a_source(transport):
    """Mismatch 10: batch_isend_irecv leaves rank 0's buffer as it was; the table wants zeros, and gets them."""
    without, fed = facts(transport, "open_chain")
    assert without["torch"] == [7.0] * 4 and fed["torch"] == [1.0] * 4
    assert without["wrong"] == 0 and fed["wrong"] == 0


@both
def test_no_work_is_left_unwaited(transport):
    """Mismatch 13 and DeepSpeed's defect: whatever Work torch returns, `run` waits for it."""
    for answer in facts(transport, "unwaited_work"):
        assert answer == {"waited": [1], "wrong": 0}


@both
def test_out_of_place_keeps_its_input(transport):
    for answer in facts(transport, "input_kept"):
        assert answer == {"all_reduce": True, "reduce_scatter": True, "broadcast": True}


@both
def test_fenced_time_grows_with_size(transport):
    """16384 times the bytes: a fence that did not wait would show the same time."""
    for small, large in facts(transport, "fence"):
        assert large > 4 * small


@both
def test_refusals_are_one_line(transport):
    for answer in facts(transport, "refusals"):
        assert set(answer) == {"integer mean", "in place", "dtype"}
        assert not any("\n" in reason for reason in answer.values())


@needs_mpi
def test_our_mpi_backend():
    for rank, answer in enumerate(facts("mpi", "our_backend")):
        assert answer["all_gather"] == [[[float(r)] * 3] * 2 for r in range(2)]
        assert answer["uneven"] == [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0]][rank]
        assert "contiguous" in answer["strided"] and "carries no torch.int16" in answer["dtype"]
        assert "mpiexec -n 2" in answer["place"] and answer["asynchronous"] is True


def test_uneven_gather_raises():
    """Mismatch 15: hence sizes are padded."""
    for answer in torch_ranks.answers("gloo", 2, "everything"):
        assert "invalid tensor size" in answer["uneven_gather"]


def test_a_refusal_surfaces_elsewhere():
    """Mismatch 14: rank 0 did what gloo refuses; rank 1, which did nothing wrong, gets a timeout or a closed pair."""
    guilty, innocent = (answer["refused_on_one_rank"] for answer in torch_ranks.answers("gloo", 2, "everything"))
    assert "PREMUL_SUM" in guilty
    assert "Timed out" in innocent or "closed" in innocent


def test_a_missing_rank_ends_in_an_error():
    """gloo itself gives up after the deadline of the group (5 s here), so that nothing hangs for ever."""
    waiting = torch_ranks.answers("gloo", 2, "everything")[0]["missing_rank"]
    assert "Timed out" in waiting["error"] and 2 < waiting["seconds"] < 60


def event(name: str, ts: float, **args: object) -> dict:
    return {"name": name, "ts": ts, "dur": 1.0, "args": args}


def test_record_of_nccl():
    """The form of NCCL's events in a trace ("record_param_comms"), which this machine cannot make."""
    counted = {"dtype": "BFloat16", "In msg nelems": 6, "Out msg nelems": 12, "Group size": 2}
    events = [
        event("record_param_comms", 2.0, **{"Collective name": "_allgather_base", **counted}),
        event("record_param_comms", 1.0, **{"Collective name": "wait"}),
        event("c10d::send", 3.0, **{"Concrete Inputs": ["", "", "1", "0"]}),
        event("record_param_comms", 3.1, **{"Collective name": "send", **counted}),
        event("aten::copy_", 0.5),
        {"name": "no time", "args": {}},
    ]
    gather, send = c10d_log.of_trace(events)
    assert (gather.opcode, gather.dtype, gather.operand_bytes, gather.result_bytes) == ("all-gather", "bf16", 12, 24)
    assert (send.opcode, send.pairs, send.operand_bytes, send.result_bytes) == ("send", ((1, 1),), 12, 0)
