"""Numbers as text, where more is needed than `core.units` gives: common decimals, signs, bars of characters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from xlacompare.core import estimates, units

MS = 1e-3
BAR_WIDTH = 8


def decimals(values: Iterable[float], digits: int = 3) -> int:
    """Decimals that give the largest finite value so many significant digits; values as they are printed."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return 2 if largest == 0 else min(9, max(0, digits - 1 - math.floor(math.log10(float(f"{largest:.2e}")))))


def places_ms(total: float, terms: Iterable[float] = ()) -> int:
    """Decimals for a sum and its terms, in seconds, that are printed as milliseconds and are seen to add up.

    Three significant digits of the sum, but no more than five of the largest term.
    """
    return min(decimals([total / MS]), decimals([value / MS for value in (total, *terms)], 5))


def signed_ms(estimate: estimates.Estimate, places: int, unit: str = "") -> str:
    """A difference in milliseconds, such as "+5.12 [+4.90, +5.34]", then the unit if given and "wide" where it is."""
    ends = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = (f"{value / MS:+.{places}f}" for value in ends)
    return f"{mean} [{low}, {high}]{unit}{' wide' if is_wide(estimate) else ''}"


def step_ms(estimate: estimates.Estimate | None) -> str:
    """A time with its interval in milliseconds, called wide where it is."""
    if estimate is None:
        return "-"
    places = decimals([estimate.mean / MS])
    mean, low, high = (f"{value / MS:.{places}f}" for value in (estimate.mean, estimate.low, estimate.high))
    return f"{mean} [{low}, {high}]{' wide' if is_wide(estimate) else ''}"


def is_wide(estimate: estimates.Estimate) -> bool:
    """Whether the ends of an interval differ by more than the factor `units.WIDE`, have two signs, or are no ends.

    A difference against nothing is as wide as its opposite.
    """
    low, high = (estimate.low, estimate.high) if estimate.mean > 0 else (-estimate.high, -estimate.low)
    return not 0 < low <= high < math.inf or high / low > units.WIDE


def includes_zero(estimate: estimates.Estimate) -> bool:
    """Whether the interval of a difference leaves its sign open."""
    return estimate.low <= 0 <= estimate.high


def seconds(value: float | None) -> str:
    """Seconds without their unit, for a column that names it."""
    return "-" if value is None else units.significant(value)


def milliseconds(value: float | None) -> str:
    """Milliseconds without their unit, for a column that names it."""
    return "-" if value is None else units.significant(value / MS)


def share(value: float | None) -> str:
    """Such as "93%"; whole percents, because a share of time is not known better."""
    return "-" if value is None else f"{value:.0%}"


STYLES = {"difference": "bold", "no_difference": "green", "inconclusive": "yellow", "problem": "red"}
SPLITS = {"threads": "by thread the sum of", "arms": "by arm the sum of", "replays": "by program the sum of"}


def bound(name: str | None, dispatch: float | None) -> str:
    """What limits a step and the share that dispatch takes; no share where that is the work itself or tells nothing."""
    if name is None:
        return "-"
    return {"synchronous": "sync", "unclear": "unclear"}.get(name) or f"{name} {share(dispatch)}"


def giga(value: float | None) -> str:
    """A rate in 10^9 per second without its unit."""
    return "-" if value is None else units.significant(value / 1e9)


def size(value: float | None) -> str:
    """Bytes, or a dash."""
    return "-" if value is None else units.format_bytes(value)


def gain(value: float | None, seconds: estimates.Estimate) -> str:
    """A bar's "gain if fixed"; more than all of the step cannot be gained alone, and is not printed as if it could."""
    if includes_zero(seconds):
        return "unclear"
    if value is None:
        return ""
    return f"gain {value:.0%}" if value <= 1 else "gain >100%"


def bar(value: float, largest: float, width: int = BAR_WIDTH) -> str:
    """A bar of plus signs (slower) or minus signs (faster), `width` of them for the largest; one at least."""
    if largest <= 0 or value == 0 or not math.isfinite(value):
        return ""
    length = max(1, round(abs(value) / largest * width))
    return ("+" if value > 0 else "-") * length


def number_of(count: int, word: str) -> str:
    """Such as "1 launch", "3 launches"."""
    plural = word + ("es" if word.endswith(("ch", "s")) else "s")
    return f"{count} {word if count == 1 else plural}"


def cut(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 4].rstrip() + " ..."
