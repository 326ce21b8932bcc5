"""Verdicts, families and sentences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from statsmodels.stats import weightstats

from xlacompare.core import estimates, verdict
from xlacompare.core import plan as plans

SIX = plans.fixed(6)


def log_estimate(ratio: float, se: float, n: int = 6) -> estimates.Estimate:
    return estimates.estimate(math.log(ratio), se, n - 1, n, 0.95, "log", "test")


def test_kinds() -> None:
    assert verdict.judge(log_estimate(1.42, 0.02), SIX).kind == "difference"
    assert verdict.judge(log_estimate(1.001, 0.01), SIX).kind == "no_difference"
    assert verdict.judge(log_estimate(1.03, 0.03), SIX).kind == "inconclusive"
    assert not verdict.judge(log_estimate(1.03, 0.03), SIX).decided


def test_negligible_is_a_difference_inside_the_margin() -> None:
    found = verdict.judge(log_estimate(1.01, 0.002), SIX)
    assert (found.kind, found.negligible) == ("difference", True)
    assert not verdict.judge(log_estimate(1.042, 0.004), SIX).negligible  # its upper end is outside
    assert not verdict.judge(log_estimate(1.001, 0.01), SIX).negligible  # no difference is not a negligible one


def test_the_90_percent_interval_decides_equivalence() -> None:
    # t(0.95, 5) = 2.015: the 90% interval of an estimate at 1 reaches the margin at se log(1.05) / 2.015
    edge = math.log(1.05) / 2.0150484
    assert verdict.judge(log_estimate(1.0, edge * 0.999), SIX).kind == "no_difference"
    assert verdict.judge(log_estimate(1.0, edge * 1.001), SIX).kind == "inconclusive"
    # a plan of four looks asks for more: t(1 - 0.0194, 5) = 2.77
    assert verdict.judge(log_estimate(1.0, edge * 0.999), plans.sequential()).kind == "inconclusive"
    assert verdict.judge(log_estimate(1.0, edge * 0.72), plans.sequential()).kind == "no_difference"


def test_difference_uses_the_alpha_of_the_look() -> None:
    # t(0.975, 5) = 2.571, t(1 - 0.0091, 5) = 3.43
    found = log_estimate(math.exp(0.03), 0.01)
    assert verdict.judge(found, SIX).kind == "difference"
    assert verdict.judge(found, plans.sequential()).kind == "inconclusive"
    assert verdict.judge(found, plans.sequential()).estimate.level == pytest.approx(0.9818)


def test_kind_and_interval_agree() -> None:
    rng = np.random.default_rng(0)
    for plan in (SIX, plans.sequential()):
        for _ in range(300):
            found = verdict.judge(log_estimate(math.exp(rng.normal(0, 0.05)), 0.02), plan)
            assert (found.kind == "difference") == (found.estimate.low > 0 or found.estimate.high < 0)


def test_tost_as_statsmodels() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(1.0, 0.05, 8), rng.normal(1.01, 0.05, 8)
    expected = weightstats.ttost_paired(a, b, -0.05, 0.05)[0]
    assert verdict.tost_p(estimates.paired_t(a, b), 0.05) == pytest.approx(expected)
    assert verdict.tost_p(estimates.paired_t(a, b), 0.0) == 1.0


def test_differences_in_seconds_have_a_margin_in_seconds() -> None:
    found = estimates.estimate(1e-5, 1e-5, 5, 6, 0.95, "linear", "test")
    assert verdict.judge(found, SIX).kind == "inconclusive"
    assert verdict.judge(found, SIX, margin_s=1e-4).kind == "no_difference"


def test_one_launch_and_no_spread() -> None:
    alone = verdict.judge(estimates.paired_t_log([2.0], [1.0]), SIX)
    assert (alone.kind, alone.launches_needed, alone.p_value) == ("inconclusive", None, 1.0)
    same = verdict.judge(estimates.paired_t_log([1.0] * 3, [1.0] * 3), SIX)
    assert same.kind == "no_difference"
    exact = verdict.judge(estimates.paired_t_log([2.0] * 3, [1.0] * 3), SIX)
    assert exact.kind == "difference"


def test_launches_that_would_decide() -> None:
    found = verdict.judge(log_estimate(1.03, 0.03), SIX)
    assert found.launches_needed is not None
    assert 30 < found.launches_needed < 100
    wider = verdict.judge(log_estimate(1.03, 0.06), SIX)
    assert wider.launches_needed is not None
    assert wider.launches_needed > 3 * found.launches_needed
    assert verdict.judge(log_estimate(1.42, 0.02), SIX).launches_needed is None
    assert verdict.judge(log_estimate(1.0, 0.1), plans.fixed(6, margin=0.0)).launches_needed is None


def test_holm_by_hand() -> None:
    # p = 0.01, 0.02, 0.03, 0.04 -> 4 x 0.01, 3 x 0.02, 2 x 0.03, 1 x 0.04 made monotone: 0.04 0.06 0.06 0.06
    ses = [_se_for(p) for p in (0.01, 0.02, 0.03, 0.04)]
    before = [verdict.judge(log_estimate(1.2, se), SIX) for se in ses]
    assert [v.p_value for v in before] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    after = verdict.holm(before, "framework pairs")
    assert [v.adjusted_p for v in after] == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert [v.kind for v in after] == ["difference", "inconclusive", "inconclusive", "inconclusive"]
    assert after[0].family == "framework pairs (Holm, 4)"
    assert after[1].estimate == before[1].estimate
    # Benjamini-Hochberg: 4/k p, monotone from above: all 0.04
    sweep = verdict.benjamini_hochberg(before, "sweep")
    assert [v.adjusted_p for v in sweep] == pytest.approx([0.04] * 4)
    assert verdict.holm([], "none") == []


def _se_for(p: float) -> float:
    from scipy import special

    return math.log(1.2) / float(special.stdtrit(5, 1 - p / 2))


def test_a_demoted_difference_inside_the_margin_is_no_difference() -> None:
    small = verdict.judge(log_estimate(1.01, math.log(1.01) / 2.7), SIX)
    assert small.negligible
    after = verdict.holm([small, *[verdict.judge(log_estimate(1.2, 0.5), SIX)] * 3], "pairs")
    assert (after[0].kind, after[0].negligible) == ("no_difference", False)


def test_sentences() -> None:
    def say(ratio: float, se: float, plan: plans.Plan = SIX) -> str:
        return verdict.sentence(verdict.judge(log_estimate(ratio, se), plan), "torch_xla", "jax", "cpu")

    assert say(1.42, 0.0177) == "torch_xla 1.42x [1.36, 1.49] slower than jax on cpu; gate passed"
    assert say(1 / 1.42, 0.0177) == "torch_xla 1.42x [1.36, 1.49] faster than jax on cpu; gate passed"
    assert say(1.01, 0.002).startswith("torch_xla 1.01x [1.005, 1.02] slower") is False
    assert "(negligible: within 5%)" in say(1.01, 0.002)
    assert say(1.0, 0.01) == (
        "torch_xla and jax on cpu: no difference larger than 5% (1.00x [0.97, 1.03]); gate passed"
    )
    assert say(1.03, 0.03).startswith("torch_xla and jax on cpu: inconclusive (1.03x [0.95, 1.11]); about ")
    assert say(1.03, 0.03).endswith(" launches would decide; gate passed")
    assert "wide" in say(1.4, 0.2)
    alone = verdict.judge(estimates.paired_t_log([2.0], [1.0]), SIX)
    assert verdict.sentence(alone, "a", "b", "cpu") == (
        "a and b on cpu: inconclusive (2.00x [0.00, inf] wide); a spread takes at least two launches; gate passed"
    )


def test_sentence_of_a_family_and_of_block_pairs() -> None:
    before = [verdict.judge(log_estimate(1.2, _se_for(p)), SIX) for p in (0.03, 0.04)]
    text = verdict.sentence(verdict.holm(before, "pairs")[0], "a", "b", "cpu")
    assert "a difference alone, but not within its family of pairs (Holm, 2)" in text
    inside = verdict.judge(log_estimate(1.01, 0.01, 40), plans.in_process(40))
    assert "block pairs would decide" in verdict.sentence(inside, "compiled", "eager", "cpu")


def test_to_dict_is_json() -> None:
    assert json.loads(json.dumps(verdict.judge(log_estimate(1.42, 0.02), SIX).to_dict()))["kind"] == "difference"
