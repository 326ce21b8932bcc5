"""Training over ranks of torch_xla: lanes and SPMD, 2 and 4 ranks, each in a process of its own."""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import json
import math
import signal
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


def arm_of(found: dict[str, Any], communication: str) -> dict[str, Any]:
    """The float32 step of REAL in one arm."""
    rows = [row for row in rows_of(found, communication) if row["request"]["strategy"] == "dp"]
    return next(row for row in rows if row["variant"] == REAL and row["request"]["dtype"] == "float32")


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


def test_arms_without_communication_are_seen_by_the_gate(world: World) -> None:
    """Each rank trains on its own rows: were these gradients right, the gate could not tell a rank's from the mean."""
    for arm in ("elided", "token"):
        assert arm_of(world("threads", 2), arm)["gradient"] > 100


@pytest.mark.parametrize("name", list(torch_xla_parallel.MUTATIONS))
def test_mutations_are_red(world: World, name: str) -> None:
    found = world("threads", 2)["mutations"][name]
    assert found["gradient"] > 100
    # adamw's first update does not know a gradient's scale: only the gradients tell a sum from a mean there.
    assert name == "sum" or not found["passed"]


def collectives_of(reader: client.Client, row: dict[str, Any]) -> list[LoweredCollective]:
    assert row["lowered"]["optimised"]
    (found,) = reader.collectives([row["lowered"]["text"]])
    assert not isinstance(found, str), found
    return found


def test_what_the_arms_send(world: World, reader: client.Client) -> None:
    found = world("threads", 2)
    sent = {arm: collectives_of(reader, arm_of(found, arm)) for arm in arms.ARMS}
    workload, _ = cases.inputs(REAL)
    tensors = workload.parameters()
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    seen = {
        arm: (len(ops), sum(op.operands for op in ops), sum(op.operand_bytes for op in ops))
        for arm, ops in sent.items()
    }
    assert seen == {
        "real": (1, len(tensors), 4 * elements),
        "serial": (1, len(tensors), 4 * elements),
        "alone": (1, len(tensors), 4 * elements),
        "elided": (0, 0, 0),
        "token": (1, len(tensors), 4 * len(tensors)),
        "alone_token": (1, len(tensors), 4 * len(tensors)),
    }
    assert all(op.reduction == "sum" for ops in sent.values() for op in ops)


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_does_its_share(world: World, reader: client.Client, size: int, tmp_path: Any) -> None:
    """Of the workload's products, in every arm: nothing was dropped with the collectives."""
    rows = [row for row in rows_of(world("threads", size)) if row["variant"].startswith("mlp") and "work" in row]
    assert len(rows) == (10 if size == 2 else 4)
    for row in rows:
        workload, _ = cases.inputs(row["variant"])
        whole = sum(product.flops for product in workload.products_per_step())
        path = tmp_path / "program"
        path.write_bytes(base64.b64decode(row["work"]["bytecode"]))
        counted = reader.ask("count_bytecode", str(path), row["work"]["inputs"])
        assert counted["flops"] * size == whole, row["request"]


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


def test_what_fsdp_sends(world: World, reader: client.Client) -> None:
    """Of every parameter a gather and of every gradient a scatter; an arm's operands are those of `real`."""
    found = [row for row in world("threads", 2)["rows"] if row["request"]["strategy"] == "fsdp"]
    sent = {row["request"]["communication"]: collectives_of(reader, row) for row in found}  # real: float64, the last
    workload, _ = cases.inputs("mlp of 8")
    elements = sum(math.prod(tensor.shape) for tensor in workload.parameters())
    kinds = {"all-gather": len(workload.parameters()), "reduce-scatter": len(workload.parameters())}
    for arm, ops in sent.items():
        assert collections.Counter(op.opcode for op in ops) == ({} if arm == "elided" else kinds), arm
    for arm, item in (("real", 8), ("serial", 4), ("alone", 4)):
        # two ranks: a part is half of the parameter
        assert sum(op.operand_bytes for op in sent[arm] if op.opcode == "all-gather") == item * elements // 2
        assert sum(op.operand_bytes for op in sent[arm] if op.opcode == "reduce-scatter") == item * elements
    for arm in ("token", "alone_token"):
        assert {(op.opcode, op.operand_bytes) for op in sent[arm]} == {("all-gather", 4), ("reduce-scatter", 8)}


def test_what_the_partitioner_makes_of_the_strategies(world: World, reader: client.Client) -> None:
    def opcodes(size: int, strategy: str) -> set[str]:
        (row,) = (row for row in world("spmd", size)["rows"] if row["request"]["strategy"] == strategy)
        return {op.opcode for op in collectives_of(reader, row)}

    assert opcodes(2, "fsdp") == opcodes(4, "fsdp") == {"all-gather", "all-reduce"}
    assert opcodes(4, "tp") == {"all-reduce"}


def test_upstream_launch_waits_for_the_program(world: World) -> None:
    """Goes red when it starts to work: then `Lanes.staged` is enough for training too."""
    done = conftest.run_child(["-m", "tests.frameworks.torch_xla_parallel", "staged"], {"XLA_FLAGS": None}, DEADLINE_S)
    assert done.returncode == -signal.SIGABRT, f"it works now: {done.stdout}"
    assert "Termination timeout for `all reduce" in done.stderr


def test_what_is_refused_says_why() -> None:
    def reason(strategy: str, arm: str, mode: str, workload: str, transport: str = "inprocess") -> str | None:
        asked = request.Request(strategy, arm, "compiled", "float32", 2)
        return strategies.unsupported(asked, transport, mode, workload)

    assert reason("dp", "real", "threads", "mlp") is None
    assert reason("dp", "real", "spmd", "convnet") is None
    assert reason("dp", "elided", "spmd", "mlp") == strategies.PARTITIONED
    assert reason("dp", "real", "threads", "convnet") == strategies.BATCH_NORM
    assert reason("tp", "real", "threads", "mlp") and reason("tp", "real", "spmd", "mlp") is None
    assert "gloo" in (reason("dp", "real", "process", "mlp", "gloo") or "")
    assert "pp" in (reason("pp", "real", "threads", "mlp") or "")
    asked = request.Request("dp", "real", "eager", "float32", 2)
    assert "eager" in (strategies.unsupported(asked, "inprocess", "threads", "mlp") or "")
