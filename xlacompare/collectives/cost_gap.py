"""What two cost models say of each other: where their times cross, and how much of a gap is latency or bandwidth.

A floor is the cost of the same transport without the framework (a bare loop); what a framework's time has above it is
the framework's share: dispatch and run-time in the part that does not grow with size, copies and lowering in the part
that does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from xlacompare.collectives.cost_fit import Fit, Observation, Values, row
from xlacompare.core import estimates


@dataclasses.dataclass(frozen=True)
class Crossover:
    """The size at which two costs are equal.

    Attributes:
      size_bytes: The size, or None where the costs do not cross at a positive size, or the data cannot say.
      low, high: Interval of the size; infinite where it is open above.
      inside: The size lies in the validity range of every fit that it comes from.
      text: One line for a report.
    """

    size_bytes: float | None
    low: float
    high: float
    inside: bool
    text: str


@dataclasses.dataclass(frozen=True)
class Gap:
    """How much longer a takes than b.

    Attributes:
      latency: Seconds at size 0: dispatch, latency, run-time.
      per_byte: Seconds per byte of size: bandwidth, copies, lowering.
      text: One line for a report.
    """

    latency: estimates.Estimate
    per_byte: estimates.Estimate
    text: str


@dataclasses.dataclass(frozen=True)
class Share:
    """What a framework's time has above the floor, in one cell.

    Attributes:
      above: Seconds above the floor, with interval.
      part: above / time; negative where the floor is the slower one.
      method: "paired by launch", or "against the fitted floor".
    """

    collective: str
    n: int
    size_bytes: float
    seconds: float
    above: estimates.Estimate
    part: float
    method: str


def crossover(a: Fit, b: Fit, collective: str, n: int, names: tuple[str, str] = ("first", "second")) -> Crossover:
    """Size at which two fits (frameworks, transports) predict the same time on n ranks.

    Args:
      a: One fit.
      b: Another, of other observations.
      collective: Name in the table; both fits have it.
      n: Ranks.
      names: What to call them in the text.
    """
    values, covariance, df = _stacked(a, b)
    at_zero = np.concatenate([a.row(collective, n, 0), -b.row(collective, n, 0)])
    at_one = np.concatenate([a.row(collective, n, 1), -b.row(collective, n, 1)])
    found = fieller(-at_zero, at_one - at_zero, values, covariance, df, a.level)
    return _crossover(found, (a, b), names, float(at_zero @ values))


def crossover_of_algorithms(found: Fit, collective: str, n: int, first: str, second: str) -> Crossover:
    """Size at which two algorithms would cost the same on n ranks, with the alpha and beta that were fitted.

    Args:
      found: A fit of any algorithm, or of other collectives of the same transport.
      collective: Name in the table.
      n: Ranks.
      first: One algorithm.
      second: The other.
    """
    at_zero, at_one = (
        row(collective, first, n, size, found.names) - row(collective, second, n, size, found.names) for size in (0, 1)
    )
    values, covariance = np.array(found.values), np.array(found.covariance)
    ratio = fieller(-at_zero, at_one - at_zero, values, covariance, found.df, found.level)
    return _crossover(ratio, (found,), (first, second), at_zero @ values)


def fieller(
    numerator: Values, denominator: Values, values: Values, covariance: Values, df: float, level: float
) -> tuple[float, float, float] | None:
    """Ratio of two linear combinations of parameters, with Fieller's interval (Fieller 1954, J. R. Stat. Soc. B 16(2)).

    Args:
      numerator: (parameters,) factors.
      denominator: (parameters,) factors.
      values: (parameters,).
      covariance: (parameters, parameters) of the values.
      df: Degrees of freedom.
      level: Two-sided level.

    Returns:
      Ratio, lower and upper end; None where the denominator's interval holds 0, so that the ratio is unbounded.
    """
    top, bottom = float(numerator @ values), float(denominator @ values)
    v_top, v_both, v_bottom = (
        float(x @ covariance @ y)
        for x, y in ((numerator, numerator), (numerator, denominator), (denominator, denominator))
    )
    t2 = float(stats.t.ppf(0.5 + level / 2, df)) ** 2
    a, b, c = bottom**2 - t2 * v_bottom, top * bottom - t2 * v_both, top**2 - t2 * v_top
    if a <= 1e-12 * bottom**2 or bottom == 0:
        return None
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return top / bottom, (b - root) / a, (b + root) / a


def gap(a: Fit, b: Fit, collective: str, n: int, names: tuple[str, str] = ("first", "second")) -> Gap:
    """Difference of two fits of one collective, in its part at size 0 and its part per byte.

    Args:
      a: The one whose excess is meant.
      b: The other, of other observations.
      collective: Name in the table; both fits have it.
      n: Ranks.
      names: What to call them in the text.
    """
    latency = _difference(a.intercept(collective, n), b.intercept(collective, n))
    per_byte = _difference(a.slope(collective, n), b.slope(collective, n))
    said = []
    for value, what, unit in (
        (latency, "latency (dispatch)", "us"),
        (per_byte, "bandwidth (lowering, copies)", "us/MiB"),
    ):
        scale = 1e6 if unit == "us" else 1e6 * 2**20
        if value.low > 0 or value.high < 0:
            slower = names[0] if value.mean > 0 else names[1]
            said.append(f"{what}: {slower} takes {abs(value.mean) * scale:.3g} {unit} more")
    return Gap(latency, per_byte, "; ".join(said) or "no gap in latency or bandwidth is resolved")


def shares(observations: Sequence[Observation], floor: Sequence[Observation] | Fit) -> list[Share]:
    """What each cell's time has above the floor.

    Args:
      observations: A framework's times.
      floor: Times of the bare transport: cells in common are paired by launch. Or its fit, where sizes or launches
        differ; then outside the fit's validity range there is no share.
    """
    times = _by_launch(observations)
    bare = {} if isinstance(floor, Fit) else _by_launch(floor)
    found = []
    for cell in sorted(times):
        if isinstance(floor, Fit):
            above, method = _above_fit(times[cell], floor, cell), "against the fitted floor"
        else:
            above, method = _above_times(times[cell], bare.get(cell, {})), "paired by launch"
        if above is not None:
            mean = float(np.mean(list(times[cell].values())))
            found.append(Share(*cell, mean, above, above.mean / mean, method))
    return found


def _by_launch(observations: Sequence[Observation]) -> dict[tuple[str, int, float], dict[int, float]]:
    found: dict[tuple[str, int, float], dict[int, float]] = {}
    for each in observations:
        found.setdefault(each.cell, {})[each.launch] = each.seconds
    return found


def _above_times(times: dict[int, float], bare: dict[int, float]) -> estimates.Estimate | None:
    common = sorted(set(times) & set(bare))
    if not common:
        return None
    return estimates.t_interval([times[launch] - bare[launch] for launch in common], method="paired by launch")


def _above_fit(times: dict[int, float], floor: Fit, cell: tuple[str, int, float]) -> estimates.Estimate | None:
    collective, n, size = cell
    if not floor.holds(size) or collective not in floor.algorithms:
        return None
    return _difference(estimates.t_interval(list(times.values()), floor.level), floor.predict(collective, n, size))


def _difference(a: estimates.Estimate, b: estimates.Estimate) -> estimates.Estimate:
    """a - b of independent estimates; degrees of freedom of Welch and Satterthwaite."""
    va, vb = a.se**2, b.se**2
    if not (math.isfinite(va + vb) and a.df > 0 and b.df > 0):
        df, se = 0.0, math.inf
    else:
        spread = va**2 / a.df + vb**2 / b.df
        df, se = ((va + vb) ** 2 / spread if spread > 0 else min(a.df, b.df)), math.sqrt(va + vb)
    return estimates.estimate(a.mean - b.mean, se, df, min(a.n, b.n), a.level, "linear", "difference, Welch's t")


def _stacked(a: Fit, b: Fit) -> tuple[Values, Values, float]:
    """Parameters of both, their covariance, and the smaller degrees of freedom, which is on the safe side."""
    size = len(a.values)
    covariance = np.zeros((size + len(b.values),) * 2)
    covariance[:size, :size], covariance[size:, size:] = a.covariance, b.covariance
    return np.array([*a.values, *b.values]), covariance, min(a.df, b.df)


def _crossover(
    found: tuple[float, float, float] | None, fits: Sequence[Fit], names: tuple[str, str], at_zero: float
) -> Crossover:
    """In words; `at_zero` is the first's time less the second's at size 0."""
    if found is None:
        return Crossover(None, 0.0, math.inf, False, f"{names[0]} and {names[1]}: no crossover is resolved")
    size, low, high = found
    if high <= 0:
        faster = names[0] if at_zero < 0 else names[1]
        return Crossover(None, 0.0, math.inf, False, f"{faster} is faster at every size")
    if size <= 0:
        return Crossover(
            None, 0.0, high, False, f"{names[0]} and {names[1]}: a crossover, if any, is below {high:.4g} B"
        )
    first, second = names if at_zero < 0 else names[::-1]
    inside = all(fit.holds(size) for fit in fits)
    text = f"{first} is faster below {size:.4g} bytes [{max(low, 0):.4g}, {high:.4g}], {second} above"
    if not inside:
        text += "; outside the sizes for which the model holds"
    return Crossover(size, max(low, 0.0), high, inside, text)
