"""Durations, bytes, rates and ratios: text to numbers in seconds and bytes, and back with three significant digits."""

from __future__ import annotations

import math
import re

from xlacompare.core import errors

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SHOWN_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BINARY = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES = {**_BINARY, **_DECIMAL}
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ]*)\s*")
# An interval of a ratio whose ends differ by more than this factor is called wide.
WIDE = 1.5


def parse_duration(text: str) -> float:
    """Seconds of "30 ms", "1.5s", "2min"; a bare number is seconds.

    Raises:
      BadInputError: It is no duration, or negative.
    """
    value, unit = _split(text, "a duration", "30ms, 1.5s or 2min")
    factor = 1.0 if unit == "" else _SECONDS.get(unit)
    if factor is None or value < 0:
        raise errors.BadInputError(f"{text!r} is no duration; write it like 30ms, 1.5s or 2min")
    return value * factor


def parse_bytes(text: str) -> int:
    """Bytes of "64MiB" (powers of 1024), "1.5 GB" (powers of 1000) or a bare number.

    Raises:
      BadInputError: It is no size, negative, or no whole number of bytes.
    """
    value, unit = _split(text, "a size", "4096, 64KiB or 1MB")
    factor = _BYTES.get(unit)
    if factor is None or value < 0 or value * factor != int(value * factor):
        raise errors.BadInputError(f"{text!r} is no size in whole bytes; write it like 4096, 64KiB or 1MB")
    return int(value * factor)


def parse_bytes_range(text: str) -> list[int]:
    """Sizes of "first:last:factor", e.g. "1KiB:64MiB:4"; factor 2 where it is left out, one size without a colon.

    Raises:
      BadInputError: A part is no size, the range runs backwards, or the factor is not above 1.
    """
    parts = text.split(":")
    if len(parts) == 1:
        return [parse_bytes(text)]
    if len(parts) > 3:
        raise errors.BadInputError(f"{text!r} is no range of sizes; write first:last:factor, like 1KiB:64MiB:4")
    first, last = parse_bytes(parts[0]), parse_bytes(parts[1])
    factor = int(parts[2]) if len(parts) == 3 and parts[2].strip().isdigit() else 2 if len(parts) == 2 else 0
    if not 0 < first <= last or factor < 2:
        raise errors.BadInputError(
            f"{text!r}: first must be positive and at most last, the factor a whole number from 2"
        )
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    value = float(match[1]) if match else math.nan
    if not match or not math.isfinite(value):
        raise errors.BadInputError(f"{text!r} is not {what}; write it like {example}")
    return value, match[2]


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent: 1.42, 14.2, 142, 1420."""
    if not math.isfinite(value):
        return "?" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return f"{float(f'{value:.{digits - 1}e}'):.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int = 3) -> int:
    """Decimals that show `digits` significant digits of the value."""
    if value == 0 or not math.isfinite(value):
        return digits - 1
    rounded = float(f"{value:.{digits - 1}e}")
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


def format_duration(seconds: float) -> str:
    """Such as "1.42 ms"."""
    factor, unit = _duration_unit(seconds)
    return f"{significant(seconds / factor)} {unit}"


def format_duration_interval(mean: float, low: float, high: float) -> str:
    """A difference or a time with its interval in one unit, such as "1.42 ms [1.36, 1.49]"."""
    factor, unit = _duration_unit(max((abs(x) for x in (mean, low, high) if math.isfinite(x)), default=0.0))
    value, ends = _together(mean / factor, low / factor, high / factor)
    return f"{value} {unit} {ends}"


def _duration_unit(seconds: float) -> tuple[float, str]:
    for factor, unit in _SHOWN_SECONDS:
        if abs(seconds) >= factor * 0.9995:
            return factor, unit
    return (1.0, "s") if seconds == 0 else _SHOWN_SECONDS[-1]


def format_bytes(count: float) -> str:
    """Such as "64.0 MiB", powers of 1024."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= _BINARY[unit] * 0.9995:
            return f"{significant(count / _BINARY[unit])} {unit}"
    return f"{count:.0f} B"


def format_rate(per_s: float, unit: str = "B/s") -> str:
    """Such as "12.3 GB/s" or "1.50 TFLOP/s", powers of 1000; `unit` is B/s, FLOP/s, steps/s."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(per_s) >= factor * 0.9995:
            return f"{significant(per_s / factor)} {prefix}{unit}"
    return f"{significant(per_s)} {unit}"


def format_percent(fraction: float) -> str:
    """Such as "5%", "2.5%"."""
    return f"{fraction * 100:.3g}%"


def format_ratio(ratio: float, low: float, high: float) -> str:
    """Such as "1.42x [1.36, 1.49]"; more decimals where three digits would move an end of the interval onto 1."""
    decimals = _decimals(ratio)
    while decimals < 6 and any(end != 1 and round(end, decimals) == 1 for end in (low, high)):
        decimals += 1
    value, ends = _together(ratio, low, high, decimals)
    wide = not 0 < low <= high < math.inf or high / low > WIDE
    return f"{value}x {ends}{' wide' if wide else ''}"


def _together(value: float, low: float, high: float, decimals: int | None = None) -> tuple[str, str]:
    """The value and its interval with the decimals of the value's three significant digits."""
    if decimals is None:
        ends = [abs(x) for x in (value, low, high) if math.isfinite(x)]
        decimals = _decimals(max(ends)) if ends else 2
    shown = [f"{x:.{decimals}f}" if math.isfinite(x) else significant(x) for x in (value, low, high)]
    return shown[0], f"[{shown[1]}, {shown[2]}]"
