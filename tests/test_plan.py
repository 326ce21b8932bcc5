"""The stopping plan."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from xlacompare.core import errors, estimates, plan

WIDE = estimates.t_interval([0.0, 0.4, -0.4, 0.1, 0.2, -0.2], scale="log")
NARROW = estimates.t_interval([0.0, 0.001, -0.001, 0.0, 0.001, -0.001], scale="log")


def test_sequential_plans() -> None:
    found = {looks: plan.sequential(looks) for looks in (1, 2, 3, 4)}
    assert [p.looks for p in found.values()] == [(6,), (6, 10), (6, 10, 16), (6, 10, 16, 24)]
    assert [p.alpha_per_look for p in found.values()] == [0.05, 0.0294, 0.0221, 0.0182]
    assert found[4].level == pytest.approx(0.9818)
    for bad in (0, 5):
        with pytest.raises(ValueError, match="1 to 4"):
            plan.sequential(bad)


def test_alphas_spend_five_percent() -> None:
    """Pocock's constants by the multivariate normal: P(no crossing) of equally spaced looks."""
    for looks, alpha in plan.ALPHA_PER_LOOK.items():
        for one_sided, level in ((False, alpha), (True, plan.EQUIVALENCE_ALPHA[looks])):
            bound = stats.norm.ppf(1 - level / (1 if one_sided else 2))
            cov = [[(min(i, j) / max(i, j)) ** 0.5 for j in range(1, looks + 1)] for i in range(1, looks + 1)]
            normal = stats.multivariate_normal(cov=cov, seed=0)
            lower = None if one_sided else [-bound] * looks
            inside = normal.cdf([bound] * looks, lower_limit=lower)
            # the one-sided constants are those of the two-sided plan at 10%, which is 5% but for double crossings
            assert 1 - inside == pytest.approx(0.05, abs=1e-3), (looks, one_sided)


def test_nothing_is_tested_between_looks() -> None:
    p = plan.sequential()
    assert [n for n in range(1, 30) if p.is_look(n)] == [6, 10, 16, 24]
    assert [p.next_look(n) for n in (0, 5, 6, 23, 24)] == [6, 6, 10, 24, None]
    assert plan.should_stop(p, 7, NARROW, True) == plan.Decision(False, "between looks")


def test_should_stop() -> None:
    p = plan.sequential(target_ci=0.02)
    assert plan.should_stop(p, 6, WIDE, True) == plan.Decision(True, "verdict")
    assert plan.should_stop(p, 6, WIDE, False) == plan.Decision(False, "undecided")
    assert plan.should_stop(p, 6, NARROW, False) == plan.Decision(True, "target_ci")
    assert plan.should_stop(plan.sequential(), 6, NARROW, False) == plan.Decision(False, "undecided")
    assert plan.should_stop(p, 24, WIDE, False) == plan.Decision(True, "last look")
    assert plan.should_stop(p, 25, WIDE, False).stop


def test_target_is_judged_at_the_level_of_the_look() -> None:
    at_95 = NARROW.at_level(0.95).half_width
    p = plan.sequential(target_ci=at_95 * 1.001)
    assert not plan.should_stop(p, 6, NARROW.at_level(0.95), False).stop


@pytest.mark.parametrize(
    ("budget", "looks", "alpha"),
    [
        (1.0, (3,), 0.05),
        (50.0, (5,), 0.05),
        (60.0, (6,), 0.05),
        (99.0, (9,), 0.05),
        (100.0, (6, 10), 0.0294),
        (160.0, (6, 10, 16), 0.0221),
        (9999.0, (6, 10, 16, 24), 0.0182),
    ],
)
def test_budget_fixes_the_looks(budget: float, looks: tuple[int, ...], alpha: float) -> None:
    found = plan.from_budget(budget, 10.0, margin=0.03)
    assert found.looks == looks
    assert found.alpha_per_look == alpha
    assert (found.margin, found.budget_s) == (0.03, budget)


def test_budget_with_a_limit_of_looks() -> None:
    assert plan.from_budget(9999.0, 10.0, max_looks=1).looks == (6,)
    with pytest.raises(ValueError, match="cost"):
        plan.from_budget(10.0, 0.0)


def test_record_round_trip() -> None:
    p = plan.from_budget(120.0, 10.0, target_ci=0.01)
    assert plan.Plan.from_dict(json.loads(json.dumps(p.to_dict()))) == p


def test_in_process_is_one_look() -> None:
    p = plan.in_process(80)
    assert (p.looks, p.alpha_per_look, p.margin, p.unit) == ((80,), 0.05, 0.02, "block pairs")
    assert p.equivalence_alpha == 0.05  # the 90% interval


def test_bad_input() -> None:
    for name in ("target_ci", "budget_s"):
        for value in (0.0, -1.0):
            with pytest.raises(errors.BadInputError, match=name):
                plan.fixed(3, **{name: value})
    with pytest.raises(errors.BadInputError, match="margin"):
        plan.fixed(3, margin=-0.1)
    for looks in ((), (0,), (6, 6), (10, 6)):
        with pytest.raises(ValueError, match="looks"):
            plan.Plan(looks, 0.05, 0.05)


def test_overall_p() -> None:
    p = plan.sequential()
    assert p.overall(0.0182) == pytest.approx(0.05)
    assert p.overall(0.9) == 1.0
    assert plan.fixed(3).overall(0.03) == 0.03
