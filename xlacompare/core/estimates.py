"""Estimates with t-intervals: over launches, paired or not, and sums of them. Blocks of one process: `pairs`.

Between processes the launch is the only unit of replication. Nothing is averaged that is a rate, and no sample is
dropped. `experiments/error_rates.py` shows how often these intervals are wrong.
Sources: Student 1908 (t), Welch 1947 and Satterthwaite 1946 (degrees of freedom of sums of variances).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Scale = Literal["log", "linear"]
Values = NDArray[np.float64]

MIN_FOR_P99 = 1000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean effect with its interval.

    Attributes:
      mean, low, high: Seconds (scale "linear"), or the natural logarithm of a ratio (scale "log"). The interval is
        unbounded where nothing is known about the spread (one value).
      level: Two-sided level of the interval, e.g. 0.95.
      n: Units behind it (launches, or pairs of blocks); for two independent samples the smaller one.
      df: Degrees of freedom of the t-distribution; 0 where the spread is unknown.
      scale: "log" or "linear".
      method: What was done, for the report.
      se: Standard error of `mean`.
    """

    mean: float
    low: float
    high: float
    level: float
    n: int
    df: float
    scale: Scale
    method: str
    se: float

    @property
    def half_width(self) -> float:
        """Half of the interval, in the unit of `mean`."""
        return math.inf if self.df <= 0 else (self.high - self.low) / 2

    @property
    def unit_sd(self) -> float:
        """Standard deviation of one unit, for `power`."""
        return self.se * math.sqrt(self.n)

    def ratio(self) -> tuple[float, float, float]:
        """Ratio, lower and upper end of its interval.

        Raises:
          ValueError: The scale is not "log".
        """
        if self.scale != "log":
            raise ValueError("only an estimate on the log scale is a ratio; this one is a difference")
        return math.exp(self.mean), _exp(self.low), _exp(self.high)

    def at_level(self, level: float) -> Estimate:
        """The same estimate with an interval of another level."""
        return estimate(self.mean, self.se, self.df, self.n, level, self.scale, self.method)

    def inverse(self) -> Estimate:
        """The effect seen from the other side: -mean, that is 1/ratio on the log scale."""
        return dataclasses.replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def tail(self, null: float) -> float:
        """P(T >= (mean - null) / se): the one-sided p-value against an effect of at most `null`."""
        if self.df <= 0 or not math.isfinite(self.se):
            return 0.5
        if self.se == 0:
            return 0.5 if self.mean == null else float(self.mean < null)
        return float(special.stdtr(self.df, -(self.mean - null) / self.se))

    def p_value(self) -> float:
        """Two-sided p-value of no effect; 1 where the spread is unknown."""
        upper = self.tail(0.0)
        return min(1.0, 2 * min(upper, 1 - upper))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report or a record."""
        return dataclasses.asdict(self)


def estimate(mean: float, se: float, df: float, n: int, level: float, scale: Scale, method: str) -> Estimate:
    """An estimate with its t-interval.

    Raises:
      ValueError: The level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
    half = math.inf
    if df > 0 and math.isfinite(se):
        half = float(special.stdtrit(df, 0.5 + level / 2)) * se
    return Estimate(float(mean), float(mean) - half, float(mean) + half, level, n, float(df), scale, method, float(se))


def t_interval(values: ArrayLike, level: float = 0.95, scale: Scale = "linear", method: str = "t") -> Estimate:
    """Student t over independent values; on scale "log" the values are logarithms already.

    One value gives an unbounded interval.
    """
    x = checked(values)
    return estimate(float(x.mean()), _standard_error(x), x.size - 1, x.size, level, scale, method)


def paired_t(a: ArrayLike, b: ArrayLike, level: float = 0.95, scale: Scale = "linear") -> Estimate:
    """a - b ("linear") or a / b ("log") over launches that were interleaved in pairs.

    Args:
      a: Mean seconds a step of each launch, [launches].
      b: The same of the other side, in the same order.
      level: Two-sided level.
      scale: "linear" (seconds) or "log" (ratio).
    """
    x, y = paired(a, b)
    return t_interval(_on(x, scale) - _on(y, scale), level, scale, "paired t over launches")


def paired_t_log(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Estimate:
    """Ratio a / b over launches paired by `paired_t`."""
    return paired_t(a, b, level, "log")


def welch(a: ArrayLike, b: ArrayLike, level: float = 0.95, scale: Scale = "linear") -> Estimate:
    """a - b ("linear") or a / b ("log") over launches that were not paired; unequal numbers and spreads allowed."""
    x, y = _on(checked(a), scale), _on(checked(b), scale)
    method, mean, n = "Welch t over launches", float(x.mean() - y.mean()), min(x.size, y.size)
    if n < 2:
        return estimate(mean, math.inf, 0, n, level, scale, method)
    variances = [float(x.var(ddof=1)) / x.size, float(y.var(ddof=1)) / y.size]
    df = satterthwaite(variances, [x.size - 1, y.size - 1])
    return estimate(mean, math.sqrt(sum(variances)), df, n, level, scale, method)


def welch_log(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Estimate:
    """Ratio a / b over launches that were not paired, by `welch`."""
    return welch(a, b, level, "log")


def combine(terms: Sequence[tuple[float, Estimate]], level: float = 0.95) -> Estimate:
    """Weighted sum of independent estimates, df by Satterthwaite: bars that are differences of differences.

    Terms that share samples are not independent: combine their samples first.
    """
    mean = sum(weight * term.mean for weight, term in terms)
    n, scale = min(term.n for _, term in terms), terms[0][1].scale
    if any(term.scale != scale for _, term in terms):
        raise ValueError("ratios and differences cannot be added")
    if any(term.df <= 0 for _, term in terms):
        return estimate(mean, math.inf, 0, n, level, scale, "sum of estimates")
    variances = [(weight * term.se) ** 2 for weight, term in terms]
    df = satterthwaite(variances, [term.df for _, term in terms])
    return estimate(mean, math.sqrt(sum(variances)), df, n, level, scale, "sum of estimates")


def satterthwaite(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent variances; their sum where there is no spread at all."""
    total = sum(variances)
    if total == 0:
        return float(sum(dfs))
    return 1 / sum((v / total) ** 2 / df for v, df in zip(variances, dfs, strict=True))


@dataclasses.dataclass(frozen=True)
class Percentiles:
    """Description of block times in seconds; says nothing about their error.

    Attributes:
      p99: None below `MIN_FOR_P99` values: of fewer, the slowest percent is fewer than ten values.
    """

    n: int
    mean: float
    median: float
    p90: float
    p99: float | None
    minimum: float
    maximum: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report or a record."""
        return dataclasses.asdict(self)


def percentiles(values: ArrayLike) -> Percentiles:
    """Mean (the estimand) beside median and percentiles (linear interpolation)."""
    x = checked(values)
    median, p90, p99 = (float(q) for q in np.quantile(x, (0.5, 0.9, 0.99)))
    high = p99 if x.size >= MIN_FOR_P99 else None
    return Percentiles(x.size, float(x.mean()), median, p90, high, float(x.min()), float(x.max()))


def checked(values: ArrayLike) -> Values:
    """Finite values, [n], n at least 1.

    Raises:
      ValueError: They are not.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a list of at least one value, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("a value is not finite; a failed sample is no sample, leave its block out before this")
    return x


def paired(a: ArrayLike, b: ArrayLike) -> tuple[Values, Values]:
    """Both sides checked, and of the same number."""
    x, y = checked(a), checked(b)
    if x.size != y.size:
        raise ValueError(f"pairs need as many values on both sides, got {x.size} and {y.size}")
    return x, y


def positive(x: Values) -> Values:
    """The values, all positive.

    Raises:
      ValueError: One is not.
    """
    if (x <= 0).any():
        raise ValueError("a time is zero or negative; a ratio needs positive times")
    return x


def _on(x: Values, scale: Scale) -> Values:
    return x if scale == "linear" else np.log(positive(x))


def _standard_error(x: Values) -> float:
    return math.inf if x.size < 2 else float(x.std(ddof=1)) / math.sqrt(x.size)


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)
