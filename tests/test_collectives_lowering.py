"""The judge of what ran: removed, replaced, merged, promoted, misdirected; and the bytes that were sent."""

from __future__ import annotations

import dataclasses

import pytest

from xlacompare.collectives import bandwidth, lowering, mesh, table
from xlacompare.collectives.request import Request
from xlacompare.core.census import LoweredCollective

N, COUNT = 4, 1024
BYTES = COUNT * 4
OPCODE = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all", "ppermute": "collective-permute", "broadcast": "collective-broadcast",
}  # fmt: skip


def request(collective="all_reduce", **changes):
    values = {"dtype": "float32", "count": COUNT, "mesh": (N,), "reduction": "sum" if "reduce" in collective else ""}
    if collective == "ppermute":
        values["pairs"] = mesh.parse_pattern("ring", N)
    return Request(collective, **{**values, **changes})


def matching(asked, **changes):
    """The operation that does what was asked."""
    bytes_in = asked.count * 4
    op = LoweredCollective(
        OPCODE[asked.collective], "f32", bytes_in, table.output_count(asked) * 4, reduction=asked.reduction,
        groups=mesh.groups(asked.mesh, asked.axis), computation="main",
        pairs=mesh.global_pairs(asked.mesh, asked.axis, asked.pairs) if asked.pairs else (),
    )  # fmt: skip
    return dataclasses.replace(op, **changes)


def kinds(judged):
    return [finding.partition(":")[0] for finding in judged.findings]


@pytest.mark.parametrize("collective", OPCODE)
@pytest.mark.parametrize(("shape", "axis"), [((4,), None), ((2, 2), 0), ((2, 2), 1)])
def test_what_was_asked_has_no_finding_and_the_bytes_of_busbw(collective, shape, axis):
    n = mesh.group_size(shape, axis)
    pairs = mesh.parse_pattern("ring", n) if collective == "ppermute" else ()
    asked = request(collective, mesh=shape, axis=axis, pairs=pairs)
    judged = lowering.judge(asked, [matching(asked)])
    size = table.TABLE[collective].size_bytes(COUNT, n, "float32")
    assert judged == lowering.Judged([], size * table.TABLE[collective].bus_factor(n), False)


@pytest.mark.parametrize("collective", OPCODE)
def test_nothing_ran(collective):
    judged = lowering.judge(request(collective), [])
    assert judged.removed
    assert kinds(judged) == ["removed"]
    assert judged.wire_bytes == 0


def test_an_empty_barrier_is_seen():
    barrier = request("barrier", count=0, reduction="")
    assert lowering.judge(barrier, []).removed
    for opcode in ("barrier", "all-reduce"):  # a tiny all-reduce is the usual barrier
        judged = lowering.judge(barrier, [LoweredCollective(opcode, "f32", 4, 4)])
        assert (judged.findings, judged.removed) == ([], False)


def test_a_loop_that_never_runs_removes():
    asked = request()
    judged = lowering.judge(asked, [matching(asked, trips=0, computation="body")])
    assert judged.removed
    assert kinds(judged) == ["removed", "not run"]


def test_one_rank_and_self_edges_need_nothing():
    for asked in (request(mesh=(1,)), request("ppermute", pairs=((0, 0), (2, 2)))):
        assert lowering.judge(asked, []) == lowering.Judged([], 0.0, False)
    kept = LoweredCollective("collective-permute", "f32", BYTES, BYTES, pairs=((0, 0),))
    assert lowering.judge(request("ppermute", pairs=((0, 0),)), [kept]).wire_bytes == 0


def test_pad_and_all_reduce_for_an_all_gather_sends_twice_the_bytes():
    asked = request("all_gather")
    whole = LoweredCollective("all-reduce", "f32", N * BYTES, N * BYTES, reduction="sum")
    judged = lowering.judge(asked, [whole])
    assert kinds(judged) == ["other opcode"]
    assert "pad + all-reduce" in judged.findings[0]
    nominal = N * BYTES * table.TABLE["all_gather"].bus_factor(N)
    assert judged.wire_bytes == 2 * nominal
    rates = bandwidth.bandwidth("all_gather", N, N * BYTES, 1e-3, wire_bytes=judged.wire_bytes)
    assert rates.busbw_lowered.value == 2 * rates.busbw.value


@pytest.mark.parametrize(
    ("collective", "ran", "said"),
    [
        ("reduce_scatter", ["all-reduce"], "then a slice"),
        ("broadcast", ["all-reduce"], "zero but at the root"),
        ("all_reduce", ["reduce-scatter", "all-gather"], "two operations"),
        ("ppermute", ["all-to-all"], "not what was asked for"),
    ],
)
def test_other_opcodes(collective, ran, said):
    ops = [LoweredCollective(name, "f32", BYTES, BYTES, reduction="sum" if "reduce" in name else "") for name in ran]
    judged = lowering.judge(request(collective), ops)
    assert set(kinds(judged)) == {"other opcode"}
    assert said in judged.findings[0]
    assert not judged.removed


def test_merged_repeated_and_sliced():
    asked = request()
    assert kinds(lowering.judge(asked, [matching(asked, operands=2, operand_bytes=2 * BYTES)])) == ["merged"]
    assert kinds(lowering.judge(asked, [matching(asked), matching(asked, source="again")])) == ["repeated"]
    exchange = request("all_to_all")
    assert kinds(lowering.judge(exchange, [matching(exchange, operands=N)])) == ["slices"]
    assert kinds(lowering.judge(exchange, [matching(exchange, operands=N + 1)])) == ["merged"]


def test_loops_multiply_the_bytes():
    asked = request()
    looped = lowering.judge(asked, [matching(asked, trips=3, computation="body")])
    assert kinds(looped) == ["trips"]
    assert looped.wire_bytes == 3 * lowering.judge(asked, [matching(asked)]).wire_bytes
    unknown = lowering.judge(asked, [matching(asked, trips=None, computation="body")])
    assert kinds(unknown) == ["trips"]
    assert unknown.wire_bytes is None


def test_promoted_bfloat16_sends_twice_the_bytes():
    asked = request(dtype="bfloat16")
    judged = lowering.judge(asked, [matching(asked, promoted_from="bf16")])
    assert judged.findings == ["promoted: bfloat16 travels as float32, 2 times the bytes"]
    assert judged.wire_bytes == 2 * (COUNT * 2) * 1.5
    narrow = lowering.judge(request(), [matching(request(), dtype="bf16", operand_bytes=COUNT * 2)])
    assert narrow.findings == ["promoted: float32 travels as bfloat16, 0.5 times the bytes"]


def test_a_carrier_of_the_same_bits_is_no_promotion():
    asked = request("all_gather", dtype="bfloat16")
    op = matching(asked, dtype="u16", operand_bytes=COUNT * 2, result_bytes=N * COUNT * 2)
    assert lowering.judge(asked, [op]).findings == ["carrier: bfloat16 travels as u16"]


def test_other_bytes():
    asked = request()
    assert kinds(lowering.judge(asked, [matching(asked, operand_bytes=BYTES // 2)])) == ["bytes"]


@pytest.mark.parametrize(
    ("groups", "finding"),
    [
        (((0, 1), (2, 3)), []),
        (((2, 3), (0, 1)), []),
        (((0, 1),), []),  # what one rank's library knows
        (((0, 2), (1, 3)), ["groups"]),
        (((0, 1, 2, 3),), ["groups"]),
        ((), ["groups"]),
        (((1, 0), (2, 3)), ["groups"]),
    ],
)
def test_groups(groups, finding):
    asked = request(mesh=(2, 2), axis=1)
    assert kinds(lowering.judge(asked, [matching(asked, groups=groups)])) == finding


def test_no_groups_means_all_ranks():
    assert lowering.judge(request(), [matching(request(), groups=())]).findings == []


def test_pairs():
    asked = request("ppermute", pairs=((0, 1), (2, 2)))
    assert lowering.judge(asked, [matching(asked, pairs=((0, 1),))]).findings == []  # a self edge as a local copy
    assert kinds(lowering.judge(asked, [matching(asked, pairs=((1, 0),))])) == ["pairs"]
    assert kinds(lowering.judge(asked, [matching(asked, pairs=((0, 1), (2, 3)))])) == ["pairs"]
    transfers = [LoweredCollective("send-recv", "f32", BYTES, BYTES, pairs=((0, 1),))] * 2
    assert lowering.judge(asked, transfers).findings == []


def test_reductions():
    for reduction, ran, finding in (
        ("mean", "sum", []), ("mean", "avg", []), ("sum", "add", []), ("max", "maximum", []), ("sum", "", []),
        ("sum", "max", ["reduction"]), ("mean", "max", ["reduction"]), ("sum", "avg", ["reduction"]),
    ):  # fmt: skip
        asked = request(reduction=reduction)
        assert kinds(lowering.judge(asked, [matching(asked, reduction=ran)])) == finding, (reduction, ran)


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("all-reduce-start", "all-reduce"), ("allreduce", "all-reduce"), ("all_gather_into_tensor", "all-gather"),
        ("reduce_scatter_tensor", "reduce-scatter"), ("Bcast", "broadcast"), ("alltoall_base", "all-to-all"),
        ("_allgather_base_", "all-gather"), ("batch_isend_irecv", "send-recv"), ("collective-permute-start",
        "collective-permute"), ("sendrecv", "send-recv"), ("unknown", "unknown"),
    ],
)  # fmt: skip
def test_spellings(spelled, meant):
    assert lowering.canonical(spelled) == meant
