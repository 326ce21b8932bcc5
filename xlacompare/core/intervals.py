"""Sets of moments as intervals: union, intersection, difference, length."""

from __future__ import annotations

from collections.abc import Iterable

Intervals = list[tuple[float, float]]  # (start, end); of `union`: in order, and none touches the next


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The same time without doubles, in order; what has no length is left out."""
    made: Intervals = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Time that is in both; each is a `union`."""
    made, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            made.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return made


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Time that is in a and not in b; each is a `union`."""
    made, first = [], 0
    for start, end in a:
        while first < len(b) and b[first][1] <= start:
            first += 1
        place, at = first, start
        while place < len(b) and b[place][0] < end:
            if at < b[place][0]:
                made.append((at, b[place][0]))
            at = max(at, b[place][1])
            place += 1
        if at < end:
            made.append((at, end))
    return made


def seconds(intervals: Intervals) -> float:
    """Length of a `union`."""
    return sum(end - start for start, end in intervals)
