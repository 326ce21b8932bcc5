"""Measures one comparison of training over ranks in one launch: build its arms, visit the worlds in balanced order.

All arms of a framework live in one world, so that the launch cancels in their differences; the worlds of frameworks
stand side by side, one active at a time. A visit to a world runs its arms forwards and backwards (A B C C B A), so that
slow drift cancels in every pair; the order of worlds and of arms is balanced over visits (`core.schedule`).
`real` is built first: what it communicates is what the arms without compute replay, and what the others are held
against. When a world dies, or a cell fails during a visit, the cell in flight is blamed, the samples so far are set
apart as `partial`, and the rest is measured again without it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import foreign, schedule, timing
from xlacompare.core.census import LoweredCollective
from xlacompare.graph import program_file
from xlacompare.launch import parallel_census, parallel_grid, preparation, rank_rows, world
from xlacompare.launch import worlds as worlds_of_launch
from xlacompare.parallel import arms, config

MIN_VISITS, MAX_VISITS = 4, 60
MAX_STEPS_PER_BLOCK = 10000
MAX_FOREIGN_SHARE = 0.10
MAX_REPEATED_SHARE = 0.5  # at most half as many visits again: on a busy machine everything is disturbed
STRETCH_S = 1.0  # the kernel's ticks resolve foreign use only over about a second
FENCE_S = 0.1


@dataclasses.dataclass
class Outcome:
    """What became of a cell in a launch."""

    status: str = "ok"
    reason: str = ""
    n: int = 1
    step_s: float = 0.0
    built: dict[str, Any] = dataclasses.field(default_factory=dict)
    gate: dict[str, Any] = dataclasses.field(default_factory=dict)
    seen: parallel_census.Seen | None = None
    work: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_up: dict[str, Any] = dataclasses.field(default_factory=dict)
    fence: dict[str, Any] | None = None
    blocks: list[rank_rows.Row] = dataclasses.field(default_factory=list)
    started: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def block_s(self) -> float:
        """Expected seconds of a block."""
        return self.n * self.step_s


class Session:
    """One comparison in one launch."""

    def __init__(
        self,
        run: config.ParallelConfig,
        worlds: worlds_of_launch.Worlds,
        members: Sequence[cells.Cell],
        inputs: preparation.Inputs,
        launch: int,
        reader: parallel_census.Reader,
    ) -> None:
        """Makes the session; `measure` runs it.

        Args:
          run: The configuration.
          worlds: The worlds of the launch.
          members: Cells of one comparison.
          inputs: Files that all ranks read.
          launch: Its number; in the first one fences are tested and the work is counted.
          reader: Judges what the arms do.
        """
        self.run, self.worlds, self.inputs, self.launch, self._reader = run, worlds, inputs, launch, reader
        shift = launch % len(members)
        rotated = [*members[shift:], *members[:shift]]
        self.members = sorted(rotated, key=lambda cell: _place(cell.communication))
        self.outcomes = {cell: Outcome() for cell in members}
        self.partial: list[tuple[cells.Cell, list[rank_rows.Row]]] = []
        self.timed_s = 0.0
        self._ready: set[cells.Cell] = set()
        self._loaded: set[worlds_of_launch.Key] = set()

    def measure(self) -> None:
        """Builds and times all cells; every cell has its outcome afterwards."""
        while self._live():
            if self._build() and self._live() and self._visits():
                self._finish()
                return

    def _live(self) -> list[cells.Cell]:
        return [cell for cell in self.members if self.outcomes[cell].status == "ok"]

    def _ask(self, cell: cells.Cell, op: str, **values: Any) -> list[Any]:
        return self.worlds.of(cell).ask({"op": op, "cell": cell.id, **values})

    def _lose(self, cell: cells.Cell, error: world.WorldError) -> None:
        """Blames a cell; where its world is gone, what was built in it is gone too."""
        outcome = self.outcomes[cell]
        outcome.status, outcome.reason = error.status, error.reason
        if not error.alive:
            key = self.worlds.key(cell)
            self.worlds.discard(cell)
            self._loaded.discard(key)
            self._ready = {other for other in self._ready if self.worlds.key(other) != key}

    def _build(self) -> bool:
        """Builds what is not built; False when a world died, so that what it held must be built again."""
        for cell in self._live():
            if cell in self._ready:
                continue
            outcome = self.outcomes[cell] = Outcome()
            try:
                self._build_one(cell, outcome)
            except world.WorldError as error:
                self._lose(cell, error)
                if not error.alive:
                    return False
        return True

    def _build_one(self, cell: cells.Cell, outcome: Outcome) -> None:
        outcome.started = self.worlds.of(cell).started
        self._load(cell)
        asked = parallel_grid.request_of(cell, self._schedule(cell))
        name = self._inputs_name
        answers = self._ask(cell, "build_step", point=cell.to_dict(), inputs=name, request=asked.to_dict())
        outcome.built = max((answer["compile"] for answer in answers), key=lambda made: made["build_s"])
        outcome.built["compiles"] = max(answer["compile"]["compiles"] for answer in answers)
        outcome.gate = answers[0]["gate"]
        lowered = next((said for said in self._ask(cell, "communications") if said is not None), None)
        outcome.seen = self._reader.communication(cell, lowered, self._seen_of_real(cell))
        if problem := _gate_problem(answers, outcome) or outcome.seen.violation:
            outcome.status, outcome.reason = "mismatch", problem
            self._ask(cell, "close")
            return
        self._warm_up(cell, outcome, rank_rows.merged([answer["warm"] for answer in answers], outcome.started))
        if self.launch == 0 and cell.communication not in arms.WITHOUT_COMPUTE:
            n = max(1, min(200, round(FENCE_S / max(outcome.step_s, 1e-7))))
            reports = self._ask(cell, "fence", n=n)
            outcome.fence = next((report for report in reports if not report["passed"]), reports[0])
        self._ready.add(cell)

    @property
    def _inputs_name(self) -> str:
        return self.inputs.sha256

    def _load(self, cell: cells.Cell) -> None:
        key = self.worlds.key(cell)
        if key not in self._loaded:
            files = {"archive": str(self.inputs.archive), "reference": str(self.inputs.reference)}
            self._ask(cell, "load", inputs=self._inputs_name, **files)
            self._loaded.add(key)

    def _real_of(self, cell: cells.Cell) -> cells.Cell | None:
        """The cell whose collectives this one is held against: `real` with the same changes, else the matched one."""
        own = dataclasses.replace(cell, communication=parallel_grid.REAL)
        return next((found for found in (own, own.matched) if found in self.outcomes), None)

    def _seen_of_real(self, cell: cells.Cell) -> parallel_census.Seen | None:
        real = self._real_of(cell)
        return self.outcomes[real].seen if real is not None and real != cell else None

    def _schedule(self, cell: cells.Cell) -> Sequence[LoweredCollective]:
        """What an arm without compute replays.

        Raises:
          WorldError: It is not known.
        """
        if cell.communication not in arms.WITHOUT_COMPUTE:
            return ()
        real = self._real_of(cell)
        outcome = None if real is None else self.outcomes[real]
        if outcome is None or outcome.status != "ok" or outcome.seen is None:
            why = "was not asked for" if outcome is None else f"ended as {outcome.status}"
            raise world.unsupported(f"`real`, whose collectives {cell.communication} replays, {why}")
        if not outcome.seen.ops:
            said = outcome.seen.record["problem"] or "communicates nothing"
            raise world.unsupported(f"`real`, whose collectives {cell.communication} replays: {said}")
        return outcome.seen.ops

    def _warm_up(self, cell: cells.Cell, outcome: Outcome, last: rank_rows.Row) -> None:
        """Steps until two blocks in a row compiled nothing on any rank; the last one sizes the blocks."""
        runs, seconds, compiles, quiet = 1, last.total_s, last.compiles, int(not last.compiles)
        while quiet < 2:
            if runs >= timing.MAX_WARM_UP_STEPS and last.compiles:
                raise world.unsupported(f"still compiling after {runs} steps ({compiles} compilations)")
            # A single fenced step takes longer than a step inside a block: a short block sizes the long ones.
            n = max(1, min(MAX_STEPS_PER_BLOCK, round(self.run.min_block_s / 4 / max(last.total_s / last.n, 1e-6))))
            last = self._rows(cell, outcome, 1 if last.compiles else n, 1, False, "pilot")[0]
            runs, seconds, compiles = runs + last.n, seconds + last.total_s, compiles + last.compiles
            quiet = 0 if last.compiles else quiet + 1
        outcome.step_s = last.total_s / last.n
        outcome.n = min(MAX_STEPS_PER_BLOCK, timing.steps_per_block(outcome.step_s, self.run.min_block_s))
        outcome.warm_up = {"steps": runs, "seconds": seconds, "step_s": outcome.step_s, "compiles": compiles}

    def _rows(
        self, cell: cells.Cell, outcome: Outcome, n: int, count: int, untimed: bool, series: str
    ) -> list[rank_rows.Row]:
        """`count` blocks of n steps, merged over the processes."""
        answers = self._ask(cell, "blocks", n=n, count=count, untimed=untimed, series=series)
        return [rank_rows.merged([answer[i] for answer in answers], outcome.started) for i in range(count)]

    def _groups(self) -> list[list[cells.Cell]]:
        grouped: dict[worlds_of_launch.Key, list[cells.Cell]] = {}
        for cell in self._live():
            grouped.setdefault(self.worlds.key(cell), []).append(cell)
        return list(grouped.values())

    def _number_of_visits(self, groups: list[list[cells.Cell]]) -> int:
        """Visits that give each cell about `cell_s` seconds of timed blocks; fixed before the first sample."""
        per_visit = [2 * sum(self.outcomes[cell].block_s for cell in group) / len(group) for group in groups]
        wanted = self.run.cell_s * len(groups) / max(sum(per_visit), 1e-9)
        return round(min(MAX_VISITS, max(MIN_VISITS, wanted)))

    def _visits(self) -> bool:
        """Runs the planned visits, and others in place of disturbed ones; False when a cell failed."""
        groups = self._groups()
        planned = self._number_of_visits(groups)
        most = planned + int(planned * MAX_REPEATED_SHARE)
        seed = self.run.seed * 1009 + self.launch
        outer = list(schedule.orders(range(len(groups)), most, seed))
        inner = [list(schedule.orders(range(len(g)), most, seed + 1 + i)) for i, g in enumerate(groups)]
        watch, visit, quiet = _Watch(self.worlds), 0, 0
        while quiet < planned and visit < most:
            for index in outer[visit]:
                order = [groups[index][i] for i in inner[index][visit]]
                if not self._visit(order + order[::-1], visit, watch):
                    return False
            visit += 1
            quiet += 1
            if quiet == planned or watch.seconds >= STRETCH_S:
                quiet -= watch.disturbed_visits()
        watch.disturbed_visits()
        return True

    def _visit(self, sequence: list[cells.Cell], visit: int, watch: _Watch) -> bool:
        """Runs one visit to a world and keeps its blocks; False when a cell failed: the order has lost it."""
        position = 0
        for cell, count in _runs(sequence):
            outcome = self.outcomes[cell]
            try:
                rows = self._rows(cell, outcome, outcome.n, count, True, "main")
            except world.WorldError as error:
                self._lose(cell, error)
                self._set_apart()
                return False
            for row in rows:
                row.visit, row.position = visit, position
                position += 1
                self.timed_s += row.total_s
            outcome.blocks += rows
            watch.rows += rows
        return True

    def _set_apart(self) -> None:
        """Makes the samples so far `partial`: what follows is measured again from the first visit."""
        for cell, outcome in self.outcomes.items():
            if outcome.blocks:
                self.partial.append((cell, outcome.blocks))
                outcome.blocks = []

    def _finish(self) -> None:
        """Frees the steps; in the first launch says what they computed, and judges it: other work has no time."""
        gone: set[worlds_of_launch.Key] = set()
        for cell in self._live():
            if self.worlds.key(cell) in gone:
                continue
            try:
                self._finish_one(cell, self.outcomes[cell])
            except world.WorldError as error:  # its samples are complete: they stay
                self.outcomes[cell].work = {"status": error.status, "reason": error.reason, "findings": []}
                if not error.alive:
                    gone.add(self.worlds.key(cell))
                    self.worlds.discard(cell)
        found = {cell: self.outcomes[cell].work for cell in self._live() if self.outcomes[cell].work}
        for cell, problem in parallel_census.judge_work(found).items():
            outcome = self.outcomes[cell]
            outcome.status, outcome.reason, outcome.work["status"] = "mismatch", problem, "mismatch"

    def _finish_one(self, cell: cells.Cell, outcome: Outcome) -> None:
        path = self.inputs.archive.parent / f"{program_file.folder_name(cell.id)}.mlirbc"
        wanted = self.launch == 0 and cell.communication not in arms.WITHOUT_COMPUTE
        try:
            answers = self._ask(cell, "finish", work=str(path) if wanted else "")
            if wanted:
                outcome.work = self._reader.work(next((a for a in answers if a), {}), str(path))
        finally:
            pathlib.Path(path).unlink(missing_ok=True)


def _place(communication: str) -> int:
    """`real` is built first, what replays it last."""
    if communication == parallel_grid.REAL:
        return 0
    return 2 if communication in arms.WITHOUT_COMPUTE else 1


def _gate_problem(answers: Sequence[dict[str, Any]], outcome: Outcome) -> str:
    """The first rank whose gate failed, and what it said; its details are the cell's then."""
    for answer, process in zip(answers, outcome.started, strict=True):
        if not answer["gate"]["passed"]:
            outcome.gate = answer["gate"]
            return f"rank {process['rank']}: {answer['gate']['message']}"
    return ""


def _runs(sequence: Sequence[cells.Cell]) -> list[tuple[cells.Cell, int]]:
    """Neighbours that are the same cell become one request of several blocks."""
    runs: list[tuple[cells.Cell, int]] = []
    for cell in sequence:
        if runs and runs[-1][0] == cell:
            runs[-1] = (cell, runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return runs


class _Watch:
    """Looks for others on our cores, over stretches of whole visits; waiting times are of no use, ranks wait.

    Attributes:
      rows: Blocks of the stretch.
    """

    def __init__(self, worlds: worlds_of_launch.Worlds) -> None:
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
