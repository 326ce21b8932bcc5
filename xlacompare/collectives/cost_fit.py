"""A fitted cost model: parameters with intervals, predictions, residuals and the sizes for which it holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlacompare.collectives import bandwidth, cost_formulas, table
from xlacompare.core import estimates

Values = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Observation:
    """One time of one launch.

    Attributes:
      collective: Name in the table.
      n: Ranks of a group.
      size_bytes: Size in the table's meaning, pad included; 0 for a barrier. Where the wire carries another type, the
        lowered size.
      seconds: Mean time of one run, the maximum over ranks.
      launch: Number of the launch; replicates are independent between launches only.
      se: Standard error inside the launch, where known; only used where there are fewer than three launches.
    """

    collective: str
    n: int
    size_bytes: float
    seconds: float
    launch: int = 0
    se: float | None = None

    @property
    def cell(self) -> tuple[str, int, float]:
        """What replicates share."""
        return self.collective, self.n, self.size_bytes


@dataclasses.dataclass(frozen=True)
class Residual:
    """Fit against measurement in one cell.

    Attributes:
      seconds: Mean over launches.
      predicted_s: The model's.
      relative: (seconds - predicted) / predicted.
      z: The difference in standard errors of the mean.
    """

    collective: str
    n: int
    size_bytes: float
    seconds: float
    predicted_s: float
    relative: float
    z: float


@dataclasses.dataclass(frozen=True)
class Fit:
    """t = alpha * steps + beta * bytes (+ gamma * combined bytes), fitted.

    Attributes:
      algorithms: Collective -> algorithm whose steps and bytes were taken.
      names: Parameters that were fitted, of "alpha", "beta", "gamma".
      values: Theirs: seconds, seconds per byte sent, seconds per byte combined.
      covariance: Of the values.
      df: Degrees of freedom of the intervals.
      level: Two-sided level of the intervals.
      method: How the intervals were made.
      residuals: One per cell, by collective, ranks and size.
      misfit_p: Probability of residuals as large as these if the model were true.
      valid_bytes: Smallest and largest size between which the model holds at every measured size, or None.
      notes: What a reader must know, one line each.
    """

    algorithms: Mapping[str, str]
    names: tuple[str, ...]
    values: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    df: float
    level: float
    method: str
    residuals: tuple[Residual, ...]
    misfit_p: float
    valid_bytes: tuple[float, float] | None
    notes: tuple[str, ...] = ()

    def parameter(self, name: str) -> estimates.Estimate | None:
        """A parameter with its interval; None where it was not fitted."""
        if name not in self.names:
            return None
        return self.combination([float(each == name) for each in self.names])

    @property
    def alpha(self) -> estimates.Estimate | None:
        """Seconds per message."""
        return self.parameter("alpha")

    @property
    def beta(self) -> estimates.Estimate | None:
        """Seconds per byte sent; where `notes` say so, with gamma inside."""
        return self.parameter("beta")

    @property
    def gamma(self) -> estimates.Estimate | None:
        """Seconds per byte combined."""
        return self.parameter("gamma")

    @property
    def link_bandwidth(self) -> bandwidth.Rate | None:
        """Bytes/s that a rank sends in a long transfer, 1 / beta."""
        beta = self.beta
        return bandwidth.rate(1, beta.mean, beta.low, beta.high) if beta and beta.mean > 0 else None

    def bus_bandwidth(self, collective: str, n: int) -> bandwidth.Rate | None:
        """busbw in bytes/s that long transfers approach, whichever the algorithm; None where time does not grow."""
        slope = self.slope(collective, n)
        factor = table.get(collective).bus_factor(n)
        return bandwidth.rate(factor, slope.mean, slope.low, slope.high) if slope.mean > 0 else None

    def intercept(self, collective: str, n: int) -> estimates.Estimate:
        """Seconds of an empty run; the same for all algorithms that fit equally well on one number of ranks."""
        return self.combination(self.row(collective, n, 0))

    def slope(self, collective: str, n: int) -> estimates.Estimate:
        """Seconds per byte of size."""
        return self.combination(self.row(collective, n, 1) - self.row(collective, n, 0))

    def predict(self, collective: str, n: int, size_bytes: float) -> estimates.Estimate:
        """Seconds of a run, with the interval of the model's mean."""
        return self.combination(self.row(collective, n, size_bytes))

    def holds(self, size_bytes: float) -> bool:
        """Whether a prediction at this size lies inside the validity range."""
        return self.valid_bytes is not None and self.valid_bytes[0] <= size_bytes <= self.valid_bytes[1]

    def row(self, collective: str, n: int, size_bytes: float) -> Values:
        """Factors of the parameters for one run."""
        return row(collective, self.algorithms[collective], n, size_bytes, self.names)

    def combination(self, factors: Any) -> estimates.Estimate:
        """A linear combination of the parameters, with its interval."""
        c = np.asarray(factors, dtype=np.float64)
        variance = float(c @ np.asarray(self.covariance) @ c)
        mean, count = float(c @ np.asarray(self.values)), max(1, len(self.residuals))
        se = math.sqrt(max(variance, 0.0))
        return estimates.estimate(mean, se, self.df, count, self.level, "linear", self.method)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report or a record."""
        found = dataclasses.asdict(self)
        parameters = {name: self.parameter(name) for name in self.names}
        return {**found, "parameters": {name: value and value.to_dict() for name, value in parameters.items()}}


def row(collective: str, algorithm: str, n: int, size_bytes: float, names: tuple[str, ...]) -> Values:
    """Factors of the named parameters for one run: steps, bytes sent, bytes combined."""
    cost = cost_formulas.terms(collective, algorithm, n)
    factors = {"alpha": cost.steps, "beta": cost.sent * size_bytes, "gamma": cost.combined * size_bytes}
    return np.array([factors[name] for name in names], dtype=np.float64)
