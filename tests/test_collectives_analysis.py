"""Records of collectives to results: rates, percentiles, verdicts, and what is refused. Peers' defects 4, 5, 6, 9."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from tests import collective_samples as cs
from xlacompare.collectives import analysis, ratios, results, samples, table


def one(record, *others) -> results.CollectiveResult:
    return analysis.summarise([record, *others]).cells[0]


@pytest.mark.parametrize("collective", [name for name in table.TABLE if name != "barrier"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_rates(collective, ranks):
    """algbw = S / t, busbw = algbw * the factor of nccl-tests; S with the pad, which is sent too."""
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "ppermute": 1.0, "broadcast": 1.0}
    cell = cs.make_cell("jax", 1002, collective, ranks)
    result = one(cs.make_record(cell, 0, [2e-3] * 8))
    assert result.size_bytes == 1002 + cell.pad_bytes and result.size_bytes % 4 == 0
    assert result.algbw == pytest.approx(result.size_bytes / 2e-3)
    assert result.busbw == pytest.approx(result.algbw * factors.get(collective, (ranks - 1) / ranks))
    assert result.busbw_lowered == pytest.approx(result.busbw)


def test_rates_are_never_averaged():
    """Defect 4: the mean of rates was 50% above size / mean time. Blocks of very different times show which it is."""
    times = [1e-3] * 9 + [20e-3]
    cell = cs.make_cell(size=cs.MIB)
    result = one(cs.make_record(cell, 0, times))
    assert result.algbw == pytest.approx(cs.MIB / np.mean(times))
    assert np.mean(cs.MIB / np.asarray(times)) / result.algbw > 2


def test_slow_operations_stay():
    """Defect 5: a filter of outliers deleted the stragglers."""
    result = one(cs.make_record(cs.make_cell(), 0, [1e-3] * 20 + [34.8e-3]))
    assert result.time.mean == pytest.approx((20 + 34.8) / 21 * 1e-3)
    assert result.num_blocks == 21


def test_percentiles_are_not_uncertainty():
    """Defect 6: launches of 16 to 27 ms, each with a spread of 1%: the interval is over launches and says so."""
    cell = cs.make_cell(size=16 * cs.MIB)
    records = [
        cs.make_record(cell, launch, [s * f for f in (0.99, 1.0, 1.01, 1.0)])
        for launch, s in enumerate((0.0165, 0.021, 0.027))
    ]
    result = analysis.summarise(records).cells[0]
    assert result.time.method == "t over launches" and result.time.n == 3
    assert result.time.low < 0.0165 and result.time.high > 0.027
    inside = one(records[0])
    assert inside.time.method == "t over the blocks of one launch"
    assert inside.time.half_width < 0.1 * result.time.half_width


def test_percentiles_are_of_iterations():
    """Of the maximum over ranks of each iteration, all launches together; none where too few lie above it."""
    cell, blocks = cs.make_cell(), [1e-3] * 8
    hundred = cs.make_record(cell, 0, blocks, iterations=cs.iterations([i * 1e-5 for i in range(1, 51)]))
    other = cs.make_record(cell, 1, blocks, iterations=cs.iterations([i * 1e-5 for i in range(51, 101)]))
    result = analysis.summarise([hundred, other]).cells[0]
    assert result.num_iterations == 100
    assert result.p50_s == pytest.approx(50.5e-5) and result.p95_s == pytest.approx(95.05e-5)
    assert result.p99_s == pytest.approx(99.01e-5) and result.skew_s == pytest.approx(2e-6)
    half = one(hundred)
    assert half.p95_s is not None and half.p99_s is None
    assert one(cs.make_record(cell, 0, blocks, iterations=cs.iterations([1e-3] * 19))).p95_s is None


def test_a_block_is_divided_by_its_operations():
    """Defect 9: 1 + 100 operations divided by 100."""
    blocks = cs.columns([1e-3] * 6, n=101)
    assert one(cs.make_record(cs.make_cell(), 0, blocks=blocks)).time.mean == pytest.approx(1e-3)


def test_compiled_and_disturbed_blocks_are_left_out():
    blocks = cs.columns([1e-3] * 8 + [9e-3, 5e-3], compiles=[0] * 8 + [1, 0], disturbed=[False] * 9 + [True])
    result = one(cs.make_record(cs.make_cell(), 0, blocks=blocks))
    assert result.time.mean == pytest.approx(1e-3)
    assert (result.num_compiled, result.num_disturbed, result.num_disturbed_used) == (1, 1, 0)


def test_stepwise_series_is_no_sample():
    blocks = cs.columns([1e-3] * 6 + [9e-3], series=["main"] * 6 + ["stepwise"])
    assert one(cs.make_record(cs.make_cell(), 0, blocks=blocks)).time.mean == pytest.approx(1e-3)


@pytest.mark.parametrize("status", ["unsupported", "mismatch", "hang", "crash", "out_of_memory"])
def test_what_failed_has_no_time(status):
    """Nor what it measured in an earlier launch."""
    cell = cs.make_cell()
    result = one(cs.make_record(cell, 0, [1e-3] * 6), cs.make_record(cell, 1, status=status, reason="rank 1: why"))
    assert (result.status, result.reason) == (status, "rank 1: why")
    assert result.time is None and result.algbw is None and result.busbw is None and result.p50_s is None


def test_lowered_bytes_and_findings():
    """pad + all-reduce moves twice the bytes of an all-gather: both bandwidths are given."""
    cell = cs.make_cell("torch_xla", cs.MIB, "all_gather")
    lowering = {"source": "hlo", "ops": [], "findings": ["other opcode: pad + all-reduce"], "wire_bytes": float(cs.MIB)}
    result = one(*[cs.make_record(cell, launch, [1e-3] * 6, lowering=lowering) for launch in (0, 1)])
    assert result.busbw_lowered == pytest.approx(2 * result.busbw)
    assert result.findings == ("other opcode: pad + all-reduce",)


def test_nobody_looked_is_not_zero_wrong():
    cell = cs.make_cell()
    assert one(cs.make_record(cell, 0, [1e-3] * 6)).wrong == 0
    unseen = {"checked": 0, "wrong": 0, "message": ""}
    assert one(cs.make_record(cell, 0, [1e-3] * 6, values=unseen)).wrong is None


def test_a_barrier_has_no_bandwidth():
    result = one(cs.make_record(cs.make_cell(size=0, collective="barrier"), 0, [5e-5] * 6))
    assert result.time.mean == pytest.approx(5e-5) and result.algbw is None and result.busbw is None


def test_verdicts_over_launches():
    """A difference of 50% is seen, equality within the margin too; the slower one is first."""
    made = {ratio.a.size_bytes: ratio for ratio in cs.summary(launches=6).ratios}
    small, large = made[cs.KIB], made[cs.MIB]
    assert (small.a.framework, small.verdict.kind) == ("jax", "difference")
    assert small.verdict.estimate.ratio()[0] == pytest.approx(1.56, abs=0.05)
    assert small.difference.mean == pytest.approx(30e-6, rel=0.1)
    assert large.verdict.kind == "no_difference" or large.verdict.negligible


def test_one_launch_is_inconclusive():
    """However large: one launch says nothing of how launches differ."""
    for ratio in cs.summary(launches=1).ratios:
        assert ratio.verdict.kind == "inconclusive" and ratio.verdict.p_value == 1.0
        assert math.isinf(ratio.verdict.estimate.half_width)


def test_an_interrupted_run_is_not_tested_between_looks():
    records = [r for r in cs.run_records(launches=6, ending="interrupted") if r.get("launch") in (None, 0, 1, 2)]
    for ratio in analysis.summarise(records).ratios:
        assert ratio.verdict.kind == "inconclusive" and ratio.verdict.launches_needed == 6


def test_a_sweep_is_screening():
    """False differences among many true equalities: adjusted by Benjamini and Hochberg, and the family is named."""
    equal = {"frameworks": ("jax", "torch"), "of_sizes": tuple(8 << i for i in range(24)), "noise": 0.02, "launches": 4}
    raw = adjusted = 0
    for seed in range(6):
        records = cs.run_records(seed=seed, **equal)
        for record in records:  # the same truth on both sides
            if record["kind"] == "collective":
                factor = 1e-3 / cs.seconds(samples.cells.CollectiveCell.from_dict(record["cell"]))
                record["blocks"]["total_s"] = [s * factor for s in record["blocks"]["total_s"]]
        judged = [ratio.verdict for ratio in analysis.summarise(records).ratios]
        assert {v.family for v in judged} == {"collectives x sizes x framework pairs (Benjamini-Hochberg, 24)"}
        raw += sum(v.p_value <= 0.05 for v in judged)
        adjusted += sum(v.kind == "difference" for v in judged)
    assert raw >= 6 and 3 * adjusted <= raw


def test_unlike_transports_are_refused():
    """In process against gloo is refused, once for all sizes, and named; it is never a ratio."""
    records = cs.run_records(frameworks=("jax",))
    records += [
        r for r in cs.run_records(frameworks=("torch_xla",), transport="inprocess") if r["kind"] == "collective"
    ]
    made = analysis.summarise(records)
    assert made.ratios == [] and len(made.refusals) == 1
    assert "gloo and inprocess" in made.refusals[0] and "jax and torch_xla" in made.refusals[0]
    a, b = (entry for entry in samples.collect(records).values() if entry.cell.size_bytes == cs.KIB)
    assert "across transports" in ratios.unlike(a, b)


@pytest.mark.parametrize("key", ["machine", "platform", "num_cores", "source_revision"])
def test_unlike_environments_are_refused(key):
    records = cs.run_records()
    for record in records:
        if record["kind"] == "collective" and record["cell"]["framework"] == "torch":
            record["environment"] = copy.deepcopy(record["environment"])
            record["environment"]["checked"][key] = "another"
    for ratio in analysis.summarise(records).ratios:
        assert ratio.verdict is None and f"{key} is" in ratio.problem and "'another'" in ratio.problem


def test_unsupported_is_no_pair_and_failed_is_one_without_a_ratio():
    made = cs.summary(frameworks=("jax", "torch", "torch_xla"), failed={"torch_xla": ("unsupported", "no gloo")})
    assert {ratio.a.framework for ratio in made.ratios} | {ratio.b.framework for ratio in made.ratios} == {
        "jax",
        "torch",
    }
    hung = cs.summary(failed={"torch": ("hang", "rank 1 hangs")})
    assert all(ratio.verdict is None and "rank 1 hangs" in ratio.problem for ratio in hung.ratios)


def test_an_incomplete_run_is_analysed():
    assert cs.summary(ending=None).ending == ""
    assert analysis.summarise([{"kind": "run", "config": {}, "machine": {}}]).cells == []
