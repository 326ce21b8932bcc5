"""Choice of an algorithm, ranges of sizes, crossovers, gaps and shares, on times with known causes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cost_samples import ALPHA, BETA, RING, SIZES, exact, kinked, simulate
from xlacompare.collectives import cost_choice, cost_formulas, cost_gap, cost_model, cost_regimes
from xlacompare.collectives.cost_fit import Observation
from xlacompare.core import errors


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, algorithm)
        for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast", "reduce_scatter")
        for algorithm in cost_formulas.ALGORITHMS[collective]
    ],
)
def test_the_choice_is_the_truth_where_the_data_tell(collective, algorithm):
    rng, truth = np.random.default_rng(11), {"ppermute": "direct", collective: algorithm}
    for _ in range(3):
        times = simulate(rng, truth, ranks=(2, 3, 4, 8), sizes=SIZES[::2])
        choice = cost_choice.choose(times, {"ppermute": "direct"})
        assert choice.algorithm == algorithm
        assert choice.identified, choice.text
        assert "every other algorithm fits worse" in choice.text


def test_a_factor_tells_nothing_unless_the_link_is_known():
    """gloo's reduce_scatter is an all_reduce inside (pytorch#149869): twice the steps and the bytes."""
    rng = np.random.default_rng(12)
    truth = {"reduce_scatter": "all_reduce by ring", "ppermute": "direct"}
    both = simulate(rng, truth, ranks=(2, 3, 4, 8))
    choice = cost_choice.choose([each for each in both if each.collective == "reduce_scatter"])
    assert not choice.identified
    assert "but for a factor" in choice.text
    assert cost_choice.choose(both, {"ppermute": "direct"}).algorithm == "all_reduce by ring"


def test_a_false_choice_is_rare_and_the_truth_seldom_called_worse():
    """With few ranks and much noise: whatever is chosen, the truth is called worse in about 5% at most."""
    rng, refused = np.random.default_rng(13), 0
    for _ in range(60):
        choice = cost_choice.choose(simulate(rng, RING, ranks=(2, 3), noise=0.2, sizes=SIZES[::3]))
        verdicts = {rival.algorithm: rival.verdict for rival in choice.rivals}
        refused += verdicts.get("ring") in (cost_choice.WORSE, cost_choice.IMPOSSIBLE)
    assert refused <= 7


def test_what_noise_hides_is_not_told_apart():
    """Ring and Rabenseifner send the same on 2 and 4 ranks, and differ by two messages of six in latency."""
    rng = np.random.default_rng(14)
    choice = cost_choice.choose(simulate(rng, RING, ranks=(2, 4), launches=3, noise=0.3, sizes=SIZES[4:]))
    verdicts = {rival.algorithm: rival.verdict for rival in choice.rivals}
    assert {choice.algorithm, *(name for name, said in verdicts.items() if said == cost_choice.UNDECIDED)} >= {
        "ring", "rabenseifner",
    }  # fmt: skip
    assert not choice.identified
    assert "more launches or more ranks would decide" in choice.text


def test_one_number_of_ranks_cannot_tell_algorithms_apart():
    choice = cost_choice.choose(simulate(np.random.default_rng(2), RING, ranks=(2,)))
    assert not choice.identified
    assert {rival.verdict for rival in choice.rivals} == {cost_choice.SAME}
    assert "on 2 ranks alone every algorithm is a line in the size" in choice.text
    # What does not depend on the algorithm is the same for all.
    fits = [
        cost_model.fit(exact(RING, ranks=(4,)), {"all_reduce": name}) for name in cost_model.candidates("all_reduce")
    ]
    assert [fit.intercept("all_reduce", 4).mean for fit in fits] == pytest.approx([6 * ALPHA] * 4)
    assert [fit.slope("all_reduce", 4).mean for fit in fits] == pytest.approx([1.5 * BETA] * 4)


def test_ranks_on_which_two_algorithms_cost_the_same():
    choice = cost_choice.choose(exact(RING, ranks=(2,)))
    assert {rival.verdict for rival in choice.rivals} == {cost_choice.SAME}
    with pytest.raises(errors.BadInputError, match="one collective at a time"):
        cost_choice.choose(exact({"all_reduce": "ring", "all_gather": "ring"}))


def test_regimes_are_found_where_they_are():
    below, above = cost_regimes.regimes(kinked(np.random.default_rng(19)), RING)
    assert 1 << 19 <= below.valid_bytes[1] <= 1 << 21
    assert above.valid_bytes[1] == 1 << 26
    assert below.beta.low < BETA < below.beta.high
    assert above.slope("all_reduce", 2).mean == pytest.approx(4 * BETA, rel=0.1)


def test_one_regime_where_there_is_one():
    rng = np.random.default_rng(20)
    numbers = [len(cost_regimes.regimes(simulate(rng, RING, ranks=(2,), noise=0.05), RING)) for _ in range(40)]
    assert numbers.count(1) >= 36


def test_the_crossover_of_two_frameworks_is_covered():
    """One has the latency, the other the bandwidth."""
    rng, hits, resolved, runs = np.random.default_rng(23), 0, 0, 200
    truth = 2 * (100e-6 - 20e-6) / (1.0e-9 - 0.6e-9)
    for _ in range(runs):
        quick = cost_model.fit(simulate(rng, RING, ranks=(2,), alpha=20e-6, beta=1.0e-9, launches=8), RING)
        strong = cost_model.fit(simulate(rng, RING, ranks=(2,), alpha=100e-6, beta=0.6e-9, launches=8), RING)
        found = cost_gap.crossover(quick, strong, "all_reduce", 2, ("quick", "strong"))
        if found.size_bytes:
            resolved += 1
            hits += found.low <= truth <= found.high
    assert resolved > 0.95 * runs
    assert 0.92 <= hits / resolved <= 1.0
    assert found.text.startswith("quick is faster below")
    assert found.inside


def test_no_crossover_where_there_is_none():
    rng = np.random.default_rng(29)
    fast = cost_model.fit(simulate(rng, RING, alpha=10e-6, beta=0.5e-9), RING)
    slow = cost_model.fit(simulate(rng, RING, alpha=50e-6, beta=1.0e-9), RING)
    found = cost_gap.crossover(slow, fast, "all_reduce", 4, ("slow", "fast"))
    assert found.size_bytes is None
    assert found.text == "fast is faster at every size"
    twins = [cost_model.fit(simulate(rng, RING), RING) for _ in range(2)]
    assert "no crossover is resolved" in cost_gap.crossover(*twins, "all_reduce", 4).text


def test_the_crossover_of_two_algorithms_is_predicted():
    """Recursive doubling for short, Rabenseifner for long all_reduces: lg p alpha = (lg p - 2(p-1)/p) beta S."""
    found = cost_model.fit(exact(RING), RING)
    size = cost_gap.crossover_of_algorithms(found, "all_reduce", 8, "recursive doubling", "rabenseifner")
    assert size.size_bytes == pytest.approx(3 * ALPHA / ((3 - 7 / 4) * BETA))
    assert "recursive doubling is faster below" in size.text
    assert size.inside


def test_fieller_against_simulation():
    rng = np.random.default_rng(31)
    values, covariance = np.array([4.0, 2.0]), np.array([[0.04, 0.01], [0.01, 0.02]])
    hits, runs = 0, 4000
    for drawn in rng.multivariate_normal(values, covariance, runs):
        _, low, high = cost_gap.fieller(np.array([1.0, 0]), np.array([0, 1.0]), drawn, covariance, 1e9, 0.95)
        hits += low <= 2.0 <= high
    assert hits / runs == pytest.approx(0.95, abs=0.012)
    assert cost_gap.fieller(np.array([1.0, 0]), np.array([0, 1.0]), np.array([4.0, 0.1]), covariance, 9, 0.95) is None


def test_a_gap_is_called_latency_or_bandwidth():
    rng = np.random.default_rng(37)
    floor = cost_model.fit(simulate(rng, RING), RING)
    late = cost_model.fit(simulate(rng, RING, alpha=2 * ALPHA), RING)
    found = cost_gap.gap(late, floor, "all_reduce", 2, ("framework", "floor"))
    assert found.text.startswith("latency (dispatch): framework takes")
    assert "bandwidth" not in found.text
    assert found.latency.low < 2 * ALPHA < found.latency.high
    narrow = cost_model.fit(simulate(rng, RING, beta=2 * BETA), RING)
    said = cost_gap.gap(narrow, floor, "all_reduce", 2, ("framework", "floor")).text
    assert said.startswith("bandwidth (lowering, copies): framework takes")
    same = cost_model.fit(simulate(rng, RING), RING)
    assert "no gap" in cost_gap.gap(same, floor, "all_reduce", 2).text


def test_the_share_above_a_floor():
    """Paired by launch, the speed of the launch cancels."""
    rng = np.random.default_rng(41)
    floor = simulate(rng, RING, ranks=(2,), launch_noise=0.2, noise=0.005)
    added = [Observation(each.collective, each.n, each.size_bytes, each.seconds + 1e-4, each.launch) for each in floor]
    for share in cost_gap.shares(added, floor):
        assert share.above.low <= 1e-4 * (1 + 1e-9) and share.above.high >= 1e-4 * (1 - 1e-9)
        assert share.part == pytest.approx(1e-4 / share.seconds)
        assert share.method == "paired by launch"
    fitted = cost_gap.shares(added, cost_model.fit(floor, RING))
    assert len(fitted) == len(SIZES)
    assert all(share.above.low < 1e-4 < share.above.high for share in fitted)
    outside = [Observation("all_reduce", 2, 1 << 30, 1.0, launch) for launch in range(3)]
    assert cost_gap.shares(outside, cost_model.fit(floor, RING)) == []
