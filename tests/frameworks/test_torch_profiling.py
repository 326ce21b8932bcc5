"""Traced steps of torch: what is communication is said by the library's records, as often as the census says."""

from __future__ import annotations

import collections

import pytest

from tests.frameworks import torch_profiles, torch_ranks
from tests.frameworks.test_torch_collectives import MPI
from xlacompare.core import timeline
from xlacompare.frameworks.on_torch import profiling

pytestmark = pytest.mark.framework("torch")


def answers(transport: str = "gloo") -> list[dict]:
    return torch_ranks.answers(transport, 2, "profiled")


def totals() -> list[timeline.Totals]:
    return [timeline.Totals.from_dict(step) for answer in answers() for step in answer["totals"]]


def test_every_step_of_every_rank():
    expected = [(rank, step) for rank in (0, 1) for step in range(torch_profiles.STEPS)]
    assert [(step.rank, step.step) for step in totals()] == expected
    assert all(answer["kept"] > 1000 for answer in answers())


def test_communications_as_often_as_the_census_says():
    for answer in answers():
        assert collections.Counter(answer["census"]) == {"all-reduce": 1, "all-gather": torch_profiles.SMALL}
    for step in totals():
        seen = {name: op.count for name, op in step.operations.items() if op.kind == timeline.COMMUNICATION}
        assert seen == {"gloo:all_reduce": 1, "gloo:all_gather": torch_profiles.SMALL}


def test_compute_is_compute():
    """An annotation called gloo:all_reduce stands round the products, one called aten::mm round the sum."""
    for step in totals():
        assert step.operations["aten::mm"].count == torch_profiles.PRODUCTS
        computed = [name for name, op in step.operations.items() if op.kind == timeline.COMPUTE]
        assert {name.partition("::")[0] for name in computed} == {"aten"}
        assert step.compute_s > 0 and step.communication_s > 0


def test_the_collective_takes_as_long_as_alone():
    """The quickest of either, which a busy machine disturbs least; the trace's has small gathers beside it."""
    alone_s = min(min(answer["alone_s"]) for answer in answers())
    traced_s = min(step.communication_s for step in totals())
    assert 0.5 < traced_s / alone_s < 3, (traced_s, alone_s)


def test_gloo_works_beside_compute():
    """Its worker threads are in the trace: the sum goes on while the calling thread multiplies."""
    assert sum(step.overlap_s for step in totals()) > 0


def test_operators_of_the_dispatcher():
    assert profiling.is_operator("aten", "mm") and profiling.is_operator("c10d", "allreduce_")
    for namespace, name in (("torch", "autograd::AccumulateGrad"), ("aten", "banana"), ("autograd", "engine")):
        assert not profiling.is_operator(namespace, name)


@pytest.mark.parametrize("transport", [MPI])
def test_a_backend_in_python_is_refused(transport):
    """Red when torch's profiler sees the calls of a process group in Python, or MPI comes with torch's wheel."""
    for answer in answers(transport):
        assert "does not see communication over xlacompare_mpi" in answer["unsupported"]
