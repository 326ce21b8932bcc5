"""The time that xlacompare reports for a block against a loop written by hand in the framework's own calls.

Blocks of the same n steps in the same process, in the order ABBA: the ratio of neighbours is free of drift, and its
logarithm is averaged over the pairs. A measurement is judged when the 95% interval of its ratio is at most `WIDTH`
wide; a wider one says nothing about a bound of 2% and is measured afresh with twice as many pairs, whatever its ratio
was, up to the last entry of `PAIRS`. If that is too wide as well, the machine is too noisy to show that the bound
holds; the test then fails where the whole interval lies outside of it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import scipy.stats

from tests.frameworks import cases, native
from xlacompare.core import timing

PAIRS = (80, 160, 320)
BLOCK_S = 0.02
WIDTH = 0.02
BOUND = 0.02


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Reported over hand-written, with the 95% interval of the mean log ratio."""

    value: float
    low: float
    high: float


@pytest.mark.quiet
def test_blocks_agree_with_a_hand_written_loop(framework):
    loaded = native.load(framework.name)
    step = cases.shared_step(framework, "compiled")
    warm = timing.warm_up(step, 0, framework.compile_count)
    n = timing.steps_per_block(warm.step_s, BLOCK_S)
    ratio = measured(framework, step, loaded.hand_loop, n)
    print(f"{framework.name}: block / hand-written loop = {ratio} at {n} steps of {1e3 * warm.step_s:.2f} ms")
    if ratio.high - ratio.low <= WIDTH:
        assert 1 - BOUND <= ratio.value <= 1 + BOUND, ratio
    else:
        assert ratio.low <= 1 + BOUND, ratio
        assert ratio.high >= 1 - BOUND, ratio


def measured(framework, step, hand_loop, n):
    """The first measurement whose interval is narrow enough, else the last."""
    for count in PAIRS:
        ratio = ratio_of(pairs(framework, step, hand_loop, n, count))
        print(ratio)
        if ratio.high - ratio.low <= WIDTH:
            break
    return ratio


def pairs(framework, step, hand_loop, n, count):
    """(seconds reported, seconds by hand) of neighbours."""

    def reported():
        block = timing.time_block(step, n, 0, framework.compile_count)
        assert block.compiles == 0
        return block.total_s

    def by_hand():
        return hand_loop(step, n, 0)

    reported(), by_hand()  # the first block after something else is not like the others
    found = []
    for i in range(count):
        if i % 2:
            seconds = by_hand()
            found.append((reported(), seconds))
        else:
            seconds = reported()
            found.append((seconds, by_hand()))
    return found


def ratio_of(found):
    """Mean log ratio of the pairs and its t interval."""
    logs = [math.log(a / b) for a, b in found]
    mean = statistics.mean(logs)
    half = scipy.stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def test_a_slower_side_is_seen():
    """The judge: 5% more on one side."""
    ratio = ratio_of([(1.05 * noise, noise) for noise in (1.0, 1.1, 0.9)])
    assert ratio.value == pytest.approx(1.05)
