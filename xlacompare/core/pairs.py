"""Effects between two arms of one process: t over pairs of neighbouring blocks, and over the launches that had them.

The launch cancels within a pair, and slow drift within ABBA; randomised ABBA orders leave little correlation between
the pairs (real pairs on a 2-core machine: -0.2 to 0.3 at lag 1, where the blocks of an arm had 0.2 to 0.96).
Noise that one arm has and the other has not, and that lasts longer than a few pairs, is not seen here: it is what
further launches are for.
Sources: Kendall 1954 (bias of the lag-1 autocorrelation); Cochran 1977, section 6 (error of a ratio of means).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from numpy.typing import ArrayLike

from xlacompare.core import estimates

Pair = tuple[ArrayLike, ArrayLike]

# Below this many pairs a lag-1 correlation cannot be estimated and is taken as 0.
MIN_FOR_CORRELATION = 8
# Less correlation than this is not believed. Simulated false rates at nominal 5% (30 to 160 pairs, with and without
# spikes): 3.4-6.1% for true correlations of -0.1 to 0.5, 1.2-1.8% at -0.3. A floor of 0 gave 2.4-6.1% and 8% wider
# intervals at 0; a floor of -0.3 gave 3.3-6.2% down to -0.3, but more on the heavy tails of real pairs. Batch means
# gave up to 11-20%; cosine (EWC) variances 4-6%, but 10-40% wider intervals.
MIN_CORRELATION, MAX_CORRELATION = -0.1, 0.95


def autocorrelation(values: ArrayLike) -> float:
    """Lag-1 autocorrelation about the sample mean, uncorrected; 0 for fewer than 3 values or no spread."""
    x = estimates.checked(values)
    centred = x - x.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if x.size > 2 and total > 0 else 0.0


def _correlation(x: estimates.Values) -> float:
    """Lag-1 autocorrelation, corrected for its bias -(1 + 4 rho) / n (Kendall 1954), within the believed range."""
    if x.size < MIN_FOR_CORRELATION:
        return 0.0
    corrected = (x.size * autocorrelation(x) + 1) / (x.size - 4)
    return min(MAX_CORRELATION, max(MIN_CORRELATION, corrected))


def effective_n(values: ArrayLike) -> float:
    """Number of independent values with the same information, n (1 - r) / (1 + r), within [min(2, n), n]."""
    x = estimates.checked(values)
    return min(float(x.size), _information(x))


def _information(x: estimates.Values) -> float:
    """Effective number that may exceed n: negative correlation makes the mean better than independent values do."""
    r = _correlation(x)
    return max(min(2.0, x.size), x.size * (1 - r) / (1 + r))


def _mean_variance(x: estimates.Values) -> float:
    """Variance of the mean of an autocorrelated series; infinite for one value.

    The sample variance of correlated values is too small by 1 - 1/n_eff: hence the division by n_eff - 1.
    """
    if x.size < 2:
        return math.inf
    return float(x.var()) / (_information(x) - 1)


def block_pair_interval(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, scale: estimates.Scale = "log"
) -> estimates.Estimate:
    """Effect between two arms of one process: t over pairs of neighbouring blocks, with the effective number of pairs.

    The launch cancels within a pair, slow drift within ABBA. On scale "log" the estimate is the logarithm of mean(a) /
    mean(b), the estimand (a mean of logarithms would play stragglers down), its error by the delta method: the values
    are a_i / mean(a) - b_i / mean(b). Speaks for this launch (this executable) only.

    Args:
      a: Seconds a step of the blocks of arm a, [pairs], in the order of time.
      b: The same of arm b; element i was measured next to element i of a.
      level: Two-sided level.
      scale: "log" (ratio) or "linear" (seconds).
    """
    x, y = estimates.paired(a, b)
    if scale == "log":
        logarithms = [math.log(side.mean()) for side in (estimates.positive(x), estimates.positive(y))]
        mean, noise = logarithms[0] - logarithms[1], x / x.mean() - y / y.mean()
    else:
        mean, noise = float(x.mean() - y.mean()), x - y
    df = effective_n(noise) - 1
    return estimates.estimate(mean, math.sqrt(_mean_variance(noise)), df, x.size, level, scale, "t over block pairs")


def pool(launches: Sequence[estimates.Estimate], level: float = 0.95) -> estimates.Estimate:
    """One effect from the estimates of several launches: their mean, with the wider of two intervals.

    Within: the launches' own errors, df by Satterthwaite. Between: t over the launches. The wider one never covers
    less than the second alone, which is exact, nor claims more than the blocks support. (Taking the larger *variance*
    with its own df instead was wrong in up to 7.0% of cases at three launches and 12.9% at two; the wider interval in
    4.6% and 4.5%.)

    Args:
      launches: One per launch, from `block_pair_interval`.
      level: Two-sided level.
    """
    if not launches:
        raise ValueError("no launch to pool")
    scale, k = launches[0].scale, len(launches)
    if k == 1:
        return launches[0].at_level(level)
    between = estimates.t_interval([e.mean for e in launches], level, scale, f"t over {k} launches of block pairs")
    within = estimates.combine([(1 / k, e) for e in launches], level)
    within = dataclasses.replace(within, n=k, method=f"t over block pairs within {k} launches")
    return max(between, within, key=lambda e: e.half_width if e.df > 0 else -1.0)


def pooled_pairs(pairs: Iterable[Pair], level: float = 0.95, scale: estimates.Scale = "log") -> estimates.Estimate:
    """Effect between two arms of one process over launches: `pool` of `block_pair_interval`.

    Args:
      pairs: (blocks of a, blocks of b) of each launch.
      level: Two-sided level.
      scale: "log" or "linear".
    """
    return pool([block_pair_interval(a, b, level, scale) for a, b in pairs], level)


def mean_effect(pairs: Iterable[Pair], level: float = 0.95) -> estimates.Estimate:
    """Difference a - b in seconds over launches, as `pooled_pairs`."""
    return pooled_pairs(pairs, level, "linear")
