"""Traced steps of torch_xla: several ranks in one process, told apart by the threads that launch them."""

from __future__ import annotations

import functools
import json

import pytest

from tests import conftest
from tests.frameworks import torch_xla_profiles
from xlacompare.core import timeline
from xlacompare.graph import client

pytestmark = pytest.mark.framework("torch_xla")
SIZE = 4


@functools.cache
def answer(mode: str, size: int) -> dict:
    """Of one world."""
    done = conftest.run_child(
        ["-m", "tests.frameworks.torch_xla_profiles", mode, str(size)], {"XLA_FLAGS": None}, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def totals(which: str = "step") -> list[timeline.Totals]:
    return [timeline.Totals.from_dict(step) for step in answer("threads", SIZE)[which]]


def test_every_step_of_every_rank():
    expected = [(rank, step) for rank in range(SIZE) for step in range(torch_xla_profiles.STEPS)]
    assert [(step.rank, step.step) for step in totals()] == expected
    assert all(kept > 1000 for kept in answer("threads", SIZE)["kept"])


def test_communications_as_often_as_the_census_says():
    """On every rank alike: an operation that was given to the wrong rank would be one too many there."""
    with client.Client() as graph:
        (census,) = graph.collectives([answer("threads", SIZE)["text"]])
    assert [op.opcode for op in census] == ["all-reduce"]
    for step in totals():
        counts = {name: op.count for name, op in step.operations.items()}
        assert counts["all-reduce"] == 1 and step.operations["all-reduce"].kind == timeline.COMMUNICATION
        assert sum(n for name, n in counts.items() if name in ("dot", "fusion of dot")) == torch_xla_profiles.PRODUCTS
        assert step.operations["dot"].kind == timeline.COMPUTE


def test_the_collective_takes_as_long_as_alone():
    """The quickest of either, which a busy machine disturbs least."""
    traced_s, alone_s = min(step.communication_s for step in totals()), min(answer("threads", SIZE)["alone_s"])
    assert 0.1 < traced_s / alone_s < 10, (traced_s, alone_s)


def test_a_late_rank_is_the_one_that_the_others_wait_for():
    """Its thread launches late; whoever mixed up the ranks would blame another."""
    found = timeline.figures(totals("late"))
    assert timeline.last_to_arrive(found).rank == 3
    waited = timeline.waiting_s(found)
    # Whose products stand still behind the others' waits in XLA's pool waits less in its own collective.
    assert max(waited.values()) > torch_xla_profiles.LATE_S / 2, waited
    assert sorted(waited.values())[1] > torch_xla_profiles.LATE_S / 10, waited


def test_without_the_program_nothing_is_guessed():
    assert "no optimised program of this step" in answer("threads", SIZE)["reason"]


def test_one_thread_for_all_devices_is_refused():
    """Red when torch_xla's XLA names the device of an operation, or when its mode spmd has ranks of its own."""
    assert "mode spmd one thread launches for all" in answer("spmd", 2)["reason"]
