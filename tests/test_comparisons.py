"""Comparisons whose units, reasons and names must say what was done."""

from __future__ import annotations

import pytest

from tests import report_samples as made
from tests.test_analysis import JAX, JAX_EAGER, TORCH, TORCH_EAGER, launches, result, summarise
from xlacompare.core import comparisons, gaps, plan, samples
from xlacompare.report import render


def test_arms_over_several_launches_count_launches() -> None:
    """Pooled over launches, the estimate's units are launches; block pairs would be another number by far."""
    (pair,) = summarise(launches(JAX_EAGER, [1.0, 1.3, 0.9]), launches(JAX, [1.0, 1.0, 1.0])).arms
    assert pair.how == "blocks"
    assert pair.verdict is not None
    assert pair.verdict.kind == "inconclusive"
    assert (pair.verdict.estimate.n, pair.verdict.unit) == (3, "launches")


def test_a_cell_that_always_compiles_has_no_time_and_says_why() -> None:
    always = [made.cell_record(JAX, n, made.columns([1.0] * 6, compiles=[1] * 6)) for n in (0, 1)]
    summary = summarise(always, launches(TORCH, [1.0, 1.1]))
    found = result(summary, JAX)
    assert (found.step, found.num_compiled) == (None, 12)
    assert "something was compiled during every block" in summary.pairs[0].problem
    assert "ok" not in summary.pairs[0].problem


def test_disturbed_blocks_that_count_all_the_same() -> None:
    busy = [made.cell_record(JAX, 0, made.columns([1.0] * 6, disturbed=[True] * 6))]
    quiet = [made.cell_record(JAX, 1, made.columns([1.0] * 6, disturbed=[True] + [False] * 5))]
    summary = summarise(busy, quiet)
    found = result(summary, JAX)
    assert (found.num_blocks, found.num_disturbed, found.num_disturbed_used) == (11, 7, 6)
    assert "7 blocks disturbed by other processes and left out, but for 6" in render.render(summary, "text", False)


def test_names_of_bars_say_what_is_subtracted() -> None:
    groups = [
        launches(cell, [mean, mean]) for cell, mean in ((TORCH, 2.0), (JAX, 1.0), (TORCH_EAGER, 5.0), (JAX_EAGER, 9.0))
    ]
    (gap,) = summarise(*groups).gaps
    assert [bar.name for bar in gap.bars] == [
        "op by op: torch eager - jax eager",
        "compiler of torch: compiled - eager",
        "compiler of jax: eager - compiled",
    ]
    assert [bar.seconds.mean for bar in gap.bars] == pytest.approx([5 - 9, 2 - 5, 9 - 1])


def test_gap_by_threads_adds_up_and_needs_both_sides_asynchronous():
    """host 0.2 of 3 s against 0.5 of 2 s: -0.4 by the host threads, +1.4 by the rest."""
    records = []
    for cell, seconds, share in ((JAX, 3.0, 0.2), (made.make_cell("torch_xla"), 2.0, 0.5)):
        records += [made.cell_record(cell, n, made.columns([seconds] * 6, dispatch=share)) for n in (0, 1, 2)]
    found = samples.collect(records)
    pair = comparisons.framework_pairs(found, plan.fixed(3))[0]
    gap = gaps.by_threads(pair, found)
    assert gap is not None
    assert gap.how == "threads"
    assert [bar.seconds.mean for bar in gap.bars] == pytest.approx([-0.4, 1.4])
    assert sum(bar.seconds.mean for bar in gap.bars) == pytest.approx(gap.total.mean)
    records[-1]["environment"]["framework"]["asynchronous"] = False
    assert gaps.by_threads(pair, samples.collect(records)) is None


def test_nothing_is_tested_between_looks() -> None:
    """Five launches of a plan that looks after six: the interval is there, the verdict is not."""
    records = launches(JAX, [1.0, 1.01, 0.99, 1.0, 1.0]) + launches(TORCH, [2.0, 2.01, 1.99, 2.0, 2.0])
    found = samples.collect(records)
    for looks, kind, needed in ((5, "difference", None), (6, "inconclusive", 6)):
        (pair,) = comparisons.framework_pairs(found, plan.fixed(looks))
        assert pair.verdict is not None
        assert (pair.verdict.kind, pair.verdict.launches_needed) == (kind, needed)
        assert pair.verdict.estimate.ratio()[0] == pytest.approx(2.0, rel=0.01)


def test_nothing_is_tested_between_looks_in_the_family_either() -> None:
    """Holm decides anew from the p-values: an interrupted run must not come out as `no difference`."""
    same = [1.0, 1.001, 0.999, 1.0, 1.0]
    found = samples.collect(launches(JAX, same) + launches(TORCH, same))
    for looks, kind in ((5, "no_difference"), (6, "inconclusive")):
        (pair,) = comparisons.with_holm(comparisons.framework_pairs(found, plan.fixed(looks)), JAX.compiler)
        assert pair.verdict is not None
        assert pair.verdict.kind == kind
