"""Balanced orders of arms: ABBA for two, Williams squares for more.

In a Williams square every arm stands once at every position and follows every other arm equally often, so that drift
and what one arm leaves behind (caches, clock frequency) fall on all alike. Source: Williams 1949.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

Arm = TypeVar("Arm")
MIN_VISITS, MAX_VISITS = 4, 60


def abba(n_pairs: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Orders of arms 0 and 1 in consecutive pairs: every two pairs are ABBA or BAAB by a fair coin.

    The coin is what keeps pairs uncorrelated whatever the noise of the blocks (`pairs`).
    """
    orders: list[tuple[int, int]] = []
    while len(orders) < n_pairs:
        first = (0, 1) if rng.random() < 0.5 else (1, 0)
        orders += [first, (first[1], first[0])]
    return orders[:n_pairs]


def williams(k: int) -> list[tuple[int, ...]]:
    """Orders of k arms, balanced for first-order carry-over: k rows for even k, 2k rows for odd k.

    Every arm is followed by every other one equally often: once for even k, twice for odd k.
    """
    if k < 1:
        raise ValueError(f"an order needs an arm, got {k}")
    if k == 1:
        return [(0,)]
    zigzag = [0]  # 0, 1, k-1, 2, k-2, ...: its consecutive differences modulo k are all different for even k
    for step in range(1, k):
        zigzag.append((step + 1) // 2 if step % 2 else k - step // 2)
    rows = [tuple((entry + shift) % k for entry in zigzag) for shift in range(k)]
    return rows + [row[::-1] for row in rows] if k % 2 else rows


def orders(arms: Sequence[Arm], rounds: int, seed: int) -> Iterator[tuple[Arm, ...]]:
    """Yields for each round the order in which to visit the arms.

    Full squares follow one another, each with its rows shuffled and its labels assigned afresh; the last one is cut
    where the rounds end. Two arms: ABBA or BAAB per two rounds.

    Args:
      arms: The arms, any values.
      rounds: Number of orders.
      seed: Same seed, same orders.
    """
    rng = np.random.default_rng(seed)
    if not arms:
        raise ValueError("an order needs an arm")
    done = 0
    while done < rounds:
        for row in _square(len(arms), rng)[: rounds - done]:
            done += 1
            yield tuple(arms[index] for index in row)


def number_of_visits(cell_s: float, groups: Sequence[Sequence[float]]) -> int:
    """Visits that give each cell about `cell_s` seconds of timed blocks; fixed before the first sample.

    Args:
      cell_s: Seconds in timed blocks, per cell.
      groups: Expected seconds of a block of each cell, by what is visited; a visit has two blocks of every cell.
    """
    per_visit = [2 * sum(group) / len(group) for group in groups]
    wanted = cell_s * len(groups) / max(sum(per_visit), 1e-9)
    return round(min(MAX_VISITS, max(MIN_VISITS, wanted)))


def _square(k: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    if k == 2:
        return list(abba(2, rng))
    rows, labels = williams(k), rng.permutation(k)
    return [tuple(int(labels[entry]) for entry in rows[index]) for index in rng.permutation(len(rows))]
