"""The cost model on times with known alpha, beta, gamma and noise: formulas, intervals that cover, validity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm

from tests.cost_samples import ALPHA, BETA, GAMMA, RING, SIZES, exact, kinked, simulate
from xlacompare.collectives import cost_formulas, cost_model, table
from xlacompare.collectives.cost_fit import Observation, Residual
from xlacompare.core import errors


@pytest.mark.parametrize(
    ("collective", "algorithm", "n", "steps", "sent", "combined"),
    [
        # Written down from the paper's section 4, for powers of two.
        ("all_gather", "ring", 8, 7, 7 / 8, 0),
        ("all_gather", "recursive doubling", 8, 3, 7 / 8, 0),
        ("broadcast", "binomial tree", 8, 3, 3, 0),
        ("broadcast", "scatter and all_gather", 8, 3 + 7, 2 * 7 / 8, 0),
        ("all_to_all", "bruck", 8, 3, 3 / 2, 0),
        ("all_to_all", "pairwise", 8, 7, 7 / 8, 0),
        ("reduce_scatter", "recursive halving", 8, 3, 7 / 8, 7 / 8),
        ("reduce_scatter", "pairwise", 8, 7, 7 / 8, 7 / 8),
        ("reduce_scatter", "recursive doubling", 8, 3, 3 - 7 / 8, 3 - 7 / 8),
        ("all_reduce", "recursive doubling", 8, 3, 3, 3),
        ("all_reduce", "rabenseifner", 8, 6, 2 * 7 / 8, 7 / 8),
        ("all_reduce", "ring", 8, 14, 2 * 7 / 8, 7 / 8),
        ("all_reduce", "binomial tree", 8, 6, 6, 3),
        # No power of two: Bruck's last step sends 3 - 2 chunks; the others fold one rank in and out.
        ("all_to_all", "bruck", 3, 2, 2 / 3, 0),
        ("all_reduce", "recursive doubling", 3, 1 + 2, 1 + 2, 1 + 1),
        ("all_reduce", "rabenseifner", 6, 4 + 2, 2 * 3 / 4 + 2, 3 / 4 + 1),
        ("all_reduce", "ring", 3, 4, 4 / 3, 2 / 3),
        ("barrier", "dissemination", 5, 3, 0, 0),
        ("barrier", "binomial tree", 5, 6, 0, 0),
        ("broadcast", "binomial tree", 5, 3, 3, 0),
        ("broadcast", "scatter and all_gather", 3, 2 + 2, 4 / 3, 0),
        ("all_gather", "recursive doubling", 5, 3, 4 / 5, 0),
        ("reduce_scatter", "recursive doubling", 3, 2, 2 - 2 / 3, 2 - 2 / 3),
    ],
)
def test_formulas(collective, algorithm, n, steps, sent, combined):
    found = cost_formulas.terms(collective, algorithm, n)
    assert (found.steps, found.sent, found.combined) == pytest.approx((steps, sent, combined))


def test_one_rank_costs_nothing_and_no_algorithm_sends_less_than_it_must():
    for collective, known in cost_formulas.ALGORITHMS.items():
        for name in known:
            assert cost_formulas.terms(collective, name, 1) == cost_formulas.Terms(0, 0)
            for n in range(2, 17):
                assert cost_formulas.terms(collective, name, n).sent >= table.TABLE[collective].bus_factor(n) - 1e-12


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "broadcast", "ppermute"])
def test_times_without_noise_give_the_parameters_back(collective):
    for algorithm in cost_formulas.ALGORITHMS[collective]:
        found = cost_model.fit(exact({collective: algorithm}), {collective: algorithm})
        assert found.alpha.mean == pytest.approx(ALPHA)
        assert found.beta.mean == pytest.approx(BETA)
        assert found.link_bandwidth.value == pytest.approx(1 / BETA)
        assert found.valid_bytes == (SIZES[0], SIZES[-1])
        assert max(abs(each.relative) for each in found.residuals) < 1e-6


def test_a_ring_reaches_the_links_bandwidth():
    found = cost_model.fit(exact({"all_reduce": "ring"}), {"all_reduce": "ring"})
    for n in (2, 3, 4):
        assert found.bus_bandwidth("all_reduce", n).value == pytest.approx(1 / BETA)


def coverage(make, of_fit, truth, algorithms, runs=200):
    """Part of simulated experiments whose interval holds the truth."""
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(runs):
        value = of_fit(cost_model.fit(make(rng), algorithms))
        hits += value.low <= truth <= value.high
    return hits / runs


PARAMETERS = {"alpha": ALPHA, "beta": BETA}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("launches", [3, 6])
def test_intervals_cover_although_launches_differ(name, launches):
    """95% of 200 within three standard errors of the proportion (0.015)."""
    small = {"ranks": (2,), "sizes": SIZES[::2], "launches": launches}
    found = coverage(lambda rng: simulate(rng, RING, **small), lambda fit: fit.parameter(name), PARAMETERS[name], RING)
    assert 0.905 <= found <= 0.995


def test_one_launch_covers_only_itself():
    """Without noise between launches its interval is right, with it far too narrow, which the note says."""
    one = {"ranks": (2,), "launches": 1}
    alone = coverage(lambda rng: simulate(rng, RING, launch_noise=0, **one), lambda fit: fit.beta, BETA, RING)
    assert 0.90 <= alone <= 0.99
    wrong = coverage(lambda rng: simulate(rng, RING, launch_noise=0.1, **one), lambda fit: fit.beta, BETA, RING)
    assert wrong < 0.6
    notes = cost_model.fit(simulate(np.random.default_rng(1), RING, **one), RING).notes
    assert "know nothing of others" in " ".join(notes)


def test_pooling_launches_would_not_cover():
    """Why launches are fitted one by one: one fit over all times takes a launch's speed for many independent errors."""
    rng, hits, runs = np.random.default_rng(3), 0, 200
    for _ in range(runs):
        data = cost_model.gather(simulate(rng, RING, ranks=(2,), launch_noise=0.1, noise=0.01))
        design = np.tile(data.design(RING, ("alpha", "beta")), (data.launches, 1))
        low, high = sm.OLS(data.scaled_times().ravel(), design).fit().conf_int()[1]
        hits += low <= BETA <= high
    assert hits / runs < 0.85


def test_weights_are_inverse_variances():
    """Noise in proportion to the time: without weights the largest sizes would drown alpha."""
    rng = np.random.default_rng(5)
    weighted, plain = [], []
    for _ in range(60):
        observations = simulate(rng, RING, ranks=(2,), launches=3, launch_noise=0)
        weighted.append(cost_model.fit(observations, RING).alpha.mean)
        data = cost_model.gather(observations)
        design = data.design(RING, ("alpha", "beta")) * np.sqrt(data.variance)[:, None]
        plain.append(sm.OLS(data.times.mean(axis=0), design).fit().params[0])
    assert np.std(weighted) < 0.2 * np.std(plain)
    assert np.mean(weighted) == pytest.approx(ALPHA, rel=0.02)


def test_gamma_shows_only_against_what_does_not_reduce():
    alone = cost_model.fit(exact(RING, gamma=GAMMA), RING)
    assert alone.gamma is None
    assert "gamma (combining) is inside beta" in alone.notes[0]
    assert alone.beta.mean == pytest.approx(BETA + GAMMA / 2)
    both = {"all_reduce": "ring", "all_gather": "ring"}
    found = cost_model.fit(exact(both, gamma=GAMMA), both)
    assert found.gamma.mean == pytest.approx(GAMMA)
    assert found.beta.mean == pytest.approx(BETA)


def test_gamma_is_covered():
    both = {"reduce_scatter": "pairwise", "all_gather": "ring"}
    small = {"ranks": (2, 4), "sizes": SIZES[::3], "gamma": GAMMA}
    found = coverage(lambda rng: simulate(rng, both, **small), lambda fit: fit.gamma, GAMMA, both)
    assert 0.90 <= found <= 0.99


def test_predictions_cover_and_the_misfit_is_rarely_alarmed():
    rng, hits, alarms, runs = np.random.default_rng(17), 0, 0, 200
    truth = cost_formulas.seconds("all_reduce", "ring", 8, 1 << 22, ALPHA, BETA)
    for _ in range(runs):
        found = cost_model.fit(simulate(rng, RING, ranks=(2, 4), sizes=SIZES[::2]), RING)
        value = found.predict("all_reduce", 8, 1 << 22)
        hits += value.low <= truth <= value.high
        alarms += found.misfit_p < 0.05
    assert 0.90 <= hits / runs <= 0.99
    assert alarms / runs < 0.1


def test_one_line_through_a_kink_is_called_a_misfit():
    found = cost_model.fit(kinked(np.random.default_rng(19)), RING)
    assert found.misfit_p < 1e-6
    assert found.valid_bytes is None or found.valid_bytes[1] / found.valid_bytes[0] < 1 << 14
    assert "the model holds for" in " ".join(found.notes)
    straight = cost_model.fit(simulate(np.random.default_rng(19), RING), RING)
    assert straight.valid_bytes == (SIZES[0], SIZES[-1])
    assert straight.holds(1 << 20)
    assert not straight.holds(1 << 30)


def test_a_size_is_valid_only_where_every_number_of_ranks_agrees():
    def residual(n, size, relative):
        return Residual("all_reduce", n, size, 1.0, 1.0, relative, 9.0)

    agree = [residual(n, size, 0.05) for n in (2, 4) for size in (1, 2, 4, 8)]
    assert cost_model._valid(agree) == (1, 8)
    assert cost_model._valid([*agree, residual(2, 4, 0.3)]) == (1, 2)
    assert cost_model._valid([residual(2, 2, -0.3), *agree]) == (4, 8)
    assert cost_model._valid([residual(2, size, 0.5) for size in (1, 2)]) is None


def test_too_little_to_fit():
    for sizes in ((1024,), (1024, 4096)):
        with pytest.raises(errors.BadInputError, match="measure at least"):
            cost_model.fit(exact(RING, ranks=(2,), sizes=sizes), RING)
    with pytest.raises(errors.BadInputError, match="two ranks"):
        cost_model.fit([Observation("all_reduce", 1, 8, 1.0)], RING)
    with pytest.raises(errors.BadInputError, match="a time of 0"):
        cost_model.fit([Observation("all_reduce", 2, 8, 0.0)], RING)
    with pytest.raises(errors.BadInputError, match="no algorithm 'star'"):
        cost_model.fit(exact(RING), {"all_reduce": "star"})


def test_a_barrier_has_latency_only():
    found = cost_model.fit(exact({"barrier": "dissemination"}, sizes=(0,)), {"barrier": "dissemination"})
    assert found.alpha.mean == pytest.approx(ALPHA)
    assert found.beta is None and found.link_bandwidth is None


def test_a_launch_that_lacks_cells_takes_part():
    rng = np.random.default_rng(43)
    observations = [each for each in simulate(rng, RING) if not (each.launch == 2 and each.size_bytes > 1 << 20)]
    found = cost_model.fit(observations, RING)
    assert found.df == 5
    assert found.beta.low < BETA < found.beta.high


def test_standard_errors_weight_a_single_launch():
    rng = np.random.default_rng(47)
    times = simulate(rng, RING, launches=1, launch_noise=0)
    known = [Observation(*each.cell, each.seconds, 0, se=0.03 * each.seconds) for each in times]
    found = cost_model.fit(known, RING)
    assert found.beta.low < BETA < found.beta.high
    assert 0.001 < found.misfit_p < 0.999
    assert math.isnan(cost_model.fit(times, RING).misfit_p)
