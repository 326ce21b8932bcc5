"""Looks for others on the cores of worlds while they measure."""

from __future__ import annotations

import time

from xlacompare.core import foreign
from xlacompare.launch import rank_rows
from xlacompare.launch import worlds as worlds_of_launch

MAX_FOREIGN_SHARE = 0.10
STRETCH_S = 1.0  # the kernel's ticks resolve foreign use only over about a second


class Watch:
    """Looks over stretches of whole visits; waiting times are of no use, ranks wait.

    Attributes:
      rows: Blocks of the stretch.
    """

    def __init__(self, worlds: worlds_of_launch.Worlds) -> None:
        """Begins a stretch."""
        self._worlds = worlds
        self.rows: list[rank_rows.Row] = []
        self._begin()

    def _begin(self) -> None:
        self.rows, self._start = [], time.monotonic()
        self._before = foreign.snapshot(self._worlds.cores, self._worlds.pids())

    @property
    def seconds(self) -> float:
        """Since the stretch began."""
        return time.monotonic() - self._start

    def disturbed_visits(self) -> int:
        """Ends a stretch: marks its blocks where others took more than a tenth of the cores; how many visits it spoilt.

        A last stretch that is too short to tell counts as quiet.
        """
        use = foreign.foreign_cpu(self._before, foreign.snapshot(self._worlds.cores, self._worlds.pids()))
        spoilt = 0
        if self.seconds >= STRETCH_S / 2 and (use.share or 0.0) > MAX_FOREIGN_SHARE:
            spoilt = len({row.visit for row in self.rows})
            for row in self.rows:
                row.disturbed = True
        self._begin()
        return spoilt
