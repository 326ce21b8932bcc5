"""Several straight pieces where one does not hold: a cache that ends, or a library that switches its algorithm."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from xlacompare.collectives import cost_model
from xlacompare.collectives.cost_fit import Fit, Observation, Values

MAX_REGIMES = 3


def regimes(observations: Sequence[Observation], algorithms: Mapping[str, str], level: float = 0.95,
            at_most: int = MAX_REGIMES) -> tuple[Fit, ...]:  # fmt: skip
    """Fits per range of sizes, the fewest that describe the times; one where one line is enough.

    Every way of cutting the sizes into ranges is compared by Schwarz's criterion (BIC): the squared residuals of the
    cells' means in standard errors, plus the logarithm of the number of cells for each parameter and each cut. A cut
    that was searched for makes the intervals somewhat too narrow, so use the pieces to describe, not to test.

    Args:
      observations: Times of one framework and transport.
      algorithms: Collective -> algorithm, the same in all ranges: the lines differ by their parameters.
      level: Two-sided level of the intervals.
      at_most: Largest number of ranges.

    Returns:
      Fits in order of size; each one's `valid_bytes` lies in its own range.

    Raises:
      BadInputError: Too few cells for one fit.
    """
    whole = cost_model.fit(observations, algorithms, level)
    sizes = sorted({each.size_bytes for each in whole.residuals})
    cuts = _best_cuts(cost_model.gather(observations), algorithms, whole.names, sizes, at_most)
    if len(cuts) == 1:
        return (whole,)
    ranges = [set(sizes[first:last]) for first, last in cuts]
    return tuple(
        cost_model.fit([each for each in observations if each.size_bytes in some], algorithms, level) for some in ranges
    )


def _best_cuts(
    data: cost_model.Data, algorithms: Mapping[str, str], names: tuple[str, ...], sizes: list[float], at_most: int
) -> list[tuple[int, int]]:
    """(first, one past the last) index into the sizes of each range."""
    mean = np.nanmean(data.times, axis=0)
    deviation = np.sqrt(data.variance / np.sum(np.isfinite(data.times), axis=0))
    design = data.design(algorithms, names) * np.sqrt(data.variance)[:, None] / deviation[:, None]
    of_size = np.searchsorted(sizes, [size for _, _, size in data.cells])
    penalty = math.log(len(data.cells))

    @functools.cache
    def cost(first: int, last: int) -> float:
        inside = (of_size >= first) & (of_size < last)
        return _squares(design[inside], (mean / deviation)[inside]) + penalty * len(names)

    @functools.cache
    def best(last: int, number: int) -> tuple[float, tuple[tuple[int, int], ...]]:
        """Cheapest way to cut the sizes before `last` into so many ranges."""
        if number == 1:
            return cost(0, last), ((0, last),)
        ways: list[tuple[float, tuple[tuple[int, int], ...]]] = [(math.inf, ((0, last),))]
        for first in range(1, last):
            before, ranges = best(first, number - 1)
            ways.append((before + cost(first, last) + penalty, (*ranges, (first, last))))
        return min(ways)

    return list(min(best(len(sizes), number) for number in range(1, at_most + 1))[1])


def _squares(design: Values, target: Values) -> float:
    """Squared residuals in standard errors; infinite where nothing is left to check the line by."""
    if (
        len(target) <= design.shape[1]
        or np.linalg.matrix_rank(design / np.linalg.norm(design, axis=0)) < design.shape[1]
    ):
        return math.inf
    values, *_ = np.linalg.lstsq(design, target, rcond=None)
    return float(np.sum((target - design @ values) ** 2))
