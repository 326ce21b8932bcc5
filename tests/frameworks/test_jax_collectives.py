"""Collectives of JAX in real worlds: values on 2 and 4 ranks over every transport that a CPU has. One world per
transport and number of ranks serves all requests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import sys
from typing import Any

import pytest

from tests.frameworks import jax_ranks
from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import steps, transports

DTYPES = ("float32", "float64", "bfloat16", "float16", "int32")
ODD, CHUNK = 97, 33  # no multiple of the ranks, nor of a vector register
RING = {n: tuple((place, (place + 1) % n) for place in range(n)) for n in (2, 4)}
OPEN = {2: ((0, 1),), 4: ((0, 1), (1, 2), (3, 3))}  # ranks without a source; an edge to itself
WORLDS = [(transport, size) for transport in ("inprocess", "gloo", "mpi") for size in (2, 4)]
Requests = dict[str, requests.Request]


def cells(size: int, dtype: str, mesh: tuple[int, ...], axis: int | None = None) -> Requests:
    """Every collective once."""
    n = size if axis is None else mesh[axis]
    common: dict[str, Any] = {"dtype": dtype, "mesh": mesh, "axis": axis}
    made = {
        "all_reduce/sum": requests.Request("all_reduce", count=ODD, reduction="sum", **common),
        "all_gather": requests.Request("all_gather", count=ODD, **common),
        "reduce_scatter/sum": requests.Request("reduce_scatter", count=CHUNK * n, reduction="sum", **common),
        "all_to_all": requests.Request("all_to_all", count=CHUNK * n, **common),
        "ppermute/ring": requests.Request("ppermute", count=ODD, pairs=RING[n], **common),
        "broadcast": requests.Request("broadcast", count=ODD, root=n - 1, **common),
    }
    return {f"{name}/{dtype}/{'x'.join(map(str, mesh))}.{axis}": request for name, request in made.items()}


def more(size: int) -> Requests:
    """Reductions, permutations and placements, float32."""
    common: dict[str, Any] = {"dtype": "float32", "mesh": (size,)}
    made = {"barrier": requests.Request("barrier", count=0, **common)}
    for reduction in ("mean", "max", "min"):
        made[f"all_reduce/{reduction}"] = requests.Request("all_reduce", count=ODD, reduction=reduction, **common)
    for reduction in ("mean", "max"):
        made[f"reduce_scatter/{reduction}"] = requests.Request(
            "reduce_scatter", count=CHUNK * size, reduction=reduction, **common
        )
    made["ppermute/open"] = requests.Request("ppermute", count=ODD, pairs=OPEN[size], **common)
    placed: dict[str, Any] = {**common, "placement": "in_place"}
    for reduction in ("sum", "mean"):
        made[f"all_reduce/{reduction}/in_place"] = requests.Request(
            "all_reduce", count=ODD, reduction=reduction, **placed
        )
    made["all_to_all/in_place"] = requests.Request("all_to_all", count=CHUNK * size, **placed)
    made["ppermute/open/in_place"] = requests.Request("ppermute", count=ODD, pairs=OPEN[size], **placed)
    made["broadcast/in_place"] = requests.Request("broadcast", count=ODD, root=1, **placed)
    made["all_gather/in_place"] = requests.Request("all_gather", count=ODD, **placed)
    made["all_reduce/mean/int32"] = requests.Request("all_reduce", "int32", ODD, (size,), reduction="mean")
    return made


def table(size: int) -> Requests:
    """All that a world of this size is asked."""
    made = {name: request for dtype in DTYPES for name, request in cells(size, dtype, (size,)).items()}
    made |= more(size)
    if size == 4:
        for axis in (0, 1):
            made |= cells(size, "float32", (2, 2), axis)
    return made


def expected(transport: str, request: requests.Request) -> str | None:
    """Why this is unsupported, written down here a second time."""
    mpi = transport == "mpi"
    rules = {
        "rounding": request.reduction == "mean" and request.dtype == "int32",
        "sums only": request.collective == "reduce_scatter" and request.reduction == "max" and not mpi,
        "no reduce_scatter": request.collective == "reduce_scatter" and mpi,
        "no MPI type": mpi and request.dtype in ("bfloat16", "float16"),
        "whole buffers only": request.collective == "all_gather" and request.placement == "in_place",
        "buffers of their own": mpi and request.placement == "in_place",
    }
    return next((words for words, holds in rules.items() if holds), None)


def need(transport: str) -> None:
    """Skips what this machine cannot start."""
    lacking = [name for name in transports.TRANSPORTS[transport].requires if importlib.util.find_spec(name) is None]
    if transport == "mpi" and not pathlib.Path(sys.executable).with_name("mpiexec").exists():
        lacking.append("mpiexec beside the interpreter")
    if lacking:
        pytest.skip(f"transport {transport} needs {', '.join(lacking)}")


@functools.cache
def answers(transport: str, size: int) -> list[dict[str, Any]]:
    """What the ranks of a world said to `table`, with the program text of some."""
    need(transport)
    asked = table(size)
    lowered = [name for name in asked if name.startswith(("all_reduce/sum", "all_gather", "barrier", "ppermute"))]
    work = {"do": "values", "requests": {name: r.to_dict() for name, r in asked.items()}, "lowered": lowered}
    return jax_ranks.start(transport, size, work)


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_every_cell_has_right_values_or_a_reason(transport: str, size: int) -> None:
    asked = table(size)
    for answer in answers(transport, size):
        assert set(answer["answers"]) == set(asked), "no cell is blank"
        for name, text in answer["answers"].items():
            reason = expected(transport, asked[name])
            right = text.startswith("unsupported: ") and reason in text if reason else text == "ok"
            assert right, f"{transport}, {name}, rank {answer['rank']}: {text}"


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_runs_compile_nothing(transport: str, size: int) -> None:
    assert [answer["compiles"] for answer in answers(transport, size)] == [0] * len(answers(transport, size))


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_the_parent_knows_what_is_unsupported(transport: str, size: int) -> None:
    """`unsupported` is asked without JAX, and agrees with what `build` raises."""
    mode = transports.TRANSPORTS[transport].modes[0]
    for name, request in table(size).items():
        said = answers(transport, size)[0]["answers"][name]
        reason = transports.unsupported(transport, mode, request, "cpu")
        assert said == (f"unsupported: {reason}" if reason else "ok")


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_axes_of_a_mesh_are_groups(transport: str) -> None:
    lowered = answers(transport, 4)[0]["lowered"]
    columns = lowered["all_reduce/sum/float32/2x2.0"]["text"]
    rows = lowered["all_reduce/sum/float32/2x2.1"]["text"]
    assert "replica_groups={{0,2},{1,3}}" in columns
    assert "replica_groups={{0,1},{2,3}}" in rows


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_no_collective_is_added_around_the_asked_one(transport: str) -> None:
    for name, told in answers(transport, 2)[0]["lowered"].items():
        found = [line for line in told["text"].splitlines() if is_collective(line)]
        assert len(found) == 1, f"{name}: {found}"


def is_collective(line: str) -> bool:
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
    return any(f" {name}(" in line for name in names)


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_a_donated_input_becomes_the_output(transport: str) -> None:
    lowered = answers(transport, 2)[0]["lowered"]
    assert "input_output_alias={ {}: (0" in lowered["all_reduce/sum/in_place"]["text"]
    assert "input_output_alias" not in lowered["all_reduce/sum/float32/2.None"]["text"]


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_in_place_feeds_the_next_run_until_refilled(transport: str) -> None:
    request = requests.Request("all_reduce", "float32", 8, (2,), reduction="sum", placement="in_place")
    for answer in jax_ranks.start(transport, 2, {"do": "refilled", "request": request.to_dict()}):
        assert [set(values) for values in answer["found"]] == [{2.0}, {4.0}, {2.0}]


def test_mpi_operations_are_told_with_bytes() -> None:
    lowered = answers("mpi", 2)[1]["lowered"]
    (reduce,) = lowered["all_reduce/sum/float32/2.None"]["ops"]
    (gather,) = lowered["all_gather/float64/2.None"]["ops"]
    assert (reduce["opcode"], reduce["dtype"], reduce["reduction"]) == ("all-reduce", "f32", "sum")
    assert (reduce["operand_bytes"], reduce["result_bytes"]) == (4 * ODD, 4 * ODD)
    assert (gather["opcode"], gather["dtype"]) == ("all-gather", "f64")
    assert (gather["operand_bytes"], gather["result_bytes"], gather["groups"]) == (8 * ODD, 16 * ODD, [[0, 1]])
    assert [op["opcode"] for op in lowered["barrier"]["ops"]] == ["barrier"]
    assert "MPICH" in answers("mpi", 2)[0]["describe"]["transport"] or os.environ.get("MPI4PY_MPIABI")


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_a_barrier_waits_for_the_last(transport: str) -> None:
    need(transport)
    early, late = jax_ranks.start(transport, 2, {"do": "late", "late_s": 0.5})
    assert min(early["waited_s"]) > 0.4
    assert max(late["waited_s"]) < 0.4


def test_gloo_keeps_the_order_of_programs() -> None:
    """Runs are asynchronous and share connections; two programs that changed places would mix their bytes."""
    names = ("all_reduce/sum", "all_gather", "ppermute/ring")
    asked = cells(2, "float32", (2,))
    chosen = {name: asked[f"{name}/float32/2.None"].to_dict() for name in names}
    for fields in chosen.values():
        fields["count"] = 40_000  # beyond what XLA:CPU runs on the caller's thread
    for answer in jax_ranks.start("gloo", 2, {"do": "overtaken", "requests": chosen}):
        assert answer["wrong"] == [""] * 3


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_gloo_gives_up_at_the_deadline(collective: str) -> None:
    """But reduce-scatter does not hear of it (jax-ml/jax#40831; it gives up after 30 s): red when that is mended."""
    request = requests.Request(collective, "float32", 1024, (2,), reduction="sum")
    work = {"do": "missing", "request": request.to_dict(), "asleep_s": 6, "deadline_s": 2, "mark": jax_ranks.MARK}
    alone = jax_ranks.start("gloo", 2, work)[0]
    assert alone["told"], "an error, not a hang"
    assert (alone["waited_s"] < 5) == (collective == "all_reduce")


def test_gloo_listens_where_the_place_says() -> None:
    """By default JAX's gloo takes the address of the host name, and its coordinator all networks."""
    first, second = jax_ranks.start("gloo", 2, {"do": "listening", "address": "127.0.0.3"})
    assert set(second["addresses"]) == {"0300007F"}  # 127.0.0.3
    assert set(first["addresses"]) == {"0300007F", "0000000000000000FFFF00000100007F"}  # and the coordinator


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_the_fence_waits(transport: str) -> None:
    """Fenced time grows with the bytes; after the fence the result is there."""
    asked = {
        str(count): requests.Request("all_reduce", "float32", count, (2,), reduction="sum").to_dict()
        for count in (1 << 18, 1 << 22)
    }
    work = {"do": "blocks", "requests": asked, "blocks": 5, "n": 4}
    for answer in jax_ranks.start(transport, 2, work):
        assert all(answer["ready"]), "nothing is pending after the fence"
        small, large = ([min(column) for column in zip(*block, strict=True)] for block in answer["blocks"].values())
        assert large[1] > 4 * small[1], "16 times the bytes"
        assert large[2] < large[1], "a read after the fence copies, it does not wait for four collectives"
        assert large[0] < large[1], "the dispatch is a part of the block"


def test_runs_in_flight_are_bounded() -> None:
    assert steps.most_pending(1 << 10) == 16
    assert steps.most_pending(16 << 20) == 4
    assert steps.most_pending(1 << 30) == 1


@pytest.mark.parametrize("placement", ["out_of_place", "in_place"])
def test_hundreds_of_runs_without_a_fence_end(placement: str) -> None:
    """See `test_upstream_more_than_32_in_flight_deadlock`."""
    request = requests.Request("all_reduce", "float32", 1 << 16, (2,), reduction="max", placement=placement)
    work = {"do": "many", "request": request.to_dict(), "seconds": 5}
    assert jax_ranks.start("inprocess", 2, work)[0]["runs"] > 500


@pytest.mark.parametrize("transport", ["inprocess", "gloo"])
def test_programs_end_in_order(transport: str) -> None:
    """Waiting for the last output is a fence only then."""
    asked = {
        str(count): requests.Request("all_reduce", "float32", count, (2,), reduction="sum").to_dict()
        for count in (1 << 10, 1 << 16, 1 << 19)
    }
    for answer in jax_ranks.start(transport, 2, {"do": "ordered", "requests": asked, "threads": 2}):
        assert answer["late"] == 0


def test_environment_adds_to_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ranks.Place(0, 4, 0, "127.0.0.1", 1, 1, deadline_s=7.2)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_collective_timeout_seconds=99 --xla_force_host_platform_device_count=9")
    flags = (transports.environment("inprocess", "spmd", place)["XLA_FLAGS"] or "").split()
    assert flags[0] == "--xla_cpu_collective_timeout_seconds=99"
    assert "--xla_cpu_collective_timeout_seconds=8" not in flags
    assert "--xla_cpu_collective_call_terminate_timeout_seconds=8" in flags
    assert flags[-1] == "--xla_force_host_platform_device_count=4"
    monkeypatch.delenv("XLA_FLAGS")
    assert (transports.environment("gloo", "process", place)["XLA_FLAGS"] or "").endswith("device_count=1")
    assert "XLA_FLAGS" not in transports.environment("mpi", "process", place)


@pytest.mark.parametrize(
    ("transport", "mode", "platform", "words"),
    [
        ("ici", "process", "tpu", "TPU"),
        ("carrier", "process", "cpu", "no transport"),
        ("gloo", "spmd", "cpu", "mode process"),
        ("gloo", "process", "gpu", "cpu buffers"),
        ("nccl", "process", "cpu", "gpu buffers"),
    ],
)
def test_unsupported_combinations_have_a_reason(transport: str, mode: str, platform: str, words: str) -> None:
    request = requests.Request("all_reduce", "float32", 8, (2,), reduction="sum")
    assert words in (transports.unsupported(transport, mode, request, platform) or "")


def test_the_parent_needs_no_jax(run_python: Any) -> None:
    code = "import sys; from xlacompare.frameworks.on_jax import transports; sys.exit('jax' in sys.modules)"
    assert run_python(code).returncode == 0
