"""Intervals against values computed by hand or by SciPy's and statsmodels' own functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import power as sm_power

from xlacompare.core import estimates, pairs, power


def test_t_interval_by_hand() -> None:
    # mean 3, sd sqrt(2.5), se sqrt(0.5), t(0.975, 4) = 2.776445
    found = estimates.t_interval([1, 2, 3, 4, 5], 0.95)
    assert found.mean == 3
    assert found.df == 4
    assert found.n == 5
    assert found.high - 3 == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)
    assert found.low == pytest.approx(6 - found.high)
    assert found.unit_sd == pytest.approx(math.sqrt(2.5))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 1 - 0.0182])
def test_t_interval_as_scipy(level: float) -> None:
    x = np.random.default_rng(0).lognormal(size=9)
    expected = stats.ttest_1samp(x, 0).confidence_interval(level)
    found = estimates.t_interval(x, level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.p_value() == pytest.approx(stats.ttest_1samp(x, 0).pvalue)


def test_one_value_knows_nothing_about_its_spread() -> None:
    found = estimates.t_interval([2.0])
    assert (found.mean, found.low, found.high, found.df) == (2.0, -math.inf, math.inf, 0)
    assert found.p_value() == 1.0
    assert found.half_width == math.inf
    assert estimates.paired_t_log([2.0], [1.0]).ratio() == (pytest.approx(2.0), 0.0, math.inf)


def test_two_values_have_one_degree_of_freedom() -> None:
    found = estimates.t_interval([1.0, 3.0])
    assert found.df == 1
    assert found.high == pytest.approx(2 + 12.7062 * 1.0, rel=1e-5)


def test_zero_variance() -> None:
    same = estimates.t_interval([2.0, 2.0, 2.0])
    assert (same.low, same.high) == (2.0, 2.0)
    assert same.p_value() == 0.0
    assert estimates.t_interval([0.0, 0.0]).p_value() == 1.0
    assert estimates.welch([1.0, 1.0], [1.0, 1.0]).half_width == 0.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf], [[1.0, 2.0]]])
def test_what_is_no_sample(values: list[float]) -> None:
    with pytest.raises(ValueError, match="value"):
        estimates.t_interval(values)


def test_paired_ratio_by_hand() -> None:
    # log ratios are log 2, log 2, log 4: mean 4/3 log 2, sd log 2 / sqrt(3), se log 2 / 3, t(0.975, 2) = 4.302653
    found = estimates.paired_t_log([2.0, 6.0, 4.0], [1.0, 3.0, 1.0])
    assert found.ratio()[0] == pytest.approx(2 ** (4 / 3))
    assert found.ratio()[2] == pytest.approx(2 ** (4 / 3 + 4.302653 / 3), rel=1e-6)


def test_paired_difference_in_seconds() -> None:
    assert estimates.paired_t([2.0, 4.0], [1.0, 2.0]).mean == 1.5
    with pytest.raises(ValueError, match="got 2 and 1"):
        estimates.paired_t([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="zero or negative"):
        estimates.paired_t_log([1.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("sizes", [(6, 6), (4, 9), (2, 3)])
def test_welch_as_scipy(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(10, 1, sizes[0]), rng.normal(9, 3, sizes[1])
    expected = stats.ttest_ind(a, b, equal_var=False)
    found = estimates.welch(a, b)
    assert found.df == pytest.approx(expected.df)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.n == min(sizes)
    logs = stats.ttest_ind(np.log(abs(a)), np.log(abs(b)), equal_var=False).confidence_interval(0.95)
    assert estimates.welch_log(abs(a), abs(b)).low == pytest.approx(logs.low)


def test_welch_with_one_launch_on_a_side() -> None:
    assert estimates.welch([1.0], [1.0, 2.0]).half_width == math.inf


def test_at_level_and_inverse() -> None:
    found = estimates.paired_t_log([2.0, 6.0, 4.0], [1.0, 3.0, 1.0])
    assert found.at_level(0.8).half_width < found.half_width
    assert found.at_level(0.8).at_level(0.95) == found
    assert found.inverse().ratio()[1] == pytest.approx(1 / found.ratio()[2])
    with pytest.raises(ValueError, match="level"):
        found.at_level(95)
    with pytest.raises(ValueError, match="log"):
        estimates.t_interval([1, 2]).ratio()


def test_combine_adds_variances() -> None:
    a, b = estimates.t_interval([1.0, 2.0, 3.0]), estimates.t_interval([5.0, 7.0, 9.0, 11.0])
    found = estimates.combine([(1.0, a), (-1.0, b)])
    assert found.mean == -6
    assert found.se == pytest.approx(math.hypot(a.se, b.se))
    expected = stats.ttest_ind([1.0, 2.0, 3.0], [5.0, 7.0, 9.0, 11.0], equal_var=False).df
    assert found.df == pytest.approx(expected)
    with pytest.raises(ValueError, match="cannot be added"):
        estimates.combine([(1.0, a), (1.0, estimates.paired_t_log([1, 2], [1, 3]))])
    assert estimates.combine([(1.0, a), (1.0, estimates.t_interval([1.0]))]).half_width == math.inf


def test_autocorrelation_by_hand() -> None:
    # centred -2 -1 0 1 2: (2 + 0 + 0 + 2) / 10
    assert pairs.autocorrelation([1, 2, 3, 4, 5]) == pytest.approx(0.4)
    assert pairs.autocorrelation([1, -1, 1, -1]) == pytest.approx(-0.75)
    assert pairs.autocorrelation([1, 2]) == 0
    assert pairs.autocorrelation([3, 3, 3, 3]) == 0


def test_effective_n_by_hand() -> None:
    # period 4 (1 1 -1 -1) over 40 values: numerator 20 - 19, r = 1/40, corrected (40/40 + 1) / 36 = 1/18
    x = np.tile([1.0, 1.0, -1.0, -1.0], 10)
    assert pairs.autocorrelation(x) == pytest.approx(1 / 40)
    assert pairs.effective_n(x) == pytest.approx(40 * (1 - 1 / 18) / (1 + 1 / 18))


def test_effective_n_is_clipped() -> None:
    assert pairs.effective_n(np.tile([1.0, -1.0], 20)) == 40
    assert pairs.effective_n(np.arange(40.0)) == 2
    assert pairs.effective_n([5.0]) == 1
    assert pairs.effective_n([1.0, 2.0]) == 2
    assert pairs.effective_n(np.ones(20)) < 20  # no spread: r 0, its correction is positive


def test_effective_n_of_a_long_series() -> None:
    rng = np.random.default_rng(2)
    x = np.zeros(20000)
    for i, shock in enumerate(rng.standard_normal(x.size - 1)):
        x[i + 1] = 0.5 * x[i] + shock
    assert pairs.effective_n(x) == pytest.approx(x.size / 3, rel=0.06)


def test_block_pairs_are_a_ratio_of_means() -> None:
    a, b = [1.0, 1.0, 4.0], [1.0, 1.0, 1.0]
    found = pairs.block_pair_interval(a, b)
    assert found.ratio()[0] == pytest.approx(2.0)  # a mean of logarithms would say 1.59
    # values a_i / 2 - b_i = -0.5 -0.5 1.0: sum of squares 1.5, se sqrt(1.5 / 2 / 3)
    assert found.se == pytest.approx(0.5)
    assert found.df == 2
    seconds = pairs.block_pair_interval(a, b, scale="linear")
    assert (seconds.mean, seconds.se) == (pytest.approx(1.0), pytest.approx(1.0))


def test_block_pairs_edge_cases() -> None:
    assert pairs.block_pair_interval([1.0], [2.0]).half_width == math.inf
    assert pairs.block_pair_interval([1.0, 2.0], [1.0, 1.0]).df == 1
    assert pairs.block_pair_interval([2.0] * 9, [1.0] * 9).half_width == 0
    with pytest.raises(ValueError, match="positive"):
        pairs.block_pair_interval([0.0, 1.0], [1.0, 1.0])


def test_correlated_pairs_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    noise = np.repeat(rng.normal(0, 0.02, 20), 4)
    b = np.ones(80)
    plain = estimates.t_interval(noise)
    assert pairs.block_pair_interval(1 + noise, b).half_width > 1.5 * plain.half_width


@pytest.mark.parametrize("rho", [-0.1, 0.0, 0.3, 0.5])
def test_block_pairs_cover(rho: float) -> None:
    rng = np.random.default_rng(4)
    runs, n = 1500, 60
    shocks = rng.standard_normal((runs, n + 50))
    x = np.zeros_like(shocks)
    for t in range(1, x.shape[1]):
        x[:, t] = rho * x[:, t - 1] + shocks[:, t]
    outside = sum(pairs.block_pair_interval(1 + 0.02 * row, np.ones(n)).p_value() < 0.05 for row in x[:, 50:])
    assert 0.02 < outside / runs < 0.08  # 5 +- 1.7% is three standard errors of 1500 runs, and 3.4-6.1% was found


def test_pool_takes_the_wider_interval() -> None:
    close = [estimates.estimate(m, 0.01, 50, 51, 0.95, "log", "") for m in (0.10, 0.10, 0.101)]
    within = pairs.pool(close)
    assert within.se == pytest.approx(0.01 / math.sqrt(3))
    assert within.df == pytest.approx(150)
    assert within.n == 3
    apart = [estimates.estimate(m, 0.01, 50, 51, 0.95, "log", "") for m in (0.0, 0.1, 0.2)]
    between = pairs.pool(apart)
    assert (between.low, between.high) == pytest.approx((0.1 - 4.302653 * 0.1 / 3**0.5, 0.1 + 4.302653 * 0.1 / 3**0.5))
    assert pairs.pool(apart[:1], 0.9) == apart[0].at_level(0.9)
    with pytest.raises(ValueError, match="no launch"):
        pairs.pool([])


def test_pool_when_a_launch_had_one_pair() -> None:
    found = pairs.pooled_pairs([([1.0, 1.1, 1.2], [1.0, 1.0, 1.0]), ([1.1], [1.0])])
    assert found.df == 1


def test_mean_effect_is_in_seconds() -> None:
    found = pairs.mean_effect([([2.0, 2.1], [1.0, 1.0]), ([2.2, 2.3], [1.0, 1.0])])
    assert found.scale == "linear"
    assert found.mean == pytest.approx(1.15)


def test_percentiles() -> None:
    few = estimates.percentiles(np.arange(1.0, 1000.0))
    assert few.p99 is None
    many = estimates.percentiles(np.arange(1.0, 1001.0))
    assert (many.mean, many.median) == (500.5, 500.5)
    assert many.p99 == pytest.approx(990.01)
    assert estimates.percentiles([3.0]).median == 3.0


def test_power_as_statsmodels_and_by_round_trip() -> None:
    # Cohen's textbook case: d = 0.5, two-sided 5%, power 80% takes 34 pairs
    assert power.launches_needed(0.5, 1.0, 0.05) == 34
    assert power.power(0.5, 1.0, 34, 0.05) == pytest.approx(0.8078, abs=1e-3)
    assert power.mde(1.0, 34, 0.05) == pytest.approx(0.495, abs=5e-3)
    found = power.mde(0.04, 6, 0.0182)
    assert power.power(found, 0.04, 6, 0.0182) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("alpha", [0.05, 0.0182])
@pytest.mark.parametrize("n", [2, 3, 6, 24, 200, 10_000])
def test_power_as_statsmodels(n: int, alpha: float, one_sided: bool) -> None:
    alternative = "larger" if one_sided else "two-sided"
    for shift in (-1.0, 0.0, 0.5, 2.0, 4.0, 8.0, 15.0, 50.0):
        found = power.power(shift / math.sqrt(n), 1.0, n, alpha, one_sided)
        expected = sm_power.TTestPower().power(shift / math.sqrt(n), n, alpha, df=n - 1, alternative=alternative)
        assert 0 <= found <= 1 + 1e-12
        if math.isnan(expected):  # statsmodels fails where the effect is large
            assert shift >= 4
        else:
            assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 6, 24, 500])
def test_mde_is_a_number_everywhere(n: int) -> None:
    assert 0 < power.mde(0.04, n, 0.0182) < math.inf


def test_power_edge_cases() -> None:
    assert power.mde(0.04, 1, 0.05) == math.inf
    assert power.mde(0.0, 5, 0.05) == 0.0
    assert power.launches_needed(0.0, 0.04, 0.05) is None
    assert power.launches_needed(0.0001, 0.04, 0.05) is None
    assert power.launches_needed(0.05, 0.0, 0.05) == 2
    assert power.launches_needed(5.0, 0.001, 0.05) == 2
    assert power.launches_for_equivalence(0.05, 0.04, 0.05, effect=0.06) is None
    near, centred = (power.launches_for_equivalence(0.05, 0.04, 0.05, effect=e) for e in (0.03, 0.0))
    assert near is not None
    assert centred is not None
    assert near > centred
