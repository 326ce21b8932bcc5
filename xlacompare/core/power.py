"""What a number of units (launches, pairs of blocks) can show, and the number that would decide.

`sd` is the standard deviation of one unit: of log(a / b) over paired launches (for two independent sides: sqrt(2) times
that of one side), or `Estimate.unit_sd`. Power of the t-test by the noncentral t of SciPy: statsmodels' own is the same
(a test compares them) but 50 times slower and not a number for large effects.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import special

DEFAULT_POWER = 0.8
MAX_UNITS = 10_000  # beyond it "more launches" is no advice


def power(effect: float, sd: float, n: int, alpha: float, one_sided: bool = False) -> float:
    """Probability that a t-test over n units finds the effect.

    Args:
      effect: True effect, on the scale of `sd` (log ratio or seconds).
      sd: Standard deviation of one unit.
      n: Units.
      alpha: Level of the test: two-sided, or one-sided with `one_sided`.
      one_sided: Test in the direction of a positive effect.
    """
    if n < 2:
        return 0.0
    if sd == 0:
        return float(effect > 0 if one_sided else effect != 0)
    df, shift = n - 1, effect / sd * math.sqrt(n)
    if one_sided:
        return _beyond(df, shift, float(special.stdtrit(df, 1 - alpha)))
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    return _beyond(df, abs(shift), critical) + _beyond(df, -abs(shift), critical)


def _beyond(df: int, shift: float, critical: float) -> float:
    """P(T > critical) of a noncentral t; SciPy gives no number far out in either tail, where it is 0 or 1."""
    found = 1 - float(special.nctdtr(df, shift, critical))
    return float(shift > critical) if math.isnan(found) else found


def mde(sd: float, n: int, alpha: float, wanted: float = DEFAULT_POWER) -> float:
    """Minimum detectable effect: the least true effect that n units find with probability `wanted`.

    Infinite for fewer than two units. For a plan with several looks pass its last look and its alpha per look: the
    earlier looks only add to the power.
    """
    if n < 2:
        return math.inf
    low, high = 0.0, sd or 1.0
    if sd == 0:
        return 0.0
    while power(high, sd, n, alpha) < wanted:
        low, high = high, high * 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, sd, n, alpha) >= wanted else (middle, high)
    return high


def launches_needed(effect: float, sd: float, alpha: float, wanted: float = DEFAULT_POWER) -> int | None:
    """Units that find `effect` with probability `wanted`; None where it would take more than `MAX_UNITS`."""
    return _least(lambda n: power(effect, sd, n, alpha), wanted)


def launches_for_equivalence(
    margin: float, sd: float, alpha: float, effect: float = 0.0, wanted: float = DEFAULT_POWER
) -> int | None:
    """Units that show `no difference larger than margin` by two one-sided tests; None where no number would.

    The power is bounded from below by (power of one) + (power of the other) - 1.

    Args:
      margin: Margin on the scale of `sd`.
      sd: Standard deviation of one unit.
      alpha: One-sided level of each test.
      effect: True effect; outside the margin no number of units is enough.
      wanted: Power.
    """
    if abs(effect) >= margin:
        return None
    return _least(
        lambda n: power(margin - effect, sd, n, alpha, True) + power(margin + effect, sd, n, alpha, True) - 1, wanted
    )


def _least(power_of: Callable[[int], float], wanted: float) -> int | None:
    low, high = 1, 2
    while power_of(high) < wanted:
        low, high = high, high * 2
        if low >= MAX_UNITS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= wanted else (middle, high)
    return high if high <= MAX_UNITS else None
