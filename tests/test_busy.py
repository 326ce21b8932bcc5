"""What is said, and what is not, of times that were taken while others had the cores."""

from __future__ import annotations

import re

import pytest

from tests import report_samples as made
from tests.test_analysis import JAX, TORCH, launches, result, summarise
from tests.test_report import section
from xlacompare.core import analysis
from xlacompare.report import render


def marked(cell, means, **changed) -> list[made.Record]:
    """One record per launch of six blocks, with columns such as `disturbed` changed."""
    return [made.cell_record(cell, n, made.columns([mean] * 6, **changed)) for n, mean in enumerate(means)]


BUSY = [
    ({"disturbed": [True] * 6}, True),
    ({"disturbed": [True] * 2 + [False] * 4}, False),  # left out: enough others are there
    ({"disturbed": [True] * 4 + [False] * 2}, True),  # all are used
    ({"lost_share": [0.1] * 6}, False),
    ({"lost_share": [0.3] * 6}, True),  # where too few are left unmarked, all are used
    ({"lost_share": [None] * 6}, False),
]


@pytest.mark.parametrize(("columns", "busy"), BUSY, ids=str)
def test_a_busy_machine_has_no_bound_and_no_bars_by_thread(columns, busy) -> None:
    other = made.make_cell("torch_xla")
    for busy_one, quiet_one in ((JAX, other), (other, JAX)):
        summary = summarise(marked(busy_one, [1.0, 1.1, 1.2], **columns), launches(quiet_one, [2.0, 2.1, 2.2]))
        assert [gap.how for gap in summary.gaps] == ([] if busy else ["threads"])
        found = result(summary, busy_one)
        assert (found.busy, found.bound) == (busy, "unclear" if busy else "device")
        assert result(summary, quiet_one).bound == "device"
        assert found.step is not None  # the time itself stays


def test_a_busy_machine_tells_nothing_new_of_a_thread_that_does_the_work() -> None:
    assert result(summarise(marked(TORCH, [1.0], disturbed=[True] * 6), looks=1), TORCH).bound == "synchronous"


def test_a_busy_machine_is_said_in_the_headline_and_instead_of_the_split() -> None:
    records = made.run_records(workloads=("mlp",))
    for record in records:
        if record["kind"] == "cell" and record["cell"]["framework"] == "jax":
            record["blocks"]["disturbed"] = [True] * len(record["blocks"]["n"])
    found = render.render(analysis.summarise(records), "text", expert=False)
    lines = section(found, "Step time").splitlines()
    assert [("jax on cpu" in line or "jax 1." in line) for line in lines[1:4]].count(True) == 2
    for line in lines[1:4]:
        assert ("machine busy" in line) == ("jax" in line), line
    assert "no bars by thread" in section(found, "Why")
    assert "by thread the sum" not in found
    assert re.search(r"jax +\S+ +unclear ", section(found, "What it takes"))
    quiet = render.render(made.summary(workloads=("mlp",)), "text", expert=False)
    assert "machine busy" not in quiet and "by thread the sum" in quiet
