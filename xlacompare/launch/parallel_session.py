"""Measures one comparison of training over ranks in one launch: build its arms, visit the worlds in balanced order.

All arms of a framework live in one world, so that the launch cancels in their differences; the worlds of frameworks
stand side by side, one active at a time. A visit to a world runs its arms forwards and backwards (A B C C B A), so that
slow drift cancels in every pair; the order of worlds and of arms is balanced over visits (`core.schedule`).
`real` is built first: what it communicates is what the arms without compute replay, and what the others are held
against. When a world dies, or a cell fails during a visit, the cell in flight is blamed, the samples so far are set
apart as `partial`, and the rest is measured again without it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

from xlacompare.core import cell as cells
from xlacompare.core import schedule
from xlacompare.graph import program_file
from xlacompare.launch import (
    parallel_building,
    parallel_census,
    parallel_grid,
    preparation,
    profiles,
    rank_rows,
    watch,
    world,
)
from xlacompare.launch import worlds as worlds_of_launch
from xlacompare.parallel import arms, config

MAX_REPEATED_SHARE = 0.5  # at most half as many visits again: on a busy machine everything is disturbed


class Session(parallel_building.Building):
    """One comparison in one launch."""

    def __init__(
        self,
        run: config.ParallelConfig,
        worlds: worlds_of_launch.Worlds,
        members: Sequence[cells.Cell],
        inputs: preparation.Inputs,
        launch: int,
        reader: parallel_census.Reader,
        tell: Callable[[str], None] = lambda _: None,
        traces: pathlib.Path | None = None,
    ) -> None:
        """Makes the session; `measure` runs it. Arguments: see `parallel_building.Building`; `traces` is the folder for
        traces of `real`, None for none.
        """
        super().__init__(run, worlds, members, inputs, launch, reader, tell)
        self.traces = traces
        shift = launch % len(members)
        rotated = [*members[shift:], *members[:shift]]
        self.members = sorted(rotated, key=lambda cell: _place(cell.communication))
        self.partial: list[tuple[cells.Cell, list[rank_rows.Row]]] = []
        self.timed_s = 0.0
        self._ready: set[cells.Cell] = set()

    def measure(self) -> None:
        """Builds and times all cells; every cell has its outcome afterwards."""
        while self._live():
            if self._build() and self._live() and self._visits():
                self._finish()
                return

    def measured(self) -> list[cells.Cell]:
        """Cells that have samples or failed, wherever an interrupt left the session; their work is not counted then."""
        found = [cell for cell in self._live() if self.outcomes[cell].blocks]
        for cell in found:
            self.outcomes[cell].work = self.outcomes[cell].work or {
                "status": "unsupported", "reason": "interrupted before it was counted", "findings": [],
            }  # fmt: skip
        return found + [cell for cell in self.members if self.outcomes[cell].status != "ok"]

    def _live(self) -> list[cells.Cell]:
        return [cell for cell in self.members if self.outcomes[cell].status == "ok"]

    def _lose(self, cell: cells.Cell, error: world.WorldError) -> None:
        """Blames a cell; where its world is gone, what was built in it is gone too."""
        outcome = self.outcomes[cell]
        outcome.status, outcome.reason = error.status, error.reason
        if not error.alive:
            key = self.worlds.key(cell)
            self.worlds.discard(cell)
            self.loaded.discard(key)
            self._ready = {other for other in self._ready if self.worlds.key(other) != key}

    def _build(self) -> bool:
        """Builds what is not built; False when a world died, so that what it held must be built again."""
        for cell in self._live():
            if cell in self._ready:
                continue
            outcome = self.outcomes[cell] = parallel_building.Outcome()
            try:
                self.build_one(cell, outcome)
                self._ready.add(cell)
            except world.WorldError as error:
                self._lose(cell, error)
                if not error.alive:
                    return False
        return True

    def _groups(self) -> list[list[cells.Cell]]:
        grouped: dict[worlds_of_launch.Key, list[cells.Cell]] = {}
        for cell in self._live():
            grouped.setdefault(self.worlds.key(cell), []).append(cell)
        return list(grouped.values())

    def _visits(self) -> bool:
        """Runs the planned visits, and others in place of disturbed ones; False when a cell failed."""
        groups = self._groups()
        planned = schedule.number_of_visits(
            self.run.cell_s, [[self.outcomes[cell].block_s for cell in group] for group in groups]
        )
        most = planned + int(planned * MAX_REPEATED_SHARE)
        seed = self.run.seed * 1009 + self.launch
        outer = list(schedule.orders(range(len(groups)), most, seed))
        inner = [list(schedule.orders(range(len(g)), most, seed + 1 + i)) for i, g in enumerate(groups)]
        looking, visit, quiet = watch.Watch(self.worlds), 0, 0
        while quiet < planned and visit < most:
            self.tell(f"visit {visit + 1} of {planned}")
            for index in outer[visit]:
                order = [groups[index][i] for i in inner[index][visit]]
                if not self._visit(order + order[::-1], visit, looking):
                    return False
            visit += 1
            quiet += 1
            if quiet == planned or looking.seconds >= watch.STRETCH_S:
                quiet -= looking.disturbed_visits()
        looking.disturbed_visits()
        return True

    def _visit(self, sequence: list[cells.Cell], visit: int, looking: watch.Watch) -> bool:
        """Runs one visit to a world and keeps its blocks; False when a cell failed: the order has lost it."""
        position = 0
        for cell, count in _runs(sequence):
            outcome = self.outcomes[cell]
            try:
                rows = self.rows(cell, outcome, outcome.n, count, True, "main")
            except world.WorldError as error:
                self._lose(cell, error)
                self._set_apart()
                return False
            for row in rows:
                row.visit, row.position = visit, position
                position += 1
                self.timed_s += row.total_s
            outcome.blocks += rows
            looking.rows += rows
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
                self._profile(cell, self.outcomes[cell])
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

    def _profile(self, cell: cells.Cell, outcome: parallel_building.Outcome) -> None:
        """Traces steps of `real`, after all timed blocks: a profiler that was on once may leave things behind."""
        if self.traces is not None and cell.communication == parallel_grid.REAL:
            folder = self.traces.resolve() / program_file.folder_name(cell.id)  # ranks write there
            try:
                outcome.profile = profiles.of_cell(self.worlds.of(cell), cell.id, folder)
            except world.WorldError as error:
                outcome.profile = profiles.failed(folder, error.reason)
                raise

    def _finish_one(self, cell: cells.Cell, outcome: parallel_building.Outcome) -> None:
        path = self.inputs.archive.parent / f"{program_file.folder_name(cell.id)}.mlirbc"
        wanted = self.launch == 0 and cell.communication not in arms.WITHOUT_COMPUTE
        try:
            answers = self.ask(cell, "finish", work=str(path) if wanted else "")
            if wanted:
                outcome.work = self.reader.work(next((a for a in answers if a), {}), str(path))
        finally:
            pathlib.Path(path).unlink(missing_ok=True)


def _runs(sequence: Sequence[cells.Cell]) -> list[tuple[cells.Cell, int]]:
    """Neighbours that are the same cell become one request of several blocks."""
    runs: list[tuple[cells.Cell, int]] = []
    for cell in sequence:
        if runs and runs[-1][0] == cell:
            runs[-1] = (cell, runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return runs


def _place(communication: str) -> int:
    """`real` is built first, what replays it last."""
    if communication == parallel_grid.REAL:
        return 0
    return 2 if communication in arms.WITHOUT_COMPUTE else 1
