"""Faults of transports and of peers' benchmarks, told apart without a framework: what a check must see, and why."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from xlacompare.collectives import bandwidth, check, inputs, lowering, reference, sizes, table
from xlacompare.collectives.request import Request
from xlacompare.core.census import LoweredCollective
from xlacompare.core.collective_cell import CollectiveCell

SEED = 3


def wrong(request, rank, got):
    return check.compare(request, rank, np.asarray(got, inputs.numpy_dtype(request.dtype)), SEED).wrong


def members(request):
    return [inputs.values(request, rank, SEED) for rank in range(request.mesh[0])]


def test_a_rank_without_a_source_has_zeros():
    """Not what was in the buffer (batch_isend_irecv leaves it), nor its own input. One of a value is a fault too."""
    request = Request("ppermute", "float32", 12, (3,), pairs=((0, 1), (2, 2)))
    xs = members(request)
    assert [wrong(request, rank, out) for rank, out in enumerate((np.zeros(12), xs[0], xs[2]))] == [0, 0, 0]
    assert wrong(request, 0, xs[0]) == 12
    assert wrong(request, 0, np.eye(1, 12, 7)[0]) == 1
    # The self edge is a copy, not zeros.
    assert wrong(request, 2, np.zeros(12)) == 12


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_mean_is_a_sum_that_is_divided(dtype, n):
    """Dividing by n and multiplying by 1/n are both right; the sum, a mean without one rank, or over n + 1, are not."""
    request = Request("all_reduce", dtype, 1000, (n,), None, "mean")
    native = np.float32 if dtype == "bfloat16" else np.dtype(dtype)
    total = np.sum(members(request), axis=0, dtype=np.float64).astype(native)

    def rounded(x):
        return inputs.round_bfloat16(x) if dtype == "bfloat16" else x.astype(native)

    reciprocal = rounded(np.array([1 / n]))
    for divided in (rounded(total / native.type(n) if dtype != "bfloat16" else total / n), rounded(total * reciprocal)):
        assert wrong(request, 0, divided) == 0
    assert wrong(request, 0, total) == 1000
    assert wrong(request, 0, rounded(total / (n + 1))) == 1000
    assert wrong(request, 0, rounded((total - members(request)[0]) / n)) > 900


def test_an_in_place_reduction_that_is_not_refilled_grows():
    """stas00's benchmark and DeepSpeed's reduce the same tensor again and again: it is inf after 19 runs at n = 128."""
    request = Request("all_reduce", "float32", 64, (2,), None, "sum", placement="in_place")
    buffers = members(request)
    for run in range(3):
        total = buffers[0] + buffers[1]
        assert wrong(request, 0, total) == (0 if run == 0 else 64)
        buffers = [total, total]
    refilled = members(request)
    assert wrong(request, 0, refilled[0] + refilled[1]) == 0


def test_a_constant_on_every_rank_would_see_nothing():
    """PARAM sends ones: then a gather of the wrong ranks, or in the wrong order, is right. Not so here."""
    request = Request("all_gather", "float32", 8, (4,))
    ones = [np.ones(8, np.float32)] * 4
    assert np.array_equal(np.concatenate(ones), np.concatenate(ones[::-1]))
    xs = members(request)
    assert wrong(request, 0, np.concatenate(xs)) == 0
    assert wrong(request, 0, np.concatenate(xs[::-1])) == 32
    assert wrong(request, 0, np.concatenate([xs[0]] * 4)) == 24


def test_constants_would_hide_a_reduction_of_the_wrong_ranks():
    request = Request("all_reduce", "bfloat16", 8, (2, 2), 1, "sum")
    xs = [inputs.values(request, rank, SEED) for rank in range(4)]
    assert wrong(request, 0, xs[0] + xs[1]) == 0
    for pair in ((0, 2), (0, 0), (1, 1), (2, 3)):
        assert wrong(request, 0, xs[pair[0]] + xs[pair[1]]), pair


def test_inputs_are_finite_where_a_broadcast_ignores_them():
    """torch_xla multiplies the other ranks' data by 0: NaN and infinity would survive. The table says so."""
    request = Request("broadcast", "float16", 40000, (4,), root=2)
    assert all(np.isfinite(x).all() for x in members(request))
    assert "finite" in table.BROADCAST.definition
    poisoned = members(request)[2].copy()
    poisoned[9] = np.nan
    assert wrong(request, 1, poisoned) == 1


def test_a_stale_buffer_is_wrong():
    """What an earlier size, reduction, placement, dtype of the same width, or launch left."""
    request = Request("all_reduce", "float16", 32, (2,), None, "sum")
    right = reference.expected(request, 0, SEED)
    for change in ({"count": 64}, {"count": 16}, {"reduction": "max"}, {"placement": "in_place"}, {"mesh": (3,)}):
        other = reference.expected(dataclasses.replace(request, **change), 0, SEED)
        assert wrong(request, 0, np.resize(other, 32)) > 24, change
    assert wrong(request, 0, reference.expected(request, 0, SEED + 1)) > 24
    assert wrong(request, 0, right) == 0


@pytest.mark.parametrize("collective", [name for name in table.TABLE if name != "barrier"])
def test_counts_are_whole_numbers(collective):
    """OMB-Py divides a size by 4 with `/`: a float, which mpi4py 4.1.2 refuses as a count."""
    for size in (1, 2, 3, 5, 1000, 4099):
        count, pad = sizes.counts(collective, size, "float32", 3)
        assert type(count) is int and type(pad) is int
        assert type(table.TABLE[collective].output_count(count, 3)) is int


def test_pads_are_sent_and_checked():
    """18 elements over 4 ranks: JAX refuses, gloo raises; here 20 are sent, and the last of them counts."""
    count, pad = sizes.counts("reduce_scatter", 72, "float32", 4)
    assert (count, pad) == (20, 8)
    request = Request("reduce_scatter", "float32", count, (4,), None, "sum")
    got = reference.expected(request, 3, SEED)
    got[-1] = 0
    result = check.compare(request, 3, got, SEED)
    assert (result.wrong, result.checked) == (1, 5)


def test_one_size_means_the_same_bytes_on_the_wire_of_every_collective():
    """In accelerator-microbenchmarks and OSU the same size moves other bytes in each collective."""
    n, size = 4, 4096
    for name, entry in table.TABLE.items():
        if name != "barrier":
            count, pad = sizes.counts(name, size, "float32", n)
            assert pad == 0
            assert max(count, entry.output_count(count, n)) * 4 == size


def test_records_hold_json_types():
    """nccl-tests writes booleans as "true" and not-a-number as "nan", both strings."""
    op = LoweredCollective("all-reduce", "f32", 8, 8, asynchronous=True)
    request = Request("all_reduce", "float32", 2, (2,), None, "sum")
    judged = lowering.judge(request, [op])
    cell = CollectiveCell("jax", "gloo", "process", "all_reduce", "sum", "float32", 8, 2, 0, (2,))
    result = check.compare(request, 0, np.full(2, np.nan, np.float32), SEED)
    written = {
        "op": op.to_dict(), "judged": dataclasses.asdict(judged), "cell": cell.to_dict(), "values": result.to_dict(),
        "rate": dataclasses.asdict(bandwidth.rate(8, 0.1)),
    }  # fmt: skip
    read = json.loads(json.dumps(written, allow_nan=False))
    assert read["op"]["asynchronous"] is True
    assert read["judged"]["removed"] is False
    assert read["values"]["wrong"] == 2
    assert CollectiveCell.from_dict(read["cell"]) == cell
    assert LoweredCollective.from_dict(read["op"]) == op


def test_the_transport_is_part_of_what_is_compared():
    """In-process buffers against gloo would credit the compiler with a factor of 4."""
    cell = CollectiveCell("jax", "inprocess", "spmd", "all_reduce", "sum", "float32", 8, 2, 0, (2,))
    other = dataclasses.replace(cell, framework="torch", mode="process", transport="gloo")
    assert cell.comparison != other.comparison
    assert cell.comparison == dataclasses.replace(cell, framework="torch_xla", mode="threads").comparison


def test_runs_divide_what_was_run():
    """XLA's collective_perf_table_gen runs 1 + 100 permutations and divides by 100."""
    assert bandwidth.of_times(100, [0.01] * 101) == pytest.approx(100 / 0.01)
    request = Request("all_reduce", "float32", 8, (2,), None, "sum")
    op = LoweredCollective("all-reduce", "f32", 32, 32, trips=101, computation="body")
    once = lowering.judge(request, [dataclasses.replace(op, trips=1)]).wire_bytes
    assert lowering.judge(request, [op]).wire_bytes == 101 * once
