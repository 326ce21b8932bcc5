"""Training over ranks of torch_xla by SPMD, 2 and 4 ranks, each in a process of its own."""

from __future__ import annotations

import concurrent.futures
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import conftest
from tests.frameworks import cases, torch_xla_parallel
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks.on_torch_xla import strategies
from xlacompare.graph import client
from xlacompare.parallel import arms, request

DEADLINE_S = 400
WORLDS = list(torch_xla_parallel.CASES)
REAL = "mlp with adamw"

World = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """What a mode with so many ranks does; two processes at a time."""

    def start(mode: str, size: int) -> dict[str, Any]:
        done = conftest.run_child(
            ["-m", "tests.frameworks.torch_xla_parallel", mode, str(size)], {"XLA_FLAGS": None}, DEADLINE_S
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = {key: pool.submit(start, *key) for key in WORLDS}
        yield lambda *key: running[key].result()
        for future in running.values():
            future.cancel()


def rows_of(found: dict[str, Any], *communication: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["request"]["communication"] in (communication or arms.ARMS)]


@pytest.mark.parametrize("key", WORLDS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_the_gate_passes(world: World, key: tuple[str, int]) -> None:
    """Same loss, gradients and update as one device on the global batch; also after steps and a reset."""
    rows = rows_of(world(*key), *arms.EXACT)
    assert {row["request"]["dtype"] for row in rows} == {"float32", "float64"}
    for row in rows:
        name = f"{row['request']} {row['variant']}"
        assert row["passed"], f"{name}: {row['message']}"
        assert row["gradient"] <= 1.0, name
        assert row["after"] == row["gradient"], name


@pytest.mark.parametrize("key", WORLDS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_no_run_compiles_and_losses_stay_finite(world: World, key: tuple[str, int]) -> None:
    for row in rows_of(world(*key)):
        assert row["compiles"] == 0, row["request"]
        assert math.isfinite(row.get("loss", 0.0)), row["request"]


@pytest.mark.parametrize("name", list(torch_xla_parallel.MUTATIONS))
def test_mutations_are_red(world: World, name: str) -> None:
    found = world("spmd", 2)["mutations"][name]
    assert found["gradient"] > 100
    # adamw's first update does not know a gradient's scale: only the gradients tell a sum from a mean there.
    assert name == "sum" or not found["passed"]


def collectives_of(reader: client.Client, row: dict[str, Any]) -> list[LoweredCollective]:
    assert row["lowered"]["optimised"]
    (found,) = reader.collectives([row["lowered"]["text"]])
    assert not isinstance(found, str), found
    return found


def test_the_partitioner_reduces_every_gradient(world: World, reader: client.Client) -> None:
    workload, _ = cases.inputs(REAL)
    elements = sum(math.prod(tensor.shape) for tensor in workload.parameters())
    for size in (2, 4):
        row = world("spmd", size)["rows"][0]  # dp in float64
        ops = collectives_of(reader, row)
        assert {op.opcode for op in ops} == {"all-reduce"}
        sent = sum(op.operand_bytes for op in ops) // 8
        # and a few scalars: the loss and its normalisers
        assert elements <= sent <= elements + 10
        assert row["work"] is None


def test_what_the_partitioner_makes_of_the_strategies(world: World, reader: client.Client) -> None:
    def opcodes(size: int, strategy: str) -> set[str]:
        (row,) = (row for row in world("spmd", size)["rows"] if row["request"]["strategy"] == strategy)
        return {op.opcode for op in collectives_of(reader, row)}

    assert opcodes(2, "fsdp") == opcodes(4, "fsdp") == {"all-gather", "all-reduce"}
    assert opcodes(4, "tp") == {"all-reduce"}


def test_what_is_refused_says_why() -> None:
    def reason(strategy: str, arm: str, mode: str, workload: str, transport: str = "inprocess") -> str | None:
        asked = request.Request(strategy, arm, "compiled", "float32", 2)
        return strategies.unsupported(asked, transport, mode, workload)

    assert reason("dp", "real", "spmd", "convnet") is None
    assert reason("dp", "elided", "spmd", "mlp") == strategies.PARTITIONED
    assert reason("dp", "real", "threads", "mlp") == strategies.THREADS
    assert reason("tp", "real", "spmd", "mlp") is None
    assert reason("dp_auto", "real", "spmd", "mlp") == strategies.LACKS["dp_auto"]
    assert "gloo" in (reason("dp", "real", "process", "mlp", "gloo") or "")
    assert "pp" in (reason("pp", "real", "spmd", "mlp") or "")
