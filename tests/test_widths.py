"""Intervals as they are printed: wide ones are called wide, and no time is negative."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.test_analysis import JAX, launches, result, summarise
from tests.test_report import RUNS, section, shown
from xlacompare.core import estimates
from xlacompare.report import words


@pytest.mark.parametrize("means", [[1.0, 1.3], [1.0, 9.0], [0.001, 1.0]])
def test_a_step_time_is_never_negative(means) -> None:
    """Two launches: the t interval on the linear scale is [-0.76, 3.06] already for the first of these."""
    found = result(summarise(launches(JAX, means), looks=2), JAX).step
    assert found is not None
    assert 0 < found.low < found.mean < found.high
    assert found.mean == pytest.approx(np.mean(means))


def test_wide_bars_are_called_wide() -> None:
    def estimate(mean: float, half: float) -> str:
        return words.signed_ms(estimates.estimate(mean * 1e-3, half * 1e-3, 1e9, 9, 0.6827, "linear", "t"), 2)

    assert estimate(5.0, 0.5) == "+5.00 [+4.50, +5.50]"
    assert estimate(-5.0, 0.5) == "-5.00 [-5.50, -4.50]"
    assert estimate(5.0, 3.0) == "+5.00 [+2.00, +8.00] wide"
    assert estimate(-5.0, 3.0) == "-5.00 [-8.00, -2.00] wide"
    assert estimate(5.0, 6.0) == "+5.00 [-1.00, +11.00] wide"
    assert re.search(r"\] wide", section(shown(**RUNS["noisy"]), "Why"))


def test_no_step_time_is_negative() -> None:
    """Two launches that differ by 30%."""
    found = section(shown(**RUNS["noisy"]), "mlp:")
    assert not re.search(r"\[-", found)
    assert "] wide" in found
