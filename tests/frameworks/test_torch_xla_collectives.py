"""xm.* on several CPU devices: the whole table, and upstream's faults, each in a process of its own."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests import conftest
from tests.frameworks import torch_xla_ranks, torch_xla_upstream
from xlacompare.collectives import lowering, request
from xlacompare.frameworks.on_torch_xla import transports
from xlacompare.graph import client

DEADLINE_S = 240
AT_ONCE = 4
TABLES = [("threads", 2), ("threads", 4), ("spmd", 2), ("spmd", 4)]
ABORTS = ("default_all_gather", "rendezvous", "small_pool", "unstaged")
ABORT_TEXT = "Termination timeout for `all reduce"

Child = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """Results of children that all start at the first use, some at a time: most wait for XLA's abort after 10 s."""
    wanted = [("table", mode, str(n)) for mode, n in TABLES] + [(name,) for name in torch_xla_upstream.REPRODUCERS]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            key: pool.submit(
                conftest.run_child, ["-m", "tests.frameworks.torch_xla_ranks", *key], {"XLA_FLAGS": None}, DEADLINE_S
            )
            for key in wanted
        }
        yield lambda *key: running[key].result()
        for future in running.values():
            future.cancel()


def answer_of(child: Child, *key: str) -> Any:
    """The JSON that a child printed."""
    done = child(*key)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=TABLES, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def rows(request: pytest.FixtureRequest, child: Child) -> list[dict[str, Any]]:
    mode, n = request.param
    return answer_of(child, "table", mode, str(n))["rows"]


def name_of(row: dict[str, Any]) -> str:
    asked = row["request"]
    return f"{asked['collective']} {asked['reduction']} {asked['dtype']} {asked['mesh']} {asked['axis']}"


def test_every_value_is_right(rows: list[dict[str, Any]]) -> None:
    ran = [row for row in rows if not row["reason"]]
    assert [f"{name_of(row)}: {row['problem']}" for row in ran if row["problem"]] == []
    assert all(row["checked"] == np.prod(row["request"]["mesh"]) for row in ran)
    assert len(ran) > 40


def test_what_did_not_run_is_what_transports_say(child: Child) -> None:
    for mode, n in TABLES:
        for row in answer_of(child, "table", mode, str(n))["rows"]:
            asked = request.Request.from_dict(row["request"])
            assert row["reason"] == (transports.unsupported("inprocess", mode, asked, "cpu") or ""), name_of(row)


def test_lacks_are_no_more_than_these(child: Child) -> None:
    threads = {name_of(row).split()[0] for row in answer_of(child, "table", "threads", "2")["rows"] if row["reason"]}
    assert threads == {"all_reduce", "broadcast"}  # of bfloat16 only
    spmd = {name_of(row).split()[0] for row in answer_of(child, "table", "spmd", "2")["rows"] if row["reason"]}
    assert spmd == {*transports.SPMD_LACKS, "all_reduce"}  # all_reduce in place only


def test_each_run_is_one_execution_and_none_compiles(child: Child) -> None:
    for mode, n in TABLES:
        expected = torch_xla_ranks.RUNS * (n if mode == "threads" else 1)
        for row in answer_of(child, "table", mode, str(n))["rows"]:
            if not row["reason"]:
                assert (row["compiles"], row["executions"]) == (0, expected), f"{mode} {n} {name_of(row)}"
                assert not row["copies"]


def test_the_program_that_ran_is_the_collective(rows: list[dict[str, Any]]) -> None:
    """The optimised HLO goes through the census and the judge; what is told apart here is what the user reads."""
    if importlib.util.find_spec("jaxlib") is None:
        pytest.skip("the census of HLO needs jaxlib")
    ran = [row for row in rows if not row["reason"]]
    assert all(row["lowered"]["source"] == "hlo" and row["lowered"]["optimised"] for row in ran)
    census = client.Client()
    found = census.collectives([row["lowered"]["text"] for row in ran])
    census.close()
    for row, ops in zip(ran, found, strict=True):
        assert not isinstance(ops, str), ops
        judged = lowering.judge(request.Request.from_dict(row["request"]), ops)
        kinds = {finding.split(":")[0].split(" of ")[0] for finding in judged.findings}
        assert not judged.removed, name_of(row)
        assert kinds <= allowed(row["request"]), f"{name_of(row)}: {judged.findings}"


def allowed(asked: dict[str, Any]) -> set[str]:
    """Findings that are true of torch_xla on the CPU; none of them may come elsewhere."""
    if asked["collective"] == "broadcast":
        return {"other opcode"}
    if asked["pairs"] and all(source == target for source, target in asked["pairs"]):
        return {"repeated"}  # XLA:CPU runs a permutation that moves nothing
    return {"promoted"} if asked["dtype"] == "bfloat16" else set()


@pytest.mark.parametrize("name", ABORTS)
def test_upstream_hangs_and_aborts(child: Child, name: str) -> None:
    """Goes red when it starts to work: then `transports` and `lanes` need no way round it."""
    done = child(name)
    assert done.returncode == -signal.SIGABRT, f"{name} works now: {done.stdout}\n{done.stderr[-2000:]}"
    assert ABORT_TEXT in done.stderr


def test_upstream_permute_under_spmd_aborts(child: Child) -> None:
    done = child("spmd_permute")
    assert done.returncode == -signal.SIGABRT, f"it works now: {done.stdout}"
    # Two threads may fail at once, and the runtime then says only that.
    assert "Span::at failed bounds check" in done.stderr or "terminate called recursively" in done.stderr


def test_upstream_is_silent_under_spmd(child: Child) -> None:
    found = answer_of(child, "spmd_silent")
    inputs = [[float(i + 10 * rank) for i in range(8)] for rank in range(2)]
    assert found["all_reduce"] == inputs  # mismatch 2: returns its input
    assert found["broadcast"] == [[0.0] * 8] * 2  # the root is rank 1, whose values are not 0
    assert "all_to_all" not in found
    assert "0 <= replica_id && replica_id < replica_count" in found["error"]


def test_upstream_world_of_spawn_threads_is_one(child: Child) -> None:
    found = answer_of(child, "world_of_one")
    assert found["world_size"] == 1
    assert found["all_reduce"] == [float(10 + i) for i in range(8)]  # mismatch 2, without SPMD
    assert "once per process" in found["second"]


def test_upstream_process_group_means_nothing(child: Child) -> None:
    """Mismatch 3: a barrier and a wait that are no fence, no AVG, no uneven splits."""
    found = answer_of(child, "process_group")
    assert "Invalid reduce op" in found["average"]
    assert found["completed"] and found["executed"] == 0
    assert found["barrier"] and found["barrier_executed"] == 0
    assert "non-empty output_split_sizes" in found["splits"]


def test_graphs_of_xm(child: Child) -> None:
    found = answer_of(child, "graphs")
    # 1: as it ships, xm.all_gather is no all-gather; with pin_layout=False it is.
    assert " pad(" in found["default"] and " all-reduce(" in found["default"] and " all-gather(" not in found["default"]
    assert " all-gather(" in found["all_gather"] and " pad(" not in found["all_gather"]
    # 18: a token is added to the whole input of every collective but all_reduce, where it is a second operand.
    for name in ("all_gather", "reduce_scatter", "ppermute"):
        assert " add(f32[8]" in found[name] and " multiply(" in found[name], name
    assert " add(f32[8]" not in found["all_reduce"] and "(f32[8]{0}, f32[]) all-reduce(" in found["all_reduce"]
    # 16: a NaN at a rank that is not the root survives its product with 0 and the sum.
    assert found["broadcast"] == [False, False]
    # 17: one program with pinned and unpinned layouts, which upstream warns of, is accepted on the CPU.
    assert "constrain_layout=true" in found["mixed"] and " all-gather(" in found["mixed"]
    assert found["bfloat16"] == "AllReduce for datatype 'bf16' is not supported"


def test_table_describes_itself_and_leaves_nothing(child: Child) -> None:
    found = answer_of(child, "table", "threads", "2")
    assert found["local"] == [0, 1] and found["left"] == []
    described = found["describe"]
    assert described["all_gather"] == "all-gather" and described["launch_threads"] == 8
    assert "xla_dump_to" not in described["xla_flags"]
