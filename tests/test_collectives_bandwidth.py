"""Rates: nccl-tests' definitions, intervals, and no mean of rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlacompare.collectives import bandwidth, table


def test_the_mean_of_rates_is_not_what_is_reported():
    """stas00's benchmark averages rates; with one slow run in two it reports half as much again (+50% measured)."""
    times = [1.0, 3.0]
    mean_of_rates = np.mean([6.0 / t for t in times])
    assert mean_of_rates == 4.0
    assert bandwidth.of_times(6.0, times) == 3.0
    assert bandwidth.of_times(6.0, times) == bandwidth.rate(6.0, np.mean(times)).value


def test_a_straggler_counts():
    """accelerator-microbenchmarks drops it by an interquartile filter: 7.57 ms reported where the mean was 9.49."""
    times = [1.0] * 20 + [21.0]
    kept = [t for t in times if t <= np.quantile(times, 0.75) + 1.5 * (np.quantile(times, 0.75) - 1.0)]
    assert np.mean(kept) == 1.0
    assert bandwidth.of_times(1.0, times) == pytest.approx(21 / 41)


@pytest.mark.parametrize("name", [name for name in table.TABLE if name != "barrier"])
def test_bus_bandwidth(name):
    found = bandwidth.bandwidth(name, 4, 4000, 2.0)
    assert found.algbw.value == 2000
    assert found.busbw.value == pytest.approx(2000 * table.TABLE[name].bus_factor(4))
    assert found.busbw_lowered is None
    assert bandwidth.bandwidth(name, 1, 4000, 2.0).busbw.value == 0


def test_intervals_turn_round():
    found = bandwidth.rate(100, 2.0, 1.0, 4.0)
    assert (found.low, found.value, found.high) == (25, 50, 100)
    assert bandwidth.rate(100, 2.0, -1.0, math.inf) == bandwidth.Rate(50, 0, math.inf)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_no_rate_without_a_time(seconds):
    with pytest.raises(ValueError, match="gives no rate"):
        bandwidth.rate(1, seconds)


def test_a_rate_above_the_machines_is_refused():
    """DeepSpeed's asynchronous all_reduce, never waited for: busbw 510 GB/s over gloo."""
    assert "check the fence" in bandwidth.implausible(510e9, 20e9)
    assert bandwidth.implausible(0.5e9, 20e9) is None


def test_the_caveat_of_gloo():
    assert "twice" in bandwidth.CAVEATS["gloo", "reduce_scatter"]
    assert {collective for _, collective in bandwidth.CAVEATS} <= set(table.TABLE)
