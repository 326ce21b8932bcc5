"""Inputs, reference and check: every fault that a transport can make is seen, and right results are exact."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from xlacompare.collectives import check, inputs, mesh, reference, table
from xlacompare.collectives.request import Request

SEED = 5
# A sweep begins with a few elements; LONG exceeds a block of the table, and its chunks straddle blocks.
SHORT, LONG = 3, 3 * inputs.BLOCK // 2
MESHES = (((2,), None), ((3,), None), ((2, 2), 0), ((2, 3), 1), ((4,), None))


def requests(per_rank=SHORT, meshes=MESHES, dtypes=tuple(table.ITEM_BYTES)):
    """Every collective, reduction, dtype and mesh."""
    for (shape, axis), dtype in itertools.product(meshes, dtypes):
        n = mesh.group_size(shape, axis)
        for name, entry in table.TABLE.items():
            for reduction in entry.reductions or ("",):
                if name == "barrier" or table.unsupported(name, reduction, dtype):
                    continue
                pairs = mesh.parse_pattern("ring", n) if name == "ppermute" else ()
                yield Request(name, dtype, per_rank * n, shape, axis, reduction, pairs, root=n - 1)


def run(request, xs, places=None):
    """The collective in plain NumPy: global rank -> output. `places` misroutes: it permutes the members of a group."""
    out = {}
    for group in mesh.groups(request.mesh, request.axis):
        members = [xs[group[place]] for place in (places or range(len(group)))]
        out.update(zip(group, _outputs(request, members), strict=True))
    return out


def _outputs(request, members):
    n, chunk = len(members), request.count // len(members)
    reduced = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}.get(request.reduction)
    whole = reduced(members, axis=0, dtype=np.float64) if request.reduction in ("sum", "mean") else None
    whole = reduced(members, axis=0) if request.reduction in ("max", "min") else whole
    chunks = [slice(place * chunk, (place + 1) * chunk) for place in range(n)]
    match request.collective:
        case "all_reduce":
            return [whole] * n
        case "reduce_scatter":
            return [whole[part] for part in chunks]
        case "all_gather":
            return [np.concatenate(members)] * n
        case "all_to_all":
            return [np.concatenate([x[part] for x in members]) for part in chunks]
        case "broadcast":
            return [members[request.root]] * n
    sources = {b: a for a, b in request.pairs}
    return [members[sources[place]] if place in sources else np.zeros(request.count) for place in range(n)]


def all_inputs(request, seed=SEED):
    return {rank: inputs.values(request, rank, seed) for rank in range(mesh.size(request.mesh))}


def cast(request, x):
    """float64 to what a framework would hand back."""
    if request.dtype == "bfloat16":
        return inputs.round_bfloat16(x)
    with np.errstate(over="ignore"):
        return (x.astype(np.int64) if request.dtype == "int32" else x).astype(request.dtype)


def wrong(request, outputs):
    results = [check.compare(request, rank, cast(request, got), SEED) for rank, got in outputs.items()]
    return check.merge(results).wrong


def every_request():
    yield from requests()
    yield from requests(LONG, MESHES[1:2], ("float32", "bfloat16"))


def test_right_results_pass_and_the_reference_is_numpys():
    for request in every_request():
        for rank, out in run(request, all_inputs(request)).items():
            got = cast(request, out)
            result = check.compare(request, rank, got, SEED)
            assert (result.wrong, result.checked, result.message) == (0, table.output_count(request), ""), request
            np.testing.assert_array_equal(reference.expected(request, rank, SEED), got)


def misroutings(request):
    """Name -> outputs by rank, for everything that a transport may do wrong."""
    xs, n = all_inputs(request), mesh.group_size(request.mesh, request.axis)
    right, count = run(request, xs), request.count
    yield "zeroed", {rank: np.zeros_like(out) for rank, out in right.items()}
    yield "doubled", {rank: out * 2.0 for rank, out in right.items()}
    yield "shifted", {rank: np.roll(out, 1) for rank, out in right.items()}
    yield "reversed", {rank: out[::-1] for rank, out in right.items()}
    size = table.output_count(request)
    yield "own input", {rank: np.resize(x, size) for rank, x in xs.items()}
    yield "other seed", run(request, all_inputs(request, SEED + 1))
    longer = Request(**{**request.to_dict(), "count": 2 * count})
    yield "size before", {rank: out[:size] for rank, out in run(longer, all_inputs(longer)).items()}
    yield "other rank's output", _next_ranks(request, right)
    if mesh.size(request.mesh) > n:
        yield "other axis or all", _wrong_group(request, xs)
    if request.reduction not in ("sum", "mean", "max", "min") or request.collective == "reduce_scatter":
        yield "wrong places", run(request, xs, places=[*range(1, n), 0]) if not request.reduction else _chunks(right)
    if request.reduction:
        alone = {rank: xs[rank][: len(out)].astype(np.float64) for rank, out in right.items()}
        yield "unreduced", alone
        other = mesh.groups(request.mesh, request.axis)[0][1]
        yield (
            "one rank missing",
            run(request, {**xs, 0: xs[other] if request.reduction in ("max", "min") else xs[0] * 0}),
        )
        yield "one rank twice", run(request, {**xs, 0: xs[other]})


def _next_ranks(request, right):
    """Every rank has the output of the next rank, of another group where there are several."""
    size = len(right)
    return {rank: right[(rank + 1) % size] for rank in right}


def _chunks(right):
    return {rank: np.roll(out, 1) for rank, out in right.items()}


def _wrong_group(request, xs):
    """Ranks of other groups took part."""
    size = len(xs)
    return run(request, {rank: xs[(rank + 1) % size] for rank in xs})


SAME_BY_DEFINITION = {
    ("all_reduce", "other rank's output"), ("all_gather", "other rank's output"), ("broadcast", "other rank's output"),
}  # fmt: skip


def test_every_fault_is_seen():
    for request in every_request():
        one_group = mesh.size(request.mesh) == mesh.group_size(request.mesh, request.axis)
        for fault, outputs in misroutings(request):
            if one_group and (request.collective, fault) in SAME_BY_DEFINITION:
                continue
            assert wrong(request, outputs), (fault, request)


def test_a_fault_in_one_element_is_seen_and_named():
    """One element of one rank, the last included, which is pad where the size is odd."""
    meshes = (((3,), None),)
    for request in [*requests(SHORT, meshes), *requests(LONG, meshes, ("float16",))]:
        for rank, out in run(request, all_inputs(request)).items():
            for index in (0, len(out) // 2, len(out) - 1):
                got = cast(request, out).copy()
                got[index] = -got[index]
                result = check.compare(request, rank, got, SEED)
                assert result.wrong == 1
                assert result.message.startswith(f"rank {rank}, index {index}: got ")


def test_the_message():
    request = Request("all_reduce", "float32", 512, (2,), None, "sum")
    got = np.full(512, 3.0, np.float32)
    value = reference.expected(request, 1, SEED)[0]
    said = check.compare(request, 1, got, SEED).message
    assert said == f"rank 1, index 0: got 3.0, expected {value} (first of 512 wrong)"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_no_number_is_wrong(bad, reduction, dtype):
    request = Request("all_reduce", dtype, 6, (3,), None, reduction)
    got = reference.expected(request, 0, SEED)
    got[2] = bad
    assert check.compare(request, 0, got, SEED).wrong == 1


def test_wrong_shapes_and_types():
    request = Request("all_gather", "bfloat16", 4, (2,))
    right = reference.expected(request, 0, SEED)
    assert check.compare(request, 0, right, SEED).wrong == 0
    for got, said in (
        (right[:4], r"shape is \(4,\), expected \(8,\)"),
        (right.reshape(2, 4), r"shape is \(2, 4\)"),
        (right.astype(np.float64), "type is float64, expected bfloat16"),
    ):
        result = check.compare(request, 1, got, SEED)
        assert result.wrong == 8
        assert re.search(said, result.message)


def test_bfloat16_as_a_framework_hands_it_back():
    types = pytest.importorskip("ml_dtypes")
    request = Request("all_reduce", "bfloat16", 40000, (3,), None, "mean")
    right = reference.expected(request, 2, SEED)
    np.testing.assert_array_equal(right, np.asarray(right, np.float64).astype(types.bfloat16).astype(np.float32))
    assert check.compare(request, 2, right.astype(types.bfloat16), SEED).wrong == 0


def test_rounding_to_bfloat16_is_to_nearest_and_ties_to_even():
    numbers = np.array([256.0, 257.0, 258.0, 258.9, 259.0, 259.1, -257.0, -259.0, 1 + 2**-8, 1 + 3 * 2**-8, 0.0])
    right = [256, 256, 258, 258, 260, 260, -256, -260, 1, 1 + 2**-6, 0]
    np.testing.assert_array_equal(inputs.round_bfloat16(numbers), right)


def test_a_barrier_has_no_data():
    request = Request("barrier", "float32", 0, (4,))
    assert inputs.values(request, 3, SEED).size == reference.expected(request, 3, SEED).size == 0
    assert check.compare(request, 3, np.empty(0, np.float32), SEED) == check.CheckResult(0, 0)


@pytest.mark.parametrize(("dtype", "narrow"), [("float32", "float16"), ("float64", "float32")])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_a_narrowed_transfer_is_seen(dtype, narrow, collective):
    request = Request(collective, dtype, 100, (4,), None, "sum" if collective == "all_reduce" else "")
    with np.errstate(over="ignore"):
        xs = {rank: x.astype(narrow).astype(dtype) for rank, x in all_inputs(request).items()}
    assert wrong(request, run(request, xs)) > 100
