"""The parts of torch_xla's collectives that need no world: reasons, variables, dumps, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from xlacompare.collectives import request
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch_xla import dumps, transports


def make(collective: str = "all_reduce", **changes: Any) -> request.Request:
    values = {"collective": collective, "dtype": "float32", "count": 8, "mesh": (2,), "reduction": "sum"}
    return request.Request(**{**values, **changes})


@pytest.mark.parametrize(
    ("transport", "mode", "asked", "platform", "reason"),
    [
        ("inprocess", "threads", make(), "cpu", None),
        ("ici", "process", make(), "tpu", None),
        ("ici", "process", make(), "cpu", "tpu devices"),
        ("gloo", "process", make(), "cpu", "devices of its own process"),
        ("mpi", "process", make(), "cpu", "no memory that MPI can read"),
        ("nccl", "process", make(), "gpu", "no CUDA back end"),
        ("carrier pigeon", "process", make(), "cpu", "no transport 'carrier pigeon'"),
        ("inprocess", "process", make(), "cpu", "mode threads or spmd"),
        ("inprocess", "threads", make(dtype="int32", reduction="mean"), "cpu", "integers"),
        ("inprocess", "threads", make("all_to_all", placement="in_place"), "cpu", "functional"),
        ("inprocess", "spmd", make(placement="in_place"), "cpu", "functional"),
        ("inprocess", "threads", make(placement="in_place"), "cpu", None),
    ],
)
def test_reasons(transport: str, mode: str, asked: request.Request, platform: str, reason: str | None) -> None:
    found = transports.unsupported(transport, mode, asked, platform)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_default_all_gather_is_a_named_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = make("all_gather", reduction="")
    assert transports.unsupported("inprocess", "threads", asked, "cpu") is None
    monkeypatch.setenv(transports.ALL_GATHER_VARIABLE, "default")
    assert "pad + all_reduce" in (transports.unsupported("inprocess", "threads", asked, "cpu") or "")
    assert transports.unsupported("ici", "process", asked, "tpu") is None


def test_environment_gives_each_rank_threads_of_both_pools() -> None:
    place = ranks.Place(rank=0, size=4, local_rank=0, address="", port=0, num_threads=2)
    found = transports.environment("inprocess", "threads", place)
    assert (found["CPU_NUM_DEVICES"], found["NPROC"], found["XLA_THREAD_POOL_SIZE"]) == ("4", "16", "16")
    assert found["XLA_ALWAYS_ALLREDUCE"] is None


def test_dumps_leave_a_users_dump_alone() -> None:
    environment = {"XLA_FLAGS": "--xla_dump_to=/elsewhere"}
    kept = dumps.Dumps(environment)
    kept.keep(b"graph")
    kept.clear()
    assert environment == {"XLA_FLAGS": "--xla_dump_to=/elsewhere"}
    assert kept.text(b"graph") is None


def test_dumps_keep_one_program_and_sweep_up_after_the_killed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps.tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / "xlacompare-hlo-99999999-x"
    dead.mkdir()
    environment: dict[str, str] = {"XLA_FLAGS": "--mine"}
    kept = dumps.Dumps(environment)
    assert not dead.exists()
    (folder,) = tmp_path.iterdir()
    assert environment["XLA_FLAGS"].startswith("--mine ") and str(folder) in environment["XLA_FLAGS"]
    (folder / "module_0001.cpu_after_optimizations.txt").write_text("HLO")
    (folder / "module_0001.before_optimizations.txt").write_text("no")
    kept.keep(b"graph")
    assert kept.text(b"graph") == "HLO" and len(list(folder.iterdir())) == 1
    kept.clear()
    kept.keep(b"other")  # nothing new was compiled
    assert kept.text(b"graph") == "HLO" and kept.text(b"other") is None
    kept.close()
    kept.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two_lanes() -> Iterator[Any]:
    """Two lanes on the one device of this process."""
    import torch_xla

    from xlacompare.frameworks.on_torch_xla import lanes

    device = str(torch_xla.device())
    made = lanes.Lanes([device, device])
    yield made
    made.close()
    made.close()


def test_lanes_are_threads_and_settle_waits(two_lanes: Any) -> None:
    seen: dict[int, str] = {}

    def task(lane: int) -> None:
        if lane:
            time.sleep(0.1)
        seen[lane] = threading.current_thread().name

    two_lanes.each(task)
    assert list(seen) == [0]
    two_lanes.settle()
    assert seen == {0: threading.current_thread().name, 1: "rank 1"}
    order: list[int] = []
    two_lanes.staged(lambda lane: order.append(lane))
    assert order == [0, 1]


def test_a_lane_that_fails_names_its_rank_and_goes_on(two_lanes: Any) -> None:
    def fail(lane: int) -> None:
        if lane:
            raise ValueError("no such thing")

    two_lanes.each(fail)
    with pytest.raises(RuntimeError, match="rank 1: no such thing"):
        two_lanes.wait()
    seen: list[int] = []
    two_lanes.each(seen.append)
    two_lanes.wait()
    assert sorted(seen) == [0, 1]


def test_wrong_meshes_and_counts_of_devices_are_refused() -> None:
    from xlacompare.frameworks.on_torch_xla import collectives, operations

    with pytest.raises(errors.BadInputError, match="CPU_NUM_DEVICES=3"):
        collectives._require_devices(2, 3)
    with pytest.raises(errors.BadInputError, match="needs 2 ranks, there are 4"):
        operations.check("inprocess", "threads", make(), 4, "cpu")
    with pytest.raises(errors.UnsupportedError, match="no CUDA back end"):
        collectives.connect("nccl", "process", ranks.Place(0, 2, 0, "", 0, 1))
