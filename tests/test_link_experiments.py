"""The experiments on a link call a planted cause found where it is, and nowhere else: made launches, known truths."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import overlap, parallel_link, planted_gap
from xlacompare.core import effects

STEP, WIRE, TOKEN, SLOWER = 20e-3, 5e-3, 0.2e-3, 3e-3
SIZES = {"factor": 5.0, "products": 2e-3, "compiler": SLOWER}
VISITS = 40


def launch(**wrong: float) -> effects.Launch:
    """One launch in which every cause has the size that it should; `wrong` adds seconds to an arm of a cause."""
    rng = np.random.default_rng(3)
    first, second = parallel_link.COMPILERS["jax"]
    slow, busy, extra = (f"planted:{c}" for c in (parallel_link.LINK, parallel_link.BUSY, parallel_link.EXTRA))
    arms: dict[effects.Key, np.ndarray] = {}
    ranks: dict[str, np.ndarray] = {}

    def add(variant: str, wire: float, compute: float, late: float, cause: str) -> None:
        times = {"elided": compute + late, "token": compute + late + TOKEN, "alone": wire + TOKEN}
        times |= {"real": times["token"] + wire, "alone_token": TOKEN}
        for arm, seconds in times.items():
            seconds += wrong.get(f"{cause}_{arm}", 0.0)
            arms[variant, arm] = seconds * (1 + 0.005 * rng.standard_normal(VISITS))
        ranks[variant] = np.stack([np.full(VISITS, compute), np.full(VISITS, compute + late)])

    for compiler, more in ((first, 0.0), (second, SLOWER)):
        add(compiler, WIRE, STEP + more, 0.0, "none")
        add(f"{compiler} {slow}", 5 * WIRE, STEP + more, 0.0, "link")
        add(f"{compiler} {busy}", WIRE, STEP + more, parallel_link.SLOW_RANK_S, "busy")
        add(f"{compiler} {extra}", WIRE, STEP + more + SIZES["products"], 0.0, "extra")
    return effects.Launch(arms, ranks)


def failed(found: effects.Launch) -> set[tuple[str, str]]:
    """(cause, effect) of the statements that do not hold."""
    return {
        (row.planted.partition("=")[0], row.effect)
        for row in (
            parallel_link.rows_of_link("jax", [found], SIZES) + parallel_link.rows_of_ranks("jax", [found], SIZES)
        )
        if not row.met
    }


def test_causes_of_the_right_size_are_found_where_they_are():
    assert failed(launch()) == set()


@pytest.mark.parametrize(
    ("wrong", "statement"),
    [
        ({"link_alone": 3e-3}, ("planted_link", "wire, bytes")),
        ({"extra_real": 2e-3}, ("extra_products", "exposed_bytes")),
        ({"busy_token": 2e-3}, ("slow_rank", "exposed_latency")),
        ({"busy_elided": 1e-3}, ("slow_rank", "imbalance")),
    ],
)
def test_a_cause_that_moves_something_else_is_said(wrong, statement):
    assert statement in failed(launch(**wrong))


def test_every_cause_of_the_gap_has_its_bar():
    assert set(planted_gap.CAUSES) == {parallel_link.EXTRA, parallel_link.BUSY, parallel_link.LINK}
    assert len(set(planted_gap.CAUSES.values())) == 3


def test_overlap_names_effects_that_exist():
    assert set(overlap.NAMES) <= {*effects.DEFINITIONS, effects.SHARE, effects.EFFICIENCY}
