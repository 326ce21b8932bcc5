"""torch's collectives over gloo and MPI: the whole table by value, and what the libraries said they ran."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
import torch.distributed as dist

from tests.frameworks import torch_ranks
from tests.frameworks.torch_work import DTYPES
from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch import collectives, transports

needs_mpi = pytest.mark.skipif(
    not (importlib.util.find_spec("mpi4py") and torch_ranks.MPIEXEC.exists())
    and "torch" not in os.environ.get("XLACOMPARE_REQUIRED_FRAMEWORKS", "").split(","),
    reason="needs mpi4py, and mpiexec beside this interpreter: pip install -e '.[mpi]'",
)
MPI = pytest.param("mpi", marks=needs_mpi)
WORLDS = [("gloo", 2), ("gloo", 4), pytest.param("mpi", 2, marks=needs_mpi), pytest.param("mpi", 4, marks=needs_mpi)]
worlds = pytest.mark.parametrize(("transport", "size"), WORLDS)


def whole_world(transport: str, size: int) -> list[dict]:
    """Answers of a world's ranks; a world of two also has the facts of test_torch_collectives_facts.py."""
    return torch_ranks.answers(transport, size, "everything" if size == 2 else "whole_table")


def cells(transport: str, size: int, **wanted: str) -> list[list[dict]]:
    """Cells of every rank whose request has these values."""
    answers = whole_world(transport, size)
    found = [
        [cell for cell in answer["cells"] if all(cell["request"][key] == value for key, value in wanted.items())]
        for answer in answers
    ]
    assert len(found) == size and all(len(part) == len(found[0]) for part in found)
    return found


@worlds
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", list(table.TABLE))
def test_values(transport, size, collective, dtype):
    """No blank: every cell is right at every rank, both runs, or says why it is not supported."""
    by_rank = cells(transport, size, collective=collective, dtype=dtype)
    assert by_rank[0]
    for cell in (cell for part in by_rank for cell in part):
        if cell["unsupported"]:
            assert "no in-place" in cell["unsupported"] and collective not in transports.IN_PLACE
            continue
        for run in ("first", "again"):
            assert not cell[run]["wrong"], f"{cell['request']}: {cell[run]['message']}"
            assert bool(cell[run]["checked"]) == (collective != "barrier")


@worlds
def test_the_table_is_whole(transport, size):
    (found, *_) = cells(transport, size)
    asked = {(c["request"]["collective"], c["request"]["dtype"], c["request"]["reduction"]) for c in found}
    assert len(asked) == 5 * 5 + 4 * 4 * 2 + 3 * 2  # five that move; two that reduce, with no mean of integers
    axes = {(tuple(c["request"]["mesh"]), c["request"]["axis"]) for c in found}
    assert axes == {((size,), None)} | ({((2, 2), 0), ((2, 2), 1)} if size == 4 else set())
    assert {c["compiled"] for c in found if not c["unsupported"]} == {0}


@worlds
def test_odd_sizes(transport, size):
    counts = {cell["request"]["count"] for cell in cells(transport, size)[0]}
    assert {1, 1025, 2049} <= counts, "sizes that are no multiple of the ranks"


OPCODES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "broadcast": "collective-broadcast",
    "barrier": "barrier",
    "ppermute": "send-recv",
}


@worlds
@pytest.mark.parametrize("collective", list(table.TABLE))
def test_what_ran(transport, size, collective):
    """By the library's record: one operation, in the dtype that was asked for, with its bytes; gloo reduces and
    scatters by an all-reduce of everything (pytorch/pytorch#149869; red when it has one of its own)."""
    naive = transport == "gloo" and collective == "reduce_scatter"
    expected = "all-reduce" if naive else OPCODES[collective]
    for cell in (c for part in cells(transport, size, collective=collective) for c in part if "lowered" in c):
        request, ops = requests.Request.from_dict(cell["request"]), cell["lowered"]["ops"]
        assert cell["lowered"]["source"] == ("c10d" if transport == "gloo" else "mpi")
        if all(a == b for a, b in request.pairs) and request.pairs:
            assert ops == [], "self edges send nothing"
            continue
        assert [op["opcode"] for op in ops] == [expected], cell
        item = table.ITEM_BYTES[request.dtype]
        assert ops[0]["operand_bytes"] == request.count * item
        n = 2 if request.axis is not None else size
        results = request.count * item if naive else table.output_count(request) * item
        assert ops[0]["result_bytes"] == results
        assert len(ops[0]["groups"]) == (1 if n != size and collective != "ppermute" else 0)
        assert ["other opcode" in finding for finding in cell["findings"]] == ([True] if naive else [])


@worlds
def test_bytes_of_reduce_scatter(transport, size):
    """busbw counts the bytes of what ran: twice the nominal ones over gloo."""
    for cell in (c for c in cells(transport, size, collective="reduce_scatter", dtype="float32")[0] if "lowered" in c):
        request = requests.Request.from_dict(cell["request"])
        n = 2 if request.axis is not None else size
        nominal = request.count * 4 * (n - 1) / n
        assert cell["wire_bytes"] == nominal * (2 if transport == "gloo" else 1)


@worlds
def test_transfers_of_all_ranks(transport, size):
    """The pairs of a permutation are the global ranks' of every group, at every rank alike."""
    for part in cells(transport, size, collective="ppermute", dtype="int32"):
        rings = [
            c for c in part if c.get("lowered") and c["request"]["axis"] is None and len(c["request"]["pairs"]) == size
        ]
        (ops,) = [c["lowered"]["ops"] for c in rings if c["lowered"]["ops"]]
        assert sorted(map(tuple, ops[0]["pairs"])) == sorted((i, (i + 1) % size) for i in range(size))
        columns = [
            c for c in part if c.get("lowered") and c["request"]["axis"] == 0 and len(c["request"]["pairs"]) == 1
        ]
        for cell in columns:
            assert sorted(map(tuple, cell["lowered"]["ops"][0]["pairs"])) == [(0, 2), (1, 3)]


@worlds
def test_copies_that_belong_to_a_run(transport, size):
    """Where torch works in place only, the copy is in `run` and can be timed alone."""
    for rank, part in enumerate(cells(transport, size, dtype="float32")):
        for cell in (cell for cell in part if not cell["unsupported"]):
            request = requests.Request.from_dict(cell["request"])
            root = request.collective == "broadcast" and rank % len(part) in _roots(request, size)
            expected = request.placement == "out_of_place" and (request.collective == "all_reduce" or root)
            assert cell["copied"] == expected, cell["request"]


def _roots(request: requests.Request, size: int) -> set[int]:
    if request.axis is None:
        return {size - 1}
    return {2, 3} if request.axis == 0 else {1, 3}


@needs_mpi
def test_half_types_on_mpi():
    """float16 is the library's own extension; bfloat16 goes as 16 bits with an operation of ours, and the log says so.

    Red when mpi4py names the library's bfloat16: the backend uses it by itself then.
    """
    answer = whole_world("mpi", 2)[0]["our_backend"]
    assert answer["kinds"] == {f"torch.{d}": d != "bfloat16" for d in DTYPES}
    for dtype, words in (("bfloat16", "MPI_Op of torch's sum"), ("float16", "FLOAT16")):
        found = cells("mpi", 2, collective="all_reduce", dtype=dtype)[0]
        sources = {c["lowered"]["ops"][0]["source"] for c in found if "lowered" in c}
        assert all(words in source for source in sources) and sources


@worlds
def test_describe(transport, size):
    keys = whole_world(transport, size)[0]["describe"]
    assert keys["threads"] == 1 and keys["platform"] == "cpu" and keys["asynchronous"] is False
    assert transport in keys["transport"]
    if transport == "gloo":
        assert keys["interface"] == "lo", "all ranks on this machine, and the user chose no interface"
    else:
        assert keys["mpi_library"] and keys["mpi4py"]
    json.dumps(keys)


def test_torch_has_no_mpi_of_its_own():
    """Why there is a backend over mpi4py. Red when a wheel of torch has MPI: then its own is used and tested here."""
    assert not dist.is_mpi_available()


PLACE = ranks.Place(0, 2, 0, "127.0.0.1", 1, 1)
ALL_REDUCE = requests.Request("all_reduce", "float32", 4, (2,), reduction="sum")


@pytest.mark.parametrize(
    ("transport", "mode", "platform", "words"),
    [
        ("gloo", "process", "cpu", None), ("mpi", "process", "cpu", None), ("nccl", "process", "gpu", None),
        ("gloo", "spmd", "cpu", "one process per rank"), ("gloo", "process", "gpu", "use nccl"),
        ("mpi", "process", "gpu", "device memory"), ("nccl", "process", "cpu", "CUDA memory"),
        ("inprocess", "process", "cpu", "one process per rank"), ("ici", "process", "tpu", "torch_xla"),
    ],
)  # fmt: skip
def test_unsupported(transport, mode, platform, words):
    reason = transports.unsupported(transport, mode, ALL_REDUCE, platform)
    assert (reason is None) if words is None else (words in reason and "\n" not in reason)


def test_interface_of_gloo(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert transports.environment("gloo", "process", PLACE)["GLOO_SOCKET_IFNAME"] == "lo"
    elsewhere = ranks.Place(0, 2, 0, "10.0.0.1", 1, 1)
    assert "GLOO_SOCKET_IFNAME" not in transports.environment("gloo", "process", elsewhere)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "veth0")
    assert "GLOO_SOCKET_IFNAME" not in transports.environment("gloo", "process", PLACE), "the user's choice stands"


@pytest.mark.parametrize(("transport", "words"), [("inprocess", "one process per rank"), ("nccl", "no CUDA device")])
def test_connect_refuses(transport, words):
    if transport == "nccl" and collectives.torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(collectives.errors.UnsupportedError, match=words):
        collectives.connect(transport, "process", PLACE)
