"""Which blocks are samples, and which blocks of two arms are neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from tests import report_samples as made
from xlacompare.core import samples

MS = 1e-3
CELL = made.make_cell("jax")


def launch(step_s: list[float], **changes) -> samples.LaunchSamples:
    return samples.launch_samples(made.cell_record(CELL, 0, made.columns(step_s, **changes)))


def test_steps_and_dispatch_are_seconds_a_step() -> None:
    found = launch([0.002, 0.004], dispatch=0.25)
    np.testing.assert_allclose(found.step_s, [0.002, 0.004])
    np.testing.assert_allclose(found.dispatch_s, [0.0005, 0.001])
    assert found.mean_s == pytest.approx(0.003)


def test_a_block_with_a_compilation_is_no_sample() -> None:
    found = launch([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], compiles=[0, 3, 0, 0, 0, 0])
    np.testing.assert_allclose(found.step_s, [1, 3, 4, 5, 6])
    assert (found.num_compiled, found.num_disturbed) == (1, 0)


def test_a_slow_block_stays() -> None:
    assert launch([1.0, 1.0, 1.0, 100.0]).mean_s == pytest.approx(25.75)


def test_a_disturbed_block_is_left_out_and_counted() -> None:
    found = launch([1.0, 9.0, 1.0, 1.0, 1.0], disturbed=[False, True, False, False, False])
    np.testing.assert_allclose(found.step_s, [1, 1, 1, 1])
    assert found.num_disturbed == 1


def test_where_too_few_are_undisturbed_all_count() -> None:
    found = launch([1.0, 9.0, 1.0, 1.0], disturbed=[False, True, False, False], compiles=[0, 0, 0, 1])
    np.testing.assert_allclose(found.step_s, [1, 9, 1])  # but never one with a compilation
    assert found.num_disturbed == 1


def test_keys_name_the_visit_and_its_half() -> None:
    found = launch([1.0, 2.0, 3.0, 4.0], visit=[5, 5, 2, 2])
    assert found.keys == [(5, 0), (5, 1), (2, 0), (2, 1)]
    # a lost first half does not make the second one the first
    found = launch([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], compiles=[1, 0, 0, 0, 0, 0])
    assert found.keys[0] == (0, 1)


def test_neighbours_are_paired_by_visit_and_half() -> None:
    a = launch([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], compiles=[0, 1, 0, 0, 0, 0])
    b = launch([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], compiles=[0, 0, 1, 0, 0, 0])
    mine, other = samples.neighbours(a, b)
    np.testing.assert_allclose(mine, [1, 4, 5, 6])
    np.testing.assert_allclose(other, [10, 40, 50, 60])


def test_neighbours_of_a_repeated_visit() -> None:
    """A disturbed visit is run again under a number of its own: both arms have it, at its place in time."""
    order = [0, 0, 9, 9, 1, 1, 2, 2]
    marks = [True, True] + [False] * 6
    a = launch([9.0, 9.0, 1.0, 1.1, 2.0, 2.1, 3.0, 3.1], visit=order, disturbed=marks)
    b = launch([8.0, 8.0, 5.0, 5.1, 6.0, 6.1, 7.0, 7.1], visit=order, disturbed=marks)
    mine, other = samples.neighbours(a, b)
    np.testing.assert_allclose(mine, [1.0, 1.1, 2.0, 2.1, 3.0, 3.1])
    np.testing.assert_allclose(other, [5.0, 5.1, 6.0, 6.1, 7.0, 7.1])


def test_stepwise_blocks_are_no_samples_but_pairs() -> None:
    blocks = made.with_stepwise(made.columns([1.0] * 6), 0.25, visits=3)
    found = samples.launch_samples(made.cell_record(CELL, 0, blocks))
    assert found.step_s.size == 6
    fenced, plain = found.stepwise
    np.testing.assert_allclose(fenced, [1.25] * 6)
    np.testing.assert_allclose(plain, [1.0] * 6)


def test_a_stepwise_visit_with_a_compilation_is_left_out() -> None:
    blocks = made.with_stepwise(made.columns([1.0] * 6), 0.25, visits=3)
    blocks["compiles"][7] = 1  # the first fenced block of the first stepwise visit
    found = samples.launch_samples(made.cell_record(CELL, 0, blocks))
    assert found.stepwise[0].size == found.stepwise[1].size == 4


def test_a_failure_in_any_launch_is_the_cells() -> None:
    good, bad = made.make_cell("jax"), made.make_cell("torch")
    records = [
        made.cell_record(good, 0, made.columns([1.0] * 6)),
        made.cell_record(bad, 0, made.columns([1.0] * 6)),
        made.cell_record(bad, 1, status="crash", reason="the worker was ended by SIGSEGV"),
        {"kind": "partial", "cell": bad.to_dict(), "blocks": []},
    ]
    found = samples.collect(records)
    assert list(found) == [good.id, bad.id]
    assert found[good.id].timed
    assert not found[bad.id].timed
    assert (found[bad.id].status, found[bad.id].reason) == ("crash", "the worker was ended by SIGSEGV")


def test_a_gate_that_failed_before_any_launch() -> None:
    records = [made.cell_record(CELL, None, status="mismatch", reason="gate failed at activation layer0")]
    found = samples.collect(records)[CELL.id]
    assert (found.status, found.timed, found.launches) == ("mismatch", False, {})


def test_a_cell_that_always_compiles_says_so() -> None:
    found = samples.collect([made.cell_record(CELL, 0, made.columns([1.0] * 4, compiles=[1] * 4))])[CELL.id]
    assert not found.timed
    assert found.num_compiled == 4
    assert "compiled during every block" in found.reason


def test_common_launches() -> None:
    a, b = made.make_cell("jax"), made.make_cell("torch")
    records = [made.cell_record(a, n, made.columns([1.0] * 4)) for n in (0, 1, 2)]
    records += [made.cell_record(b, n, made.columns([1.0] * 4)) for n in (2, 1, 3)]
    found = samples.collect(records)
    assert samples.common_launches(found[a.id], found[b.id]) == [1, 2]
