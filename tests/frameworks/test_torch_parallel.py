"""Native torch over ranks: every strategy's gate, what each communication arm sends, faults that the gate must see."""

from __future__ import annotations

import pytest

from tests.frameworks import torch_ranks
from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks.on_torch import strategies
from xlacompare.parallel import request, table

CASES = ("dp", "dp flat", "dp convnet", "fsdp mlp", "tp")
REAL_ONLY = ("dp in views", "fsdp", "fsdp again", "tp mlp")
FAULTS = {
    "sum for mean": "gradient",
    "parameter left out": "gradient head.bias",
    "shard taken twice": "gradient",
    "fsdp shard taken twice": "gradient",
    "fsdp elided": "gradient",
    "tp not summed back": "gradient",
    "tp masks of rank 0": "gradient",
}
cases = pytest.mark.parametrize("case", CASES)


def of(work: str, size: int) -> list[dict]:
    return torch_ranks.answers("gloo", size, f"torch_steps.{work}")


def arms_of(case: str) -> list[dict]:
    return [answer["cases"][case] for answer in of("two", 2)]


def ops(answer: dict) -> list[LoweredCollective]:
    return [LoweredCollective.from_dict(op) for op in answer["ops"]]


PASSED = {"passed": True, "message": "", "kept": True}


@cases
@pytest.mark.parametrize("arm", ["real", "serial"])
def test_gate(case, arm):
    """Gradients, update, buffers and losses are those of `single` on the global batch."""
    for answer in arms_of(case):
        assert answer[arm]["gate"] == PASSED


@pytest.mark.parametrize("case", REAL_ONLY)
def test_gate_of_real_alone(case):
    for answer in arms_of(case):
        assert answer["real"]["gate"] == PASSED


@pytest.mark.parametrize("case", ["dp", "fsdp", "fsdp convnet", "tp"])
def test_gate_of_four(case):
    for answer in of("four", 4):
        assert answer["cases"][case]["real"]["gate"] == PASSED


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault):
    gates = [answer["faults"][fault] for answer in of("two", 2)]
    assert not all(gate["passed"] for gate in gates)
    assert FAULTS[fault] in next(gate["message"] for gate in gates if not gate["passed"])


@cases
def test_what_the_arms_send(case):
    for answer in arms_of(case):
        real = ops(answer["real"])
        assert real and answer["elided"]["ops"] == []
        assert ops(answer["serial"]) == real
        tokens = ops(answer["token"])
        assert [op.opcode for op in tokens] == [op.opcode for op in real]
        # Of a reduce-scatter, which gloo runs as an all-reduce of all parts, one element for each rank.
        size = {"f32": 4, "f64": 8}[real[0].dtype]
        assert {op.operand_bytes for op in tokens} <= ({size, 2 * size} if case.startswith("fsdp") else {size})
        assert ops(answer["alone"]) == real
        least = ops(answer["alone_token"])
        assert [op.opcode for op in least] == [op.opcode for op in real]
        assert {op.operand_bytes for op in least} == {size}


@cases
def test_arms_do_the_same_products(case):
    for answer in arms_of(case):
        work = answer["real"]["work"]
        assert work["flops"] > 0
        for arm in ("elided", "token", "serial"):
            assert (answer[arm]["work"]["flops"], answer[arm]["work"]["heavy"]) == (work["flops"], work["heavy"])


@cases
@pytest.mark.parametrize("arm", ["elided", "token"])
def test_arms_stay_finite(case, arm):
    for answer in arms_of(case):
        assert answer[arm]["finite"] and answer[arm]["moved"]


def test_bytes():
    """dp sends every gradient once, in float64 here; fsdp gathers as much, and gloo reduces as much whole."""
    for answer in of("two", 2):
        sent = {name: ops(answer["cases"][name]["real"]) for name in ("dp", "fsdp")}
        gradients = sum(op.operand_bytes for op in sent["dp"])
        for opcode in ("all-gather", "all-reduce"):
            assert sum(op.result_bytes for op in sent["fsdp"] if op.opcode == opcode) == gradients
        assert len(sent["dp"]) > 3 and len(ops(answer["cases"]["dp flat"]["real"])) == 1


def test_gathered_again():
    """With reshard_after_forward=True the blocks are gathered twice (the root once: torch keeps it)."""
    for answer in of("two", 2):
        gathers = [op for op in ops(answer["cases"]["fsdp again"]["real"]) if op.opcode == "all-gather"]
        assert len(gathers) > 3


def test_buckets_follow_their_size():
    for answer in of("two", 2):
        numbers = answer["buckets"]
        assert numbers["25"] <= numbers["1"] < numbers["0.01"]


def test_serial_overlaps_with_nothing():
    for answer in of("two", 2):
        assert answer["overlaps"]["serial"] == 0 < answer["overlaps"]["real"]


def test_closed_steps_leave_no_group():
    for answer in of("two", 2):
        assert answer["groups"] > 10 and answer["left"] == 1


def test_compiled():
    """The graph is cut at the buckets; nothing is compiled after the build."""
    for answer in of("compiled", 2):
        assert answer["gate"] == PASSED
        assert answer["compiles"] > 0 and answer["later"] == 0
        assert len(answer["ops"]) > 1 and answer["work"]["flops"] > 0
        assert "0 graph break" in answer["note"]


def test_refusals():
    def refused(strategy="dp", arm="real", compiler="eager", transport="gloo", mode="process", workload="mlp"):
        asked = request.Request(strategy, arm, compiler, "float32", 2)
        return strategies.unsupported(asked, transport, mode, workload)

    assert all(refused(name) is None for name in strategies.STRATEGIES)
    assert set(strategies.STRATEGIES) | set(strategies.LACKS) == set(table.STRATEGIES)
    assert "not over inprocess" in refused(transport="inprocess")
    assert "no compiler arm 'nofusion'" in refused(compiler="nofusion")
    assert refused(compiler="compiled", workload="convnet") == strategies.NO_COMPILED_NORM
    assert "not for convnet" in refused("tp", workload="convnet")
    assert "no strategy 'zz'" in refused("zz")
    with pytest.raises(errors.BadInputError):
        refused(arm="zz")
