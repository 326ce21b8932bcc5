"""Measures one comparison of collectives in one launch: build its cells, visit the worlds in balanced order, finish.

The worlds of a comparison stand side by side and one is active at a time. A visit to one is a few blocks; the order of
worlds is ABBA over the visits (`core.schedule`). How many runs make a block and how many visits there are follows from
the slowest rank of each cell, before the first sample. A cell whose rank dies or hangs ends; its world starts anew for
what comes next, and the other cells go on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from xlacompare.collectives import config
from xlacompare.core import collective_cell as cells
from xlacompare.core import foreign, schedule, timing
from xlacompare.launch import collective_grid, rank_rows, world
from xlacompare.launch import worlds as worlds_of_launch

MIN_BLOCKS, MAX_VISITS, BLOCKS_PER_VISIT = 4, 30, 2
MIN_SLOW_BLOCKS, VERY_SLOW_S = 3, 0.25  # one less at 256 MiB over the loopback: a sweep must end
MIN_ITERATIONS, MAX_ITERATIONS = 5, 100
MAX_RUNS_PER_BLOCK = 20000
# From here on a single run says what a block does, and an untimed run after a switch costs more than it removes.
SLOW_S = 0.1
MAX_FOREIGN_SHARE = 0.10
FENCE_S = 0.01


@dataclasses.dataclass
class Outcome:
    """What became of a cell in a launch."""

    status: str = "ok"
    reason: str = ""
    n: int = 1
    step_s: float = 0.0
    built: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_up: dict[str, Any] = dataclasses.field(default_factory=dict)
    fence: dict[str, Any] | None = None
    blocks: list[rank_rows.Row] = dataclasses.field(default_factory=list)
    iterations: list[rank_rows.Row] = dataclasses.field(default_factory=list)
    finished: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    started: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def block_s(self) -> float:
        """Expected seconds of a block."""
        return self.n * self.step_s


class Session:
    """One comparison in one launch."""

    def __init__(
        self,
        run: config.CollectiveConfig,
        worlds: worlds_of_launch.Worlds,
        members: Sequence[cells.CollectiveCell],
        launch: int,
        fence_test: bool,
    ) -> None:
        """Makes the session; `measure` runs it.

        Args:
          run: The configuration.
          worlds: The worlds of the launch.
          members: Cells of one comparison.
          launch: Its number; another world is first in every launch.
          fence_test: Whether the fence is tested on these cells.
        """
        self.run, self.worlds, self.launch, self._fence_test = run, worlds, launch, fence_test
        shift = launch % len(members)
        self.members = [*members[shift:], *members[:shift]]
        self.outcomes = {cell: Outcome() for cell in members}
        self.timed_s = 0.0

    def measure(self) -> None:
        """Builds and times all cells; every cell has its outcome afterwards."""
        for cell in self.members:
            self._guarded(cell, self._build)
        if self._fence_test:
            for cell in self._live():
                self._guarded(cell, self._fence)
        before = self._snapshot()
        self._visits()
        self._mark(foreign.foreign_cpu(before, self._snapshot()))
        for cell in self._live():
            self._guarded(cell, self._stepwise)
        for cell in self._live():
            self._guarded(cell, self._finish)

    def _live(self) -> list[cells.CollectiveCell]:
        return [cell for cell in self.members if self.outcomes[cell].status == "ok"]

    def _guarded(self, cell: cells.CollectiveCell, operation: Any, *arguments: Any) -> None:
        """Runs a part of a cell's measurement; a failure ends the cell, and its world where it did not survive."""
        outcome = self.outcomes[cell]
        if outcome.status != "ok":
            return
        try:
            operation(cell, outcome, *arguments)
        except world.WorldError as error:
            outcome.status, outcome.reason = error.status, error.reason
            if not error.alive:
                self.worlds.discard(cell)

    def _ask(self, cell: cells.CollectiveCell, op: str, **values: Any) -> list[Any]:
        return self.worlds.of(cell).ask({"op": op, "cell": cell.id, **values})

    def _build(self, cell: cells.CollectiveCell, outcome: Outcome) -> None:
        """Builds, warms up until two runs in a row compiled nothing on any rank, and sizes the blocks."""
        outcome.started = self.worlds.of(cell).started
        request = collective_grid.request_of(cell)
        answers = self._ask(cell, "build", request=request.to_dict(), seed=self.run.seed)
        outcome.built = max((answer["compile"] for answer in answers), key=lambda made: made["build_s"])
        outcome.built["compiles"] = max(answer["compile"]["compiles"] for answer in answers)
        outcome.built["inputs_s"] = max(answer["inputs_s"] for answer in answers)
        last = rank_rows.merged([answer["warm"] for answer in answers], outcome.started)
        runs, seconds, compiles, quiet = 1, last.total_s, last.compiles, int(not last.compiles)
        while quiet < 2:
            if runs >= timing.MAX_WARM_UP_STEPS:
                raise world.unsupported(f"still compiling after {runs} runs ({compiles} compilations)")
            # A single fenced run takes longer than a run inside a block: a short block sizes the long ones.
            n = max(1, min(MAX_RUNS_PER_BLOCK, round(self.run.min_block_s / 4 / max(last.total_s, 1e-6))))
            n = 1 if self._single(cell) or last.compiles else n
            last = self._rows(cell, outcome, n, 1, False, "pilot")[0]
            runs, seconds, compiles = runs + last.n, seconds + last.total_s, compiles + last.compiles
            quiet = 0 if last.compiles else quiet + 1
        outcome.step_s = last.total_s / last.n
        wanted = math.ceil(self.run.min_block_s / max(outcome.step_s, 1e-7))
        outcome.n = 1 if self._single(cell) else min(MAX_RUNS_PER_BLOCK, wanted)
        outcome.warm_up = {"steps": runs, "seconds": seconds, "step_s": outcome.step_s, "compiles": compiles}

    @staticmethod
    def _single(cell: cells.CollectiveCell) -> bool:
        """Whether every run has a fence: in place, a reduction's result may not feed the next run."""
        return cell.placement == "in_place" and bool(cell.reduction)

    def _rows(
        self, cell: cells.CollectiveCell, outcome: Outcome, n: int, count: int, untimed: bool, series: str
    ) -> list[rank_rows.Row]:
        """`count` blocks of n runs, merged over the processes."""
        answers = self._ask(cell, "blocks", n=n, count=count, untimed=untimed, series=series)
        return [rank_rows.merged([answer[i] for answer in answers], outcome.started) for i in range(count)]

    def _fence(self, cell: cells.CollectiveCell, outcome: Outcome) -> None:
        if self._single(cell):
            return
        n = max(1, min(200, round(FENCE_S / max(outcome.step_s, 1e-7))))
        answers = self._ask(cell, "fence", n=n)
        outcome.fence = next((answer for answer in answers if not answer["passed"]), answers[0])

    def _visits(self) -> None:
        """The planned visits in balanced order; a lone cell has all its blocks in one request."""
        live = self._live()
        if not live:
            return
        visits, per_visit = self._plan(live)
        seed = self.run.seed * 1009 + self.launch
        alone = len(live) == 1 and self.run.cell_s < self.run.deadline_s / 4
        if alone:
            self._guarded(live[0], self._visit, 0, visits * per_visit, per_visit)
            return
        for visit, order in enumerate(schedule.orders(live, visits, seed)):
            for cell in order:
                self._guarded(cell, self._visit, visit * per_visit, per_visit, per_visit)

    def _plan(self, live: list[cells.CollectiveCell]) -> tuple[int, int]:
        """Visits that give each cell about `cell_s` seconds of timed blocks, and blocks per visit."""
        block_s = sum(self.outcomes[cell].block_s for cell in live) / len(live)
        per_visit = 1 if block_s > self.run.cell_s / MIN_BLOCKS else BLOCKS_PER_VISIT
        visits = round(self.run.cell_s / max(per_visit * block_s, 1e-9))
        least = MIN_SLOW_BLOCKS if block_s > VERY_SLOW_S else MIN_BLOCKS
        most = MAX_ITERATIONS if any(self._single(cell) for cell in live) else MAX_VISITS
        return min(most, max(-(-least // per_visit), visits)), per_visit

    def _visit(self, cell: cells.CollectiveCell, outcome: Outcome, first: int, count: int, per_visit: int) -> None:
        rows = self._rows(cell, outcome, outcome.n, count, outcome.step_s < SLOW_S, "main")
        for position, row in enumerate(rows, first):
            row.visit, row.position = divmod(position, per_visit)
            row.mode = "stepwise" if self._single(cell) else "block"
            self.timed_s += row.total_s
        outcome.blocks += rows

    def _stepwise(self, cell: cells.CollectiveCell, outcome: Outcome) -> None:
        """Single runs, each behind a barrier; where the blocks are single runs, they are these."""
        if outcome.n == 1:
            outcome.iterations = outcome.blocks
            return
        count = round(self.run.cell_s / 2 / max(outcome.step_s, 1e-7))
        count = min(MAX_ITERATIONS, max(MIN_ITERATIONS, count))
        outcome.iterations = self._rows(cell, outcome, 1, count, True, "stepwise")
        self.timed_s += sum(row.total_s for row in outcome.iterations)

    def _finish(self, cell: cells.CollectiveCell, outcome: Outcome) -> None:
        """Values of every rank; a wrong one leaves the cell without a time."""
        outcome.finished = self._ask(cell, "finish")
        wrong = sum(answer["values"]["wrong"] for answer in outcome.finished)
        if wrong:
            outcome.status = "mismatch"
            outcome.reason = next(a["values"]["message"] for a in outcome.finished if a["values"]["wrong"])

    def _snapshot(self) -> foreign.CpuSnapshot:
        return foreign.snapshot(self.worlds.cores, self.worlds.pids())

    def _mark(self, use: foreign.ForeignCpu) -> None:
        """Marks the blocks when others took more than a tenth of the cores while they ran.

        Over all visits together: a visit of 40 ms is shorter than what the kernel's ticks resolve. Waiting times are of
        no use here, ranks wait for each other.
        """
        disturbed = (use.share or 0.0) > MAX_FOREIGN_SHARE
        for outcome in self.outcomes.values():
            for row in outcome.blocks:
                row.disturbed = disturbed
