"""The table, meshes, patterns and sizes: what is asked for before anything runs."""

from __future__ import annotations

import itertools

import pytest

from xlacompare.collectives import mesh, sizes, table
from xlacompare.collectives.request import Request
from xlacompare.core import errors

DATA = [name for name in table.TABLE if name != "barrier"]


def request(collective="all_reduce", **changes):
    values = {"dtype": "float32", "count": 8, "mesh": (4,), "reduction": "sum" if "reduce" in collective else ""}
    if collective == "ppermute":
        values["pairs"] = ((0, 1),)
    if collective == "barrier":
        values["count"] = 0
    return Request(collective, **{**values, **changes})


def test_bus_factors_are_those_of_nccl_tests():
    at_four = {name: entry.bus_factor(4) for name, entry in table.TABLE.items()}
    part = pytest.approx(0.75)
    assert at_four == {
        "all_reduce": 1.5, "all_gather": part, "reduce_scatter": part, "all_to_all": part, "ppermute": 1.0,
        "broadcast": 1.0, "barrier": 0.0,
    }  # fmt: skip
    assert {entry.bus_factor(1) for entry in table.TABLE.values()} == {0.0}


def test_size_means_the_larger_buffer():
    for name, entry in table.TABLE.items():
        count, n = (0 if name == "barrier" else 12), 4
        larger = max(entry.input_count(count), entry.output_count(count, n))
        assert entry.size_count(count, n) == larger, name
        assert entry.size_bytes(count, n, "bfloat16") == 2 * larger


def test_output_counts():
    assert {name: table.output_count(request(name)) for name in table.TABLE} == {
        "all_reduce": 8, "all_gather": 32, "reduce_scatter": 2, "all_to_all": 8, "ppermute": 8, "broadcast": 8,
        "barrier": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", table.TABLE)
def test_each_collective_has_a_legal_request(name):
    table.validate(request(name))


@pytest.mark.parametrize(
    ("collective", "changes", "said"),
    [
        ("all_reduse", {}, "no collective 'all_reduse'"),
        ("all_reduce", {"dtype": "int8"}, "no collective dtype 'int8'"),
        ("all_reduce", {"count": 0}, "the least is 1"),
        ("all_reduce", {"reduction": ""}, "legal: sum, mean, max, min"),
        ("all_gather", {"reduction": "sum"}, "legal: none"),
        ("all_reduce", {"reduction": "mean", "dtype": "int32"}, "mean of integers"),
        ("reduce_scatter", {"count": 9}, "not a multiple"),
        ("all_to_all", {"count": 9}, "not a multiple"),
        ("broadcast", {"root": 4}, "no place in a group of 4"),
        ("all_gather", {"pairs": ((0, 1),)}, "takes no pairs"),
        ("ppermute", {"pairs": ()}, "moves nothing"),
        ("ppermute", {"pairs": ((0, 1), (2, 1))}, "rank 1 is a destination twice"),
        ("ppermute", {"pairs": ((0, 1), (0, 2))}, "rank 0 is a source twice"),
        ("ppermute", {"pairs": ((0, 4),)}, "outside a group of 4"),
        ("ppermute", {"placement": "sideways"}, "no placement"),
        ("barrier", {"count": 1}, "carries no data"),
        ("all_reduce", {"axis": 1}, "no axis of mesh 4"),
        ("all_reduce", {"mesh": (2, 2, 2)}, "one or two extents"),
    ],
)
def test_senseless_requests_are_refused_in_one_line(collective, changes, said):
    with pytest.raises(errors.BadInputError, match=said) as caught:
        table.validate(request(collective, **changes))
    assert "\n" not in str(caught.value)


def test_groups_are_rows_and_columns():
    assert mesh.groups((2, 3), None) == ((0, 1, 2, 3, 4, 5),)
    assert mesh.groups((2, 3), 1) == ((0, 1, 2), (3, 4, 5))
    assert mesh.groups((2, 3), 0) == ((0, 3), (1, 4), (2, 5))
    assert mesh.groups((4,), 0) == mesh.groups((4,), None) == ((0, 1, 2, 3),)
    assert mesh.group_of((2, 3), 0, 4) == ((1, 4), 1)
    with pytest.raises(ValueError, match="rank 6"):
        mesh.group_of((2, 3), 0, 6)


@pytest.mark.parametrize(("rows", "columns"), [*itertools.product((1, 2, 3), repeat=2)])
def test_every_rank_is_in_one_group(rows, columns):
    for axis in (None, 0, 1):
        members = [rank for group in mesh.groups((rows, columns), axis) for rank in group]
        assert sorted(members) == list(range(rows * columns))


def test_parse_mesh():
    assert mesh.parse_mesh("4") == (4,)
    assert mesh.parse_mesh("2x3") == (2, 3)
    for text in ("", "0", "2x", "2x2x2", "-1", "two"):
        with pytest.raises(errors.BadInputError, match="no mesh"):
            mesh.parse_mesh(text)


def test_patterns():
    assert mesh.parse_pattern("ring", 3) == ((0, 1), (1, 2), (2, 0))
    assert mesh.parse_pattern("shift:-1", 3) == ((0, 2), (1, 0), (2, 1))
    assert mesh.parse_pattern("shift:0", 2) == ((0, 0), (1, 1))
    assert mesh.parse_pattern("pairs:0>1, 2>2", 3) == ((0, 1), (2, 2))
    assert mesh.global_pairs((2, 2), 0, ((0, 1),)) == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rings", "no pattern"), ("ring:2", "no pattern"), ("shift:", "no pattern"), ("shift:x", "no pattern"),
        ("pairs:", "no pattern"), ("pairs:0-1", "no pattern"), ("pairs:0>1,", "no pattern"),
        ("pairs:0>3", "outside"), ("pairs:0>1,2>1", "destination twice"), ("pairs:0>1,0>2", "source twice"),
    ],
)  # fmt: skip
def test_wrong_patterns(text, said):
    with pytest.raises(errors.BadInputError, match=said):
        mesh.parse_pattern(text, 3)


def test_parse_sizes():
    assert sizes.parse("1KiB:64KiB:4") == (1024, 4096, 16384, 65536)
    assert sizes.parse("8:64") == (8, 16, 32, 64)
    assert sizes.parse("3MiB,1MiB") == (3 << 20, 1 << 20)
    assert sizes.parse("8:32,16,1kB") == (8, 16, 32, 1000)
    for text in ("0", "8,0", "", "8:4", "8:16:1", "a"):
        with pytest.raises(errors.BadInputError):
            sizes.parse(text)


@pytest.mark.parametrize("collective", DATA)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_sizes_are_rounded_up_and_the_pad_is_told(collective, n):
    entry = table.TABLE[collective]
    for size, dtype in itertools.product((1, 3, 4, 8, 1000, 4096, 4100), table.ITEM_BYTES):
        count, pad = sizes.counts(collective, size, dtype, n)
        pairs = ((0, 0),) if collective == "ppermute" else ()
        table.validate(Request(collective, dtype, count, (n,), None, entry.reductions[:1][0] if entry.reduces else "",
                               pairs))  # fmt: skip
        assert entry.size_bytes(count, n, dtype) == size + pad
        assert 0 <= pad < table.item_bytes(dtype) * (n if entry.grows or entry.divided else 1)


def test_known_counts():
    assert sizes.counts("all_reduce", 10, "float32", 4) == (3, 2)
    assert sizes.counts("all_gather", 10, "float32", 4) == (1, 6)
    assert sizes.counts("reduce_scatter", 72, "float32", 4) == (20, 8)  # 18 elements: JAX refuses 18 over 4
    assert sizes.counts("all_to_all", 16, "float64", 2) == (2, 0)
    assert sizes.counts("barrier", 0, "float32", 4) == sizes.counts("barrier", 64, "float32", 4) == (0, 0)
    with pytest.raises(errors.BadInputError, match="0 bytes"):
        sizes.counts("all_reduce", 0, "float32", 2)
