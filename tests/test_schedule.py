"""Balance of the orders."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest

from xlacompare.core import schedule


def followers(rows: list[tuple[int, ...]]) -> collections.Counter[tuple[int, int]]:
    return collections.Counter(pair for row in rows for pair in itertools.pairwise(row))


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7, 8])
def test_williams_is_balanced(k: int) -> None:
    rows = schedule.williams(k)
    repeats = 2 if k % 2 else 1
    assert len(rows) == repeats * k
    assert all(sorted(row) == list(range(k)) for row in rows)
    for position in range(k):
        counts = collections.Counter(row[position] for row in rows)
        assert set(counts.values()) == {repeats}
    found = followers(rows)
    assert len(found) == k * (k - 1)
    assert set(found.values()) == {repeats}


def test_williams_of_one_and_none() -> None:
    assert schedule.williams(1) == [(0,)]
    with pytest.raises(ValueError, match="arm"):
        schedule.williams(0)


def test_abba() -> None:
    orders = schedule.abba(200, np.random.default_rng(0))
    assert len(orders) == 200
    quads = list(zip(orders[::2], orders[1::2]))
    assert set(quads) == {((0, 1), (1, 0)), ((1, 0), (0, 1))}
    share = sum(first == (0, 1) for first, _ in quads) / len(quads)
    assert 0.3 < share < 0.7
    assert len(schedule.abba(5, np.random.default_rng(0))) == 5


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_orders_are_balanced_over_full_squares(k: int) -> None:
    arms = "abcde"[:k]
    rounds = 4 * k * (k - 1) if k > 1 else 3
    rows = list(schedule.orders(arms, rounds, 7))
    assert len(rows) == rounds
    assert all(sorted(row) == sorted(arms) for row in rows)
    for position in range(k):
        counts = collections.Counter(row[position] for row in rows)
        assert set(counts.values()) == {rounds // k}
    found = collections.Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert len(set(found.values())) <= 1


def test_orders_are_reproducible_and_differ_by_seed() -> None:
    one, again, other = (list(schedule.orders([1, 2, 3, 4], 9, seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert list(schedule.orders([1], 0, 1)) == []


def test_orders_need_an_arm() -> None:
    with pytest.raises(ValueError, match="arm"):
        next(schedule.orders([], 3, 0))


def test_orders_take_a_range() -> None:
    assert len(list(schedule.orders(range(3), 5, 0))) == 5
