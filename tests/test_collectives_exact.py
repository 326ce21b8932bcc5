"""Inputs: exact in every dtype, different between ranks and neighbours, and cheap to check at 256 MiB."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from xlacompare.collectives import check, inputs, mesh, reference, table
from xlacompare.collectives.request import Request
from xlacompare.core import errors

SEED = 5


def partial_sums(request, length):
    """(length,) largest sum of any subset, and the members."""
    group = mesh.groups(request.mesh, request.axis)[0]
    xs = np.stack([inputs.values(request, rank, SEED).astype(np.float64)[:length] for rank in group])
    return np.abs(xs).sum(axis=0), xs


@pytest.mark.parametrize("n", [2, 3, 8, 63, 64])
@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)])
def test_sums_are_exact_in_any_order(dtype, bits, n):
    request = Request("all_reduce", dtype, 5000, (n,), None, "sum")
    most, xs = partial_sums(request, 5000)
    assert most.max() <= 2**bits
    np.testing.assert_array_equal(xs, np.round(xs))
    assert xs.min() > 0
    assert len(np.unique(xs)) >= 4


def test_integer_sums_do_not_overflow():
    most, _ = partial_sums(Request("all_reduce", "int32", 5000, (64,), None, "sum"), 5000)
    assert most.max() < 2**31


def test_too_many_ranks_for_an_exact_sum():
    with pytest.raises(errors.BadInputError, match="at most 64 ranks, or float32"):
        inputs.values(Request("all_reduce", "bfloat16", 4, (65,), None, "sum"), 0, SEED)
    inputs.values(Request("all_gather", "bfloat16", 4, (65,)), 0, SEED)


@pytest.mark.parametrize("dtype", table.ITEM_BYTES)
def test_moved_values_differ_between_ranks_and_neighbours_and_are_never_zero(dtype):
    request = Request("all_gather", dtype, 1000, (64,))
    xs = np.stack([inputs.values(request, rank, SEED) for rank in range(64)])
    assert np.all(xs != 0)
    assert np.all(np.diff(xs.astype(np.float64), axis=1) != 0)
    assert all(len(np.unique(column)) == 64 for column in xs.T)
    assert xs.min() < 0 < xs.max()
    limit = 2.0 ** {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53, "int32": 31}[dtype]
    assert np.abs(xs.astype(np.float64)).max() <= limit


def test_every_rank_is_the_largest_and_the_smallest_somewhere():
    request = Request("all_reduce", "bfloat16", 2000, (8,), None, "max")
    xs = np.stack([inputs.values(request, rank, SEED) for rank in range(8)])
    assert set(xs.argmax(axis=0)) == set(xs.argmin(axis=0)) == set(range(8))


@pytest.mark.parametrize("number", [*inputs.MOVED_VALUES.values(), inputs.BLOCK])
def test_primes(number):
    """The ranks' stride meets every value, and pieces of a power of two never meet the same place of the table."""
    assert all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def test_long_buffers_do_not_repeat():
    request = Request("all_gather", "float32", 40 * inputs.BLOCK, (2,))
    x = inputs.values(request, 0, SEED)
    for lag in (1, 1 << 10, 1 << 14, inputs.BLOCK, 4 * inputs.BLOCK):
        assert np.mean(x[lag:] == x[:-lag]) < 0.1, lag


def test_the_same_in_every_process_and_other_for_every_seed():
    """Ranks make their inputs themselves; the values are part of what a record's seed means."""
    request = Request("all_reduce", "float32", 4, (2,), None, "sum")
    first = [inputs.values(request, rank, 1).tolist() for rank in range(2)]
    assert first == [inputs.values(Request.from_dict(request.to_dict()), rank, 1).tolist() for rank in range(2)]
    assert first == PINNED
    assert first != [inputs.values(request, rank, 2).tolist() for rank in range(2)]


PINNED = [[4218792.0, 3315329.0, 7305075.0, 3179248.0], [24488.0, 7509633.0, 3110771.0, 7373552.0]]


@pytest.mark.parametrize(("collective", "reduction"), [("all_reduce", "sum"), ("all_to_all", ""), ("all_gather", "")])
def test_256_mib_needs_no_buffer_of_another_rank(collective, reduction):
    """The check of a buffer allocates a small part of it: no rank's input, nor the expected output, is built."""
    request = Request(collective, "float32", 1 << 22, (4,), None, reduction)
    got = reference.expected(request, 1, SEED)
    tracemalloc.start()
    assert check.compare(request, 1, got, SEED).wrong == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < got.nbytes / 4
