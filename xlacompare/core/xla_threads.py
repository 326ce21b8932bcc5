"""Whose work a thread of XLA's pools does, in traces of XLA's CPU runtime that do not name the device of an operation.

A pool's listener notes where a task was handed in (Record, with a number) and when a thread worked on it (StartRegion
with that number, StopRegion). An operation belongs to the task in whose region it lies, that to the thread that handed
it in, and so on to a thread of no pool: the one that launched the program. Tried with torch_xla 2.9.0 (XLA of 2025-08).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable
from typing import Any

from xlacompare.core import xplane

_RECORD, _START, _STOP = (f"ThreadpoolListener::{name}" for name in ("Record", "StartRegion", "StopRegion"))
Line = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class _Region:
    start_s: float
    end_s: float
    task: Any


class Threads:
    """The tasks of one file's host."""

    def __init__(self, events: Iterable[xplane.Event]) -> None:
        """`events` are all of the file."""
        self._records: dict[Any, tuple[Line, float]] = {}
        self._regions: dict[Line, list[_Region]] = {}
        open_: dict[Line, list[tuple[float, Any]]] = {}
        for event in sorted(events, key=lambda event: event.start_s):
            if event.name == _RECORD:
                self._records[event.stats["_p"]] = event.line, event.start_s
            elif event.name == _START:
                open_.setdefault(event.line, []).append((event.start_s, event.stats["_c"]))
            elif event.name == _STOP and open_.get(event.line):
                start_s, task = open_[event.line].pop()
                self._regions.setdefault(event.line, []).append(_Region(start_s, event.start_s, task))
        for line, begun in open_.items():  # still at work when the trace ended
            self._regions.setdefault(line, []).extend(_Region(start_s, float("inf"), task) for start_s, task in begun)
        for regions in self._regions.values():
            regions.sort(key=lambda region: region.start_s)

    def root(self, event: xplane.Event) -> Line | None:
        """The thread that handed in the work that an event belongs to; None where a link of the chain is missing."""
        line, at_s = event.line, event.start_s
        for _ in range(len(self._records) + 1):
            region = self._region(line, at_s)
            if region is None:
                return line
            if region.task not in self._records:
                return None
            line, at_s = self._records[region.task]
        return None

    def _region(self, line: Line, at_s: float) -> _Region | None:
        """The innermost region of a thread at a time."""
        regions = self._regions.get(line, [])
        for place in range(bisect.bisect_right(regions, at_s, key=lambda region: region.start_s) - 1, -1, -1):
            if at_s <= regions[place].end_s:
                return regions[place]
        return None
