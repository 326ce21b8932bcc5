"""Rates from times: algbw and busbw from the size that was asked for, and busbw from the bytes that were sent.

Rates are never averaged: the mean of size/t weighs fast runs too much (by half in stas00's benchmark, +50%). Every rate
here is bytes over one time, which may be a mean of times; the interval of a rate is that of the time, turned round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from xlacompare.collectives import table

# (transport, collective) -> why busbw says less than the wire carries.
CAVEATS = {
    ("gloo", "reduce_scatter"): "gloo's reduce_scatter is made of all_reduces (pytorch#149869): the wire carries about "
    "twice what busbw counts",
}


@dataclasses.dataclass(frozen=True)
class Rate:
    """Bytes per second, with an interval where the time has one."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """Rates of one cell in bytes/s.

    Attributes:
      algbw: Size / time.
      busbw: algbw times the table's factor: what a link carries if the algorithm is bandwidth-optimal.
      busbw_lowered: The same from the bytes of the operations that ran (`lowering.Judged.wire_bytes`), or None.
    """

    algbw: Rate
    busbw: Rate
    busbw_lowered: Rate | None


def rate(number_bytes: float, seconds: float, low_s: float | None = None, high_s: float | None = None) -> Rate:
    """Bytes over a time.

    Args:
      number_bytes: Bytes.
      seconds: One time, or a mean of times.
      low_s: Lower end of its interval.
      high_s: Upper end of its interval.

    Raises:
      ValueError: The time is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"a time of {seconds} s gives no rate")
    low = seconds if low_s is None else low_s
    high = seconds if high_s is None else high_s
    # An interval that reaches 0 has no upper rate.
    return Rate(number_bytes / seconds, number_bytes / high, number_bytes / low if low > 0 else math.inf)


def of_times(number_bytes: float, times_s: Sequence[float]) -> float:
    """Rate over several runs: all bytes over all time, stragglers included; not a mean of rates.

    Raises:
      ValueError: No times, or no positive sum.
    """
    return rate(number_bytes * len(times_s), math.fsum(times_s)).value


def bandwidth(
    collective: str,
    n: int,
    size_bytes: int,
    seconds: float,
    low_s: float | None = None,
    high_s: float | None = None,
    wire_bytes: float | None = None,
) -> Bandwidth:
    """Rates of one cell.

    Args:
      collective: Name in the table.
      n: Ranks of a group.
      size_bytes: Size in the table's meaning, pad included, as the pad is sent too (`table.Collective.size_bytes`).
      seconds: Time of one run.
      low_s: Lower end of its interval.
      high_s: Upper end of its interval.
      wire_bytes: Bytes per rank from the operations that ran.

    Raises:
      ValueError: The time is not positive.
    """
    factor = table.get(collective).bus_factor(n)
    lowered = None if wire_bytes is None else rate(wire_bytes, seconds, low_s, high_s)
    return Bandwidth(
        algbw=rate(size_bytes, seconds, low_s, high_s),
        busbw=rate(size_bytes * factor, seconds, low_s, high_s),
        busbw_lowered=lowered,
    )


def implausible(busbw: float, ceiling: float) -> str | None:
    """Why a rate cannot be that of a transfer that was waited for, or None.

    Args:
      busbw: Bytes/s of one rank.
      ceiling: Bytes/s that the machine can move at most (its memory, for ranks on one machine). Only for buffers that
        exceed the caches.
    """
    if busbw <= ceiling:
        return None
    return (
        f"busbw {busbw / 1e9:.3g} GB/s is above the {ceiling / 1e9:.3g} GB/s that this machine can move: the time does "
        "not cover the transfer; check the fence"
    )
