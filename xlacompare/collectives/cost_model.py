"""Fits alpha, beta and gamma to times, and chooses between algorithms where the data can tell them apart.

The launch is the unit of replication: all sizes of a launch share its speed, so the residuals of one fit over all times
are not independent and its intervals too narrow. From three launches on, each launch is fitted by itself with the same
weights, and the interval is Student's t over the launches' parameters. With fewer, the interval is that of one weighted
fit (statsmodels' WLS) and the report says that it knows nothing of other launches.
Weights are inverse variances, from the spread between launches, moderated: relative variances of single cells, which a
few launches estimate badly, are drawn towards their mean (as in Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3(1)).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import statsmodels.api as sm
from scipy import stats

from xlacompare.collectives import cost_formulas
from xlacompare.collectives.cost_fit import Fit, Observation, Residual, Values, row
from xlacompare.core import errors, estimates

MIN_LAUNCHES = 3
# Weight of the mean relative variance, in degrees of freedom.
PRIOR_DF = 4
# Columns that differ by less than this part of their length carry the same information.
COLLINEAR = 1e-6
# A cell agrees with the model within this part, or within two standard errors.
TOLERANCE = 0.1
STANDARD_ERRORS = 2.0
# Difference of Akaike's criterion that decides where there are too few launches for a test (Burnham, Anderson 2002).
AIC_DECIDES = 10.0

Cell = tuple[str, int, float]


@dataclasses.dataclass(frozen=True)
class Data:
    """Times by launch and cell, and what the fit needs of them.

    Attributes:
      cells: (collective, ranks, size), sorted.
      times: (launches, cells) seconds; NaN where a launch lacks a cell.
      variance: (cells,) of one launch's time.
    """

    cells: tuple[Cell, ...]
    times: Values
    variance: Values

    @property
    def launches(self) -> int:
        """Number of launches."""
        return len(self.times)

    def design(self, algorithms: Mapping[str, str], names: tuple[str, ...]) -> Values:
        """(cells, parameters) factors, divided by the standard deviation of the cell's time."""
        rows = [row(name, algorithms[name], n, size, names) for name, n, size in self.cells]
        return np.array(rows) / np.sqrt(self.variance)[:, None]

    def scaled_times(self) -> Values:
        """(launches, cells) times in standard deviations."""
        return self.times / np.sqrt(self.variance)


def fit(observations: Sequence[Observation], algorithms: Mapping[str, str], level: float = 0.95) -> Fit:
    """Fits one alpha, beta and, where the data can tell, gamma to all observations.

    gamma shows only against a collective that does not reduce, or ranks that are no power of two: else it is inside
    beta, and a note says so.

    Args:
      observations: Times, of one framework and transport; sizes, ranks and collectives may be mixed.
      algorithms: Collective -> algorithm, of those that are observed.
      level: Two-sided level of the intervals.

    Raises:
      BadInputError: Too few cells, or no two sizes.
    """
    data = gather(observations)
    names, notes = _names(data, algorithms)
    design = data.design(algorithms, names)
    values, covariance, df, method = _solve(design, data)
    if data.launches < MIN_LAUNCHES:
        notes.append(f"{data.launches} launch(es): the intervals hold within a launch and know nothing of others")
    residuals, misfit_p = _residuals(data, algorithms, names, values)
    chosen = {name: algorithms[name] for name in dict.fromkeys(cell[0] for cell in data.cells)}
    found = Fit(
        chosen, names, tuple(map(float, values)), tuple(tuple(map(float, line)) for line in covariance), df, level,
        method, residuals, misfit_p, _valid(residuals), tuple(notes),
    )  # fmt: skip
    return dataclasses.replace(found, notes=found.notes + tuple(_doubts(found)))


def gather(observations: Sequence[Observation]) -> Data:
    """Sorts times by launch and cell; two times of one launch and cell are averaged.

    Raises:
      BadInputError: No times, or one that is not positive.
    """
    times = collections.defaultdict(list)
    errors_within = collections.defaultdict(list)
    for each in observations:
        if not each.seconds > 0:
            raise errors.BadInputError(f"a time of {each.seconds} s in {each.collective} at {each.size_bytes} bytes")
        if each.n > 1:
            times[each.launch, each.cell].append(each.seconds)
            errors_within[each.cell].append(each.se)
    cells = tuple(sorted({cell for _, cell in times}))
    if not cells:
        raise errors.BadInputError("a cost model needs times of at least two ranks")
    launches = sorted({launch for launch, _ in times})
    grid = np.array([[np.mean(times.get((launch, cell), [np.nan])) for cell in cells] for launch in launches])
    return Data(cells, grid, _variance(grid, [errors_within[cell] for cell in cells]))


def _variance(times: Values, within: list[list[float | None]]) -> Values:
    """(cells,) variance of one launch's time: between launches, else within, else in proportion to the time squared."""
    mean = np.nanmean(times, axis=0)
    if len(times) < MIN_LAUNCHES:
        known = [[se for se in of_cell if se and se > 0] for of_cell in within]
        complete = all(len(some) == len(of_cell) for some, of_cell in zip(known, within, strict=True))
        return np.array([np.mean(np.square(some)) for some in known]) if complete else mean**2
    counts = np.sum(np.isfinite(times), axis=0)
    df = np.maximum(counts - 1, 0)
    relative = np.where(df > 0, np.nansum((times - mean) ** 2, axis=0) / np.maximum(df, 1), 0) / mean**2
    pooled = max(float(np.average(relative, weights=np.maximum(df, 1e-9))), 1e-12)
    return (PRIOR_DF * pooled + df * relative) / (PRIOR_DF + df) * mean**2


def _names(data: Data, algorithms: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    """Parameters that the data can tell apart."""
    names = tuple(
        name for name in ("alpha", "beta", "gamma") if np.any(data.design(algorithms, (name,)) != 0)
    )  # fmt: skip
    notes = []
    if "gamma" in names and _collinear(data.design(algorithms, names)):
        names = names[:-1]
        notes.append("gamma (combining) is inside beta: no collective or number of ranks here tells them apart")
    if len(data.cells) <= len(names) or _collinear(data.design(algorithms, names)):
        raise errors.BadInputError(
            f"{len(data.cells)} sizes and numbers of ranks cannot give {' and '.join(names)}: measure at least "
            f"{len(names) + 1} sizes, a factor of 4 or more apart"
        )
    return names, notes


def _collinear(design: Values) -> bool:
    length = np.linalg.norm(design, axis=0)
    return bool(np.linalg.svd(design / length, compute_uv=False)[-1] < COLLINEAR)


def _solve(design: Values, data: Data) -> tuple[Values, Values, float, str]:
    """Parameters, their covariance, its degrees of freedom and the method."""
    times = data.scaled_times()
    if data.launches >= MIN_LAUNCHES:
        each = per_launch(design, times)
        if len(each) >= MIN_LAUNCHES:
            covariance = np.atleast_2d(np.cov(each, rowvar=False)) / len(each)
            return each.mean(axis=0), covariance, len(each) - 1.0, f"weighted fit per launch, t over {len(each)}"
    have = np.isfinite(times)
    stacked = np.vstack([design[mask] for mask in have])
    # Both sides are divided by the standard deviation already: ordinary least squares on them is the weighted fit.
    result = sm.OLS(times[have], stacked).fit()
    return result.params, result.cov_params(), float(result.df_resid), "one weighted fit, t over residuals"


def per_launch(design: Values, times: Values) -> Values:
    """(launches, parameters) fits of single launches; those with too few cells are left out."""
    found = []
    for scaled in times:
        have = np.isfinite(scaled)
        enough = have.sum() > design.shape[1] and not _collinear(design[have])
        if enough:
            found.append(np.linalg.lstsq(design[have], scaled[have], rcond=None)[0])
    return np.array(found)


def _residuals(
    data: Data, algorithms: Mapping[str, str], names: tuple[str, ...], values: Values
) -> tuple[tuple[Residual, ...], float]:
    """Residuals of the cells' means, and the probability of residuals so large."""
    mean, counts = np.nanmean(data.times, axis=0), np.sum(np.isfinite(data.times), axis=0)
    predicted = data.design(algorithms, names) @ values * np.sqrt(data.variance)
    z = (mean - predicted) / np.sqrt(data.variance / counts)
    df = len(data.cells) - len(names)
    if data.launches < MIN_LAUNCHES and np.allclose(data.variance, mean**2):
        # Variances are known up to a factor only, which the residuals give: nothing is left to test.
        z, misfit_p = z / max(float(np.sqrt(z @ z / df)), 1e-300), float("nan")
    else:
        misfit_p = float(stats.chi2.sf(z @ z, df))
    found = [
        Residual(*cell, float(t), float(p), float((t - p) / p) if p > 0 else float("inf"), float(each))
        for cell, t, p, each in zip(data.cells, mean, predicted, z, strict=True)
    ]
    return tuple(found), misfit_p


def _valid(residuals: Sequence[Residual]) -> tuple[float, float] | None:
    """The widest run of sizes at which the model agrees with every measurement."""
    by_size: dict[float, bool] = {}
    for each in sorted(residuals, key=lambda each: each.size_bytes):
        agrees = abs(each.relative) <= TOLERANCE or abs(each.z) <= STANDARD_ERRORS
        by_size[each.size_bytes] = by_size.get(each.size_bytes, True) and agrees
    runs: list[list[float]] = [[]]
    for size, agrees in by_size.items():
        if agrees:
            runs[-1].append(size)
        elif runs[-1]:
            runs.append([])
    # By the number of sizes, the larger ones where two runs are equally long.
    widest = max(runs, key=lambda run: (len(run), run[-1:]))
    return (widest[0], widest[-1]) if len(widest) > 1 else None


def _doubts(found: Fit) -> list[str]:
    """What makes the parameters doubtful as such."""
    notes = []
    sizes = [each.size_bytes for each in found.residuals]
    if found.valid_bytes != (min(sizes), max(sizes)) and len(set(sizes)) > 1:
        span = "no two sizes" if found.valid_bytes is None else "{:.0f} to {:.0f} bytes only".format(*found.valid_bytes)
        notes.append(f"the model holds for {span}; other sizes were measured and do not lie on it")
    for name in found.names:
        value: estimates.Estimate | None = found.parameter(name)
        if value and value.high < 0:
            notes.append(f"{name} is negative: this algorithm does not describe the times")
    return notes


def candidates(collective: str) -> tuple[str, ...]:
    """Algorithms that are tried for a collective."""
    return tuple(cost_formulas.ALGORITHMS.get(collective, {}))
