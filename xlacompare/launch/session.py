"""One comparison in one launch: build its cells, then visit the workers in balanced order, block by block.

A visit to a worker runs its arms forwards and backwards (A B B A, A B C C B A): two pairs per visit whose slow drift
cancels. The order of workers and of arms is balanced over visits (`schedule`). A visit during which others used more
than 10% of the cores is run again; both are kept, and the first is marked.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import config, errors, foreign, machine, schedule, xla_options
from xlacompare.graph import client
from xlacompare.launch import counting, preparation, process, replaying
from xlacompare.launch import pool as pools

MAX_STEPWISE_VISITS = 3  # and one for every four others, so that slow arms do not spend their time there
MAX_FOREIGN_SHARE = 0.10
MAX_REPEATED_SHARE = 0.5  # at most half as many visits again: on a busy machine everything is disturbed


@dataclasses.dataclass
class Outcome:
    """What became of a cell in a launch."""

    status: str = "ok"
    reason: str = ""
    built: dict[str, Any] = dataclasses.field(default_factory=dict)
    finished: dict[str, Any] = dataclasses.field(default_factory=dict)
    blocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    started: dict[str, Any] = dataclasses.field(default_factory=dict)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    program: dict[str, Any] | None = None
    census: dict[str, Any] | None = None


@dataclasses.dataclass
class Wall:
    """Where the wall time of a comparison in a launch went, in seconds."""

    build_s: float = 0.0
    measure_s: float = 0.0
    timed_s: float = 0.0


class Session:
    """Measures one comparison in one launch."""

    def __init__(
        self,
        run: config.RunConfig,
        pool: pools.Pool,
        members: Sequence[cells.Cell],
        inputs: preparation.Inputs,
        launch: int,
        programs: pathlib.Path | None = None,
        reader: client.Client | None = None,
        replays: replaying.Programs | None = None,
    ) -> None:
        """`programs`: folder for captured programs; `reader`: counts programs; both for the first launch only.

        `replays`: the programs of the cells that are replays.
        """
        self.replays = replays
        self.run, self.pool, self.inputs, self.launch = run, pool, inputs, launch
        self.programs = programs if launch == 0 else None
        self.counting = counting.Counting(reader, inputs.archive.parent, run.deadline_s) if reader else None
        self.members = list(members)
        self.outcomes = {cell: Outcome() for cell in members}
        self.partial: list[tuple[cells.Cell, list[dict[str, Any]]]] = []
        self.wall = Wall()

    def measure(self) -> None:
        """Builds and times all cells; every cell has its outcome afterwards.

        When a worker dies, or a cell fails during a visit, the cell in flight is blamed, the samples so far are set
        apart as `partial`, and the rest is measured again without it in fresh workers, so that every sample of a launch
        has the same process and the same neighbours behind it.
        """
        while live := self._live():
            self.pool.start(live, self._fail)
            begin = time.perf_counter()
            intact = self._build()
            self.wall.build_s += time.perf_counter() - begin
            if intact:
                self._check_options()
            if intact and self._live():
                begin = time.perf_counter()
                intact = self._visits()
                self.wall.measure_s += time.perf_counter() - begin
            if intact:
                self._finish()
                self._judge()
                return

    def _live(self) -> list[cells.Cell]:
        return [cell for cell in self.members if self.outcomes[cell].status == "ok"]

    def _fail(self, cell: cells.Cell, error: process.WorkerError) -> None:
        outcome = self.outcomes[cell]
        outcome.status, outcome.reason, outcome.details = error.status, error.reason, error.details

    def _lose(self, cell: cells.Cell, error: process.WorkerError) -> bool:
        """Notes a failed request; returns whether the worker, and with it the other cells, survived."""
        self._fail(cell, error)
        if error.alive:
            return True
        self._set_apart()
        return False

    def _set_apart(self) -> None:
        """Makes the samples so far `partial` and ends the workers: what follows is measured again from the start."""
        for other in self.members:
            outcome = self.outcomes[other]
            if outcome.blocks:
                self.partial.append((other, outcome.blocks))
                outcome.blocks = []
        self._forget()

    def _forget(self) -> None:
        """Fresh workers for all: cells that were built in the others would else be built twice in one process."""
        self.pool.kill()

    def _build(self) -> bool:
        for cell in self._rotated(self._live()):
            request = self._build_request(cell)
            try:
                self.outcomes[cell].started = self.pool.started(cell)
                self.outcomes[cell].built = self.pool.worker(cell).ask(request, self.run.deadline_s)
            except process.WorkerError as error:
                if not self._lose(cell, error):
                    return False
        return True

    def _check_options(self) -> None:
        """Before anything is timed.

        Raises:
          BadInputError: An option of the user's own is unknown to every XLA of the run.
        """
        reasons: dict[str, list[str]] = {}
        for cell, outcome in self.outcomes.items():
            if cell.option is not None:
                reasons.setdefault(cell.option, []).append(outcome.reason if outcome.status == "unsupported" else "")
        for option, found in reasons.items():
            if problem := xla_options.mistaken(option, found):
                raise errors.BadInputError(problem)

    def _build_request(self, cell: cells.Cell) -> dict[str, Any]:
        if cell.program and self.replays is not None:
            return self.replays.request(cell, self.run)
        return preparation.build_request(cell, self.inputs, self.run, fence=self.launch == 0)

    def _rotated(self, members: list[cells.Cell]) -> list[cells.Cell]:
        """Another cell is first in every launch: the first one pays for what its process loads lazily."""
        shift = self.launch % max(1, len(members))
        return members[shift:] + members[:shift]

    def _groups(self) -> list[list[cells.Cell]]:
        grouped: dict[pools.Key, list[cells.Cell]] = {}
        for cell in self._live():
            grouped.setdefault(self.pool.key(cell), []).append(cell)
        return list(grouped.values())

    def _visits(self) -> bool:
        """Runs the planned visits; False when a cell failed, whether its worker died of it or not."""
        groups = self._groups()
        visits = schedule.number_of_visits(
            self.run.cell_s, [[self._block_s(cell) for cell in group] for group in groups]
        )
        seed = self.run.seed * 1009 + self.launch
        outer = list(schedule.orders(range(len(groups)), visits, seed))
        inner = [list(schedule.orders(range(len(g)), visits, seed + 1 + i)) for i, g in enumerate(groups)]
        repeats = int(visits * len(groups) * MAX_REPEATED_SHARE)
        every = visits // min(MAX_STEPWISE_VISITS, max(1, visits // 4))
        for visit in range(visits):
            for index in outer[visit]:
                order = [groups[index][i] for i in inner[index][visit]]
                sequence = [(cell, "block") for cell in order + order[::-1]]
                disturbed = self._visit(sequence, visit, "main")
                if disturbed and repeats > 0:
                    repeats -= 1
                    disturbed = self._visit(sequence, visits + repeats, "main")
                if disturbed is None:
                    return False
            if visit % every == every // 2 and not self._stepwise(groups, visit):
                return False
        return True

    def _stepwise(self, groups: list[list[cells.Cell]], visit: int) -> bool:
        for group in groups:
            for cell in (member for member in group if not member.program):
                modes = ["block", "stepwise", "stepwise", "block"]
                if self._visit([(cell, mode) for mode in modes], visit, "stepwise") is None:
                    return False
        return True

    def _block_s(self, cell: cells.Cell) -> float:
        built = self.outcomes[cell].built
        return float(built["steps_per_block"] * built["step_s"])

    def _visit(self, sequence: list[tuple[cells.Cell, str]], visit: int, series: str) -> bool | None:
        """Runs one visit and keeps its blocks; returns whether it was disturbed, None when a cell failed."""
        watched = machine.default_cores(self.run.num_cores)
        worker = self.pool.worker(sequence[0][0])
        before = foreign.snapshot(watched, [worker.pid])
        taken: list[tuple[cells.Cell, dict[str, Any]]] = []
        for cell, blocks in _runs(sequence):
            try:
                answer = worker.ask({"op": "visit", "blocks": blocks}, self.run.deadline_s)
            except process.WorkerError as error:
                self._fail(cell, error)
                self._set_apart()  # even where the worker lives: the order of the visits has lost a cell
                return None
            taken += [(cell, block) for block in answer]
        use = foreign.foreign_cpu(before, foreign.snapshot(watched, [worker.pid]))
        disturbed = bool(use.disturbed(MAX_FOREIGN_SHARE))
        for position, (cell, block) in enumerate(taken):
            self.wall.timed_s += block["total_s"]
            block |= {"visit": visit, "position": position, "series": series, "disturbed": disturbed}
            shares = {"foreign_share": use.share, "wait_share": use.wait_share, "lost_share": use.lost_share}
            self.outcomes[cell].blocks.append({**block, **shares})
        return disturbed

    def _finish(self) -> None:
        for cell in self._live():
            own = not cell.program  # a replay runs a program that is known: it is not counted, saved or printed
            if own and self.counting is not None and not self.counting.ask(self.pool.worker(cell), cell):
                self.pool.kill()
                return
            if own and self.programs is not None and not self._save_program(cell, self.programs):
                return
            request = {"op": "finish", "cell": cell.id, "rebuild": self.launch == 0}
            request["evidence"] = own and self.launch == 0 and bool(self.run.ablate_flags)
            try:
                self.outcomes[cell].finished = self.pool.worker(cell).ask(request, self.run.deadline_s)
            except process.WorkerError as error:  # its samples are complete: they stay
                self.outcomes[cell].finished = {"problem": f"{error.status} when it was freed: {error.reason}"}
                if not error.alive:
                    self.pool.kill()
                    return

    def _judge(self) -> None:
        """After everything else: a cell that does other work than the workload has no time, whatever it measured."""
        if self.counting is None:
            return
        wrong = self.counting.judge()
        for cell, found in self.counting.found.items():
            self.outcomes[cell].census = found
        for cell, problem in wrong.items():
            self.outcomes[cell].status, self.outcomes[cell].reason = "mismatch", problem

    def _save_program(self, cell: cells.Cell, folder: pathlib.Path) -> bool:
        """After the last sample, none of which depends on it; returns whether the worker survived."""
        request = preparation.program_request(cell, self.inputs, folder)
        try:
            answer = self.pool.worker(cell).ask(request, self.run.deadline_s)
        except process.WorkerError as error:
            self.outcomes[cell].program = {"status": error.status, "reason": error.reason}
            if not error.alive:
                self.pool.kill()
            return error.alive
        self.outcomes[cell].program = {"status": "ok", **answer}
        return True


def _runs(sequence: list[tuple[cells.Cell, str]]) -> list[tuple[cells.Cell, list[dict[str, str]]]]:
    """Neighbours of the same cell become one request, so that a dead worker names the cell in flight."""
    runs: list[tuple[cells.Cell, list[dict[str, str]]]] = []
    for cell, mode in sequence:
        if not runs or runs[-1][0] != cell:
            runs.append((cell, []))
        runs[-1][1].append({"cell": cell.id, "mode": mode})
    return runs
