"""Launches of worlds under a plan that is fixed before the first sample; what both jobs over ranks share."""

from __future__ import annotations

import time
from typing import Protocol

from xlacompare.core import plan
from xlacompare.launch import campaign, journal, launchers
from xlacompare.launch import worlds as worlds_of_launch


class Run(worlds_of_launch.Run, Protocol):
    """What the plan needs of a configuration."""

    @property
    def launches(self) -> int:
        """Fresh worlds per framework; 0: what the budget affords."""
        ...

    @property
    def margin(self) -> float:
        """Share below which a difference counts as negligible."""
        ...

    @property
    def target_ci(self) -> float | None:
        """Half-width at which the plan stops."""
        ...

    @property
    def budget_s(self) -> float | None:
        """Seconds that the run may take."""
        ...


class Launches(journal.Journal):
    """The part of a campaign that launches worlds, whose fields these are."""

    run: Run
    launcher: launchers.Launcher
    progress: campaign.Progress

    def live(self) -> bool:
        """Whether any cell is left to measure."""
        raise NotImplementedError

    def launch(self, number: int) -> None:
        """Measures all cells once."""
        raise NotImplementedError

    def launch_all(self, begin: float) -> None:
        """Launches until the plan's last; `begin`: clock at the start of the run."""
        chosen = self._plan(0.0, 1.0) if self.run.launches else None
        number = 0
        while True:
            start = time.perf_counter()
            with self.timed("launches"):
                self.launch(number)
            number += 1
            if not self.live():
                return
            if chosen is None:  # the cost of the first launch fixes the number of launches, nothing of its result does
                chosen = self._plan(time.perf_counter() - begin, time.perf_counter() - start)
            if number == 1:
                self.append("plan", {"plan": chosen.to_dict(), "mde": None})
            if number >= chosen.last:
                return

    def _plan(self, spent_s: float, launch_s: float) -> plan.Plan:
        """A number of launches, or what the budget affords at the cost of a launch; one look, at the end."""
        margin, target_ci = self.run.margin, self.run.target_ci
        if self.run.launches:
            return plan.fixed(self.run.launches, margin=margin, target_ci=target_ci)
        if self.run.budget_s is None:
            return plan.fixed(plan.LOOKS[0], margin=margin, target_ci=target_ci)
        affordable = max(plan.MIN_LAUNCHES, int((self.run.budget_s - spent_s + launch_s) / launch_s))
        return plan.fixed(affordable, budget_s=self.run.budget_s, margin=margin, target_ci=target_ci)

    def say_cores(self, cores: tuple[int, ...]) -> None:
        """Warns of more ranks than cores."""
        ranks = self.run.num_ranks
        if worlds_of_launch.oversubscribed(self.run, ranks, cores):
            self.progress.say(
                f"{ranks} ranks on {len(cores)} core{'s' if len(cores) > 1 else ''}: what is measured "
                "is the scheduler as well; records are marked oversubscribed"
            )
