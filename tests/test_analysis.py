"""The analysis of records that were made by hand, with results that were computed by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from tests import report_samples as made
from xlacompare.core import analysis, plan, results

JAX, TORCH = made.make_cell("jax"), made.make_cell("torch")
JAX_EAGER, TORCH_EAGER = made.make_cell("jax", "eager"), made.make_cell("torch", "eager")
SHIPPED = {"label": "shipped", "changed": (("threads", "all"),)}


def launches(cell, means, **changes) -> list[made.Record]:
    """One record per launch, six equal blocks of its mean."""
    return [made.cell_record(cell, n, made.columns([mean] * 6), **changes) for n, mean in enumerate(means)]


def summarise(*groups, looks: int = 3) -> results.Summary:
    records = [record for group in groups for record in group]
    return analysis.summarise([{"kind": "plan", "plan": plan.fixed(looks).to_dict(), "mde": {}}, *records])


def result(summary: results.Summary, cell) -> results.CellResult:
    return next(found for found in summary.cells if found.cell == cell)


def test_step_is_t_over_launches() -> None:
    found = result(summarise(launches(JAX, [1.0, 1.1, 1.2])), JAX)
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3) / 1.1  # of the logarithm
    assert found.step is not None
    ends = 1.1 * math.exp(-half), 1.1 * math.exp(half)
    assert (found.step.mean, found.step.low, found.step.high) == pytest.approx((1.1, *ends))
    assert found.step.se == pytest.approx(0.1 / math.sqrt(3))
    assert (found.num_launches, found.num_blocks) == (3, 18)


def test_step_of_one_launch_says_that_it_is_one() -> None:
    record = made.cell_record(JAX, 0, made.columns([1.0, 1.2, 1.0, 1.2, 1.1, 1.1]))
    found = result(summarise([record], looks=1), JAX)
    assert found.step is not None
    assert found.step.method == "t over the blocks of one launch"
    assert found.step.mean == pytest.approx(1.1)
    assert 1.0 < found.step.low < 1.1 < found.step.high < 1.2


def test_pairs_are_paired_by_launch_and_the_slower_one_is_first() -> None:
    ratios = [1.2, 1.3, 1.25]
    base = [1.0, 2.0, 3.0]  # launches that differ much cancel in the pair
    summary = summarise(launches(JAX, base), launches(TORCH, [b * r for b, r in zip(base, ratios)]))
    (pair,) = summary.pairs
    assert (pair.a, pair.b, pair.how) == (TORCH, JAX, "launches")
    assert pair.verdict is not None
    assert pair.difference is not None
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert pair.verdict.estimate.mean == pytest.approx(logs.mean())
    assert pair.verdict.estimate.low == pytest.approx(logs.mean() - half)
    assert pair.difference.mean == pytest.approx(np.mean([b * r - b for b, r in zip(base, ratios)]))
    assert pair.verdict.kind == "difference"


def test_a_cell_that_failed_has_no_time_and_its_pair_no_ratio() -> None:
    bad = [made.cell_record(TORCH, None, status="mismatch", reason="gate failed at loss")]
    summary = summarise(launches(JAX, [1.0, 1.0]), bad)
    (pair,) = summary.pairs
    assert pair.verdict is None
    assert "mismatch" in pair.problem
    assert "gate failed at loss" in pair.problem
    assert result(summary, TORCH).step is None


def test_an_unsupported_cell_makes_no_pair() -> None:
    lacking = [made.cell_record(TORCH, None, status="unsupported", reason="no such arm")]
    assert summarise(lacking, launches(JAX, [1.0, 1.0])).pairs == []


def test_other_environments_are_refused() -> None:
    other = {"checked": {"machine": "box", "platform": "cpu", "num_cores": 1, "threads": 2}, "framework": {}}
    (pair,) = summarise(launches(JAX, [1.0, 1.1]), launches(TORCH, [1.0, 1.1], environment=other)).pairs
    assert pair.verdict is None
    assert "threads is 1 in jax" in pair.problem
    assert "2 in torch" in pair.problem


def test_headline_arm() -> None:
    assert summarise(launches(JAX_EAGER, [1.0]), launches(JAX, [1.0])).headline_arm == "compiled"
    assert summarise(launches(JAX_EAGER, [1.0])).headline_arm == "eager"
    # records have what is unsupported first; that is not what was measured
    captured = made.make_cell("jax", "captured")
    lacking = [made.cell_record(captured, None, status="unsupported", reason="no such arm")]
    assert summarise(lacking, launches(JAX_EAGER, [1.0])).headline_arm == "eager"
    shipped = dataclasses.replace(JAX_EAGER, **SHIPPED)
    assert summarise(launches(shipped, [1.0])).headline_arm == "eager"


def test_other_settings_are_no_part_of_the_family() -> None:
    groups = [launches(cell, [1.0, 1.1, 1.2]) for cell in (JAX, dataclasses.replace(JAX, **SHIPPED))]
    groups += [launches(cell, [2.0, 2.1, 2.2]) for cell in (TORCH, dataclasses.replace(TORCH, **SHIPPED))]
    summary = summarise(*groups)
    families = {pair.a.label: pair.verdict.family for pair in summary.pairs if pair.verdict is not None}
    assert families == {"matched": "framework pairs x workloads (Holm, 1)", "shipped": ""}


def test_holm_takes_back_what_does_not_survive() -> None:
    other = made.make_cell("jax", workload="convnet"), made.make_cell("torch", workload="convnet")
    weak = [1.00, 1.06, 1.12]  # p = 0.04 alone
    strong = launches(JAX, [1.0, 1.0, 1.0]), launches(TORCH, [1.02, 1.06, 1.11])
    summary = summarise(*strong, launches(other[0], [1.0, 1.0, 1.0]), launches(other[1], weak))
    judged = {pair.a.workload: pair.verdict for pair in summary.pairs}
    alone = summarise(*strong).pairs[0].verdict
    assert alone is not None
    assert judged["mlp"] is not None
    assert judged["mlp"].adjusted_p == pytest.approx(2 * alone.p_value)
    assert judged["mlp"].estimate == alone.estimate


def test_arms_of_one_process_are_compared_by_neighbouring_blocks() -> None:
    drift = [1.0, 1.0, 1.5, 1.5, 2.0, 2.0, 2.5, 2.5]
    eager = [made.cell_record(JAX_EAGER, 0, made.columns([2 * d for d in drift]))]
    compiled = [made.cell_record(JAX, 0, made.columns(drift))]
    (pair,) = summarise(eager, compiled, looks=1).arms
    assert (pair.a, pair.b, pair.how) == (JAX_EAGER, JAX, "blocks")
    assert pair.verdict is not None
    assert pair.verdict.estimate.ratio() == pytest.approx((2.0, 2.0, 2.0))  # the drift cancels
    assert pair.verdict.unit == "block pairs"


def test_arms_of_two_processes_are_compared_over_launches() -> None:
    own = {"start": {"pid": 99, "import_s": 1.0, "start_s": 1.0}}
    (pair,) = summarise(launches(JAX_EAGER, [2.0, 2.1]), launches(JAX, [1.0, 1.0], **own)).arms
    assert pair.how == "launches"


def test_bars_add_up_launch_by_launch() -> None:
    times = {TORCH: [2.0, 2.2, 2.1], JAX: [1.0, 1.1, 1.2], TORCH_EAGER: [5.0, 5.5, 5.2], JAX_EAGER: [9.0, 9.1, 9.5]}
    (gap,) = summarise(*(launches(cell, means) for cell, means in times.items())).gaps
    assert (gap.a, gap.b) == (TORCH, JAX)
    assert gap.total.mean == pytest.approx(1.0)
    assert [bar.seconds.mean for bar in gap.bars] == pytest.approx(
        [15.7 / 3 - 27.6 / 3, 2.1 - 15.7 / 3, 27.6 / 3 - 1.1]
    )
    assert sum(bar.seconds.mean for bar in gap.bars) == pytest.approx(gap.total.mean, abs=1e-12)
    last = np.array(times[JAX_EAGER]) - np.array(times[JAX])
    assert gap.bars[2].seconds.se == pytest.approx(last.std(ddof=1) / math.sqrt(3))
    assert [bar.gain is None for bar in gap.bars] == [True, True, False]
    assert gap.bars[2].gain == pytest.approx(gap.bars[2].seconds.mean / 2.1)


def test_no_bars_without_the_eager_arms() -> None:
    assert summarise(launches(JAX, [1.0, 1.1]), launches(TORCH, [2.0, 2.1]), launches(JAX_EAGER, [3.0, 3.1])).gaps == []


def test_settings_are_compared_with_the_matched_cell_of_the_same_arm() -> None:
    shipped = dataclasses.replace(JAX, **SHIPPED)
    own = {"start": {"pid": 99, "import_s": 1.0, "start_s": 1.0}}
    (changed,) = summarise(launches(JAX, [1.0, 1.1]), launches(shipped, [0.8, 0.9], **own)).settings
    assert (changed.framework, changed.label, changed.settings) == ("jax", "shipped", {"threads": "all"})
    assert changed.effect.difference is not None
    assert changed.effect.difference.mean == pytest.approx(-0.2)


def built(cell, launch: int, seconds: float, **counters) -> made.Record:
    compiled = {"build_s": seconds, "first_step_s": 0.5, "trace_s": 0.1, "lower_s": None, "compile_s": 0.2}
    return made.cell_record(cell, launch, made.columns([1.0] * 6), compile=compiled | counters)


def test_first_steps_by_the_state_of_the_caches() -> None:
    again = {"rebuild": {"build_s": 1.0, "first_step_s": 0.25}}
    hit = {"disk_cache_hits": 2, "disk_cache_misses": 0}
    records = [built(JAX, 0, 8.0, **again), built(JAX, 1, 2.0, **hit), built(JAX, 2, 3.0, **hit)]
    found = result(summarise(records), JAX)
    assert found.first_step_s == pytest.approx({"cold": 8.5, "disk": 3.0, "memory": 1.25})
    assert found.disk_note == ""
    assert found.phases == {"trace_s": 0.1, "lower_s": None, "compile_s": 0.2}


@pytest.mark.parametrize("counters", [{}, {"disk_cache_hits": 0}, {"disk_cache_hits": 2, "disk_cache_misses": 1}])
def test_a_build_counts_as_from_disk_only_by_its_own_counter(counters) -> None:
    found = result(summarise([built(JAX, 0, 8.0), built(JAX, 1, 2.0, **counters, note="it cannot read back")]), JAX)
    assert found.first_step_s["disk"] is None
    assert found.disk_note == "it cannot read back"


def test_one_launch_has_no_build_from_disk() -> None:
    assert "one launch only" in result(summarise([built(JAX, 0, 8.0)]), JAX).disk_note


def test_break_even_is_extra_seconds_over_saving() -> None:
    eager = made.cell_record(JAX_EAGER, 0, made.columns([3.0] * 6), compile={"build_s": 1.0, "first_step_s": 3.0})
    compiled = made.cell_record(JAX, 0, made.columns([1.0] * 6), compile={"build_s": 43.0, "first_step_s": 1.0})
    summary = summarise([eager], [compiled], looks=1)
    assert result(summary, JAX).break_even_step == pytest.approx((44.0 - 4.0) / 2.0)
    assert result(summary, JAX_EAGER).break_even_step is None
    slower = {**compiled, "blocks": made.columns([3.5] * 6)}
    assert result(summarise([eager], [slower], looks=1), JAX).break_even_step is None


@pytest.mark.parametrize(
    ("share", "asynchronous", "bound"),
    [(0.5, True, "host"), (0.49, True, "mixed"), (0.2, True, "device"), (0.99, False, "synchronous")],
)
def test_what_bounds_a_step(share, asynchronous, bound) -> None:
    record = made.cell_record(JAX, 0, made.columns([1.0] * 6, dispatch=share))
    record["environment"]["framework"] = {"asynchronous": asynchronous}
    found = result(summarise([record], looks=1), JAX)
    assert (found.bound, found.host_share) == (bound, pytest.approx(share))


def test_pipelining_is_stepwise_minus_block() -> None:
    blocks = made.with_stepwise(made.columns([1.0] * 6), 0.25)
    found = result(summarise([made.cell_record(JAX, n, blocks) for n in (0, 1)]), JAX)
    assert found.pipelining is not None
    assert found.pipelining.mean == pytest.approx(0.25)


def test_memory_and_rates() -> None:
    records = launches(JAX, [0.5, 0.5])
    records[1]["memory"] = {"peak_bytes": 100 << 20, "meaning": "peak"}
    found = result(summarise(records), JAX)
    assert (found.memory_bytes, found.flops_per_s) == (100 << 20, pytest.approx(made.FACTS["flops_per_step"] / 0.5))
    unknown = {"peak_bytes": None, "meaning": "not known on this platform"}
    found = result(summarise(launches(JAX, [0.5], memory=unknown)), JAX)
    assert (found.memory_bytes, found.memory_meaning) == (None, "not known on this platform")


def test_p99_needs_a_thousand_blocks() -> None:
    few, many = (made.cell_record(JAX, 0, made.columns([1.0] * n)) for n in (999, 1000))
    assert result(summarise([few], looks=1), JAX).p99_s is None
    assert result(summarise([many], looks=1), JAX).p99_s == pytest.approx(1.0)


def test_a_failed_fence_test_in_any_launch_is_kept() -> None:
    records = launches(JAX, [1.0, 1.0])
    records[1]["fence"] = {"passed": False}
    assert result(summarise(records), JAX).fence_ok is False
    assert result(summarise(launches(JAX, [1.0, 1.0])), JAX).fence_ok is True


def test_shares_count_a_comparison_once_and_workers_side_by_side() -> None:
    eager, compiled, torch = (launches(cell, [1.0, 1.0]) for cell in (JAX_EAGER, JAX, TORCH))
    for record in torch:
        record["start"] = record["start"] | {"import_s": 1.0, "start_s": 0.25}
    found = summarise(eager, compiled, torch).shares
    # two launches of 10 s; the slower of the two workers took 2.5 s to start
    assert found == pytest.approx({"timed": 0.8, "start": 0.25, "build": 0.3, "measure": 0.5})


def test_shares_of_a_worker_that_serves_several_comparisons() -> None:
    other = made.make_cell("jax", workload="convnet")
    assert summarise(launches(JAX, [1.0]), launches(other, [1.0])).shares["start"] == pytest.approx(2.5 / 20)


def test_settled() -> None:
    chosen = plan.sequential()
    apart = [*launches(JAX, [1.0, 1.01] * 3), *launches(TORCH, [2.0, 2.01] * 3)]
    close = [*launches(JAX, [1.0, 1.3] * 3), *launches(TORCH, [1.1, 1.0] * 3)]
    assert analysis.settled(apart, chosen, 6)
    assert not analysis.settled(close, chosen, 6)
    assert analysis.settled(close, chosen, 24)
    # a pair of other settings does not keep a run going
    undecided = [record for cell in (JAX, TORCH) for record in _relabelled(close, cell)]
    assert analysis.settled(apart + undecided, chosen, 6)


def _relabelled(records, cell) -> list[made.Record]:
    shipped = dataclasses.replace(cell, **SHIPPED).to_dict()
    return [r | {"cell": shipped} for r in records if r["cell"]["framework"] == cell.framework]


def test_a_run_that_was_killed_early_is_analysed() -> None:
    summary = analysis.summarise([{"kind": "run", "config": {"platform": "cpu"}, "machine": {}}])
    assert (summary.ending, summary.cells, summary.pairs, summary.plan) == ("", [], [], None)
    summary = analysis.summarise(launches(JAX, [1.0]) + launches(TORCH, [1.1]), problems=["half a line"])
    assert summary.problems == ["half a line"]
    assert summary.pairs[0].verdict is not None
    assert summary.pairs[0].verdict.kind == "inconclusive"


def test_plan_sentence() -> None:
    assert "a look after 6, 10, 16, 24 launches" in analysis.plan_sentence(plan.sequential(), 2)
    assert "inf" not in analysis.plan_sentence(plan.fixed(1), 2)
    assert analysis.detectable(plan.fixed(12))["effect"] < analysis.detectable(plan.fixed(3))["effect"]
    assert "detectable" not in analysis.plan_sentence(plan.fixed(2), 1)
    apart = analysis.plan_sentence(plan.fixed(6), 1, options_between=True)
    assert "detectable between XLA options, each a process of its own, with 80% power" in apart
    assert "inside a process" not in apart
    assert "tells nothing of differences between XLA options" in analysis.plan_sentence(plan.fixed(1), 1, True)
