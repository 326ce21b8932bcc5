"""A whole run: inputs, the float64 gate, launches under a plan that was fixed before the first sample, records."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

from xlacompare import frameworks
from xlacompare.core import analysis, config, machine, plan, record
from xlacompare.core import cell as cells
from xlacompare.graph import client
from xlacompare.launch import grid, journal, pool, preparation, process, replaying, session


class Progress:
    """What a run tells whoever watches; the default says nothing."""

    def say(self, text: str) -> None:
        """One line of news."""

    def phase(self, text: str, done: float, total: float) -> None:
        """Work units done so far and in all; drives the remaining time."""


@dataclasses.dataclass
class Campaign(journal.Journal):
    """State of a run.

    Attributes:
      programs: Folder for the programs of the first launch's cells; None: they are not captured.
      replays: The programs that are replayed, once they are captured.
      failed: Cells that ended otherwise than `ok`, with their status; later launches leave them out.
      times: Seconds by phase, for "where the time went".
    """

    run: config.RunConfig
    cells: grid.Grid
    folder: pathlib.Path
    writer: record.Writer
    progress: Progress
    run_id: str
    programs: pathlib.Path | None = None
    replays: replaying.Programs | None = None
    failed: dict[cells.Cell, str] = dataclasses.field(default_factory=dict)
    inputs: dict[str, preparation.Inputs] = dataclasses.field(default_factory=dict)
    exact: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(default_factory=dict)
    times: dict[str, float] = dataclasses.field(default_factory=dict)
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def execute(self) -> None:
        """Runs everything; records are complete up to wherever an exception leaves it."""
        begin = time.perf_counter()
        for cell, reason in self.cells.unsupported:
            self.keep_cell(cell, None, session.Outcome("unsupported", reason), None)
        with self.timed("inputs and reference"):
            self._prepare()
        with self.timed("gate in float64"):
            self._gate()
        replays = any(cell.program for cell in self._live())
        with _deleted(self.folder / replaying.FOLDER if replays else None):
            if replays:
                with self.timed("programs"):
                    self._capture()
            self._launches(begin)
            if self.replays is not None:
                with self.timed("operations"):
                    for made in replaying.operations(self.replays, self.run):
                        self.append("operations", made)

    def _live(self) -> list[cells.Cell]:
        return [cell for cell in self.cells.cells if cell not in self.failed]

    def _capture(self) -> None:
        """The programs to replay; a replay without one has no time, and the steps are measured all the same."""
        self.progress.say("capturing the programs to replay")
        live = self._live()
        sources = {cell: replaying.source_of(cell, self.cells.cells) for cell in live if cell.program}
        with client.Client(self.run.deadline_s) as reader:
            self.replays = replaying.capture(self.run, self.folder, sources, self.inputs, reader)
        for cell, (status, reason) in self.replays.problems.items():
            self.keep_cell(cell, None, session.Outcome(status, f"no program to replay: {reason}"), None)

    def _prepare(self) -> None:
        folder = self.folder / "inputs"
        for name, members in self.cells.comparisons().items():
            self.progress.say(f"inputs and float64 reference of {name}")
            self.inputs[name] = preparation.prepare(members[0], self.run, folder)

    def _gate(self) -> None:
        """The float64 gate, once per framework and workload; frameworks side by side, nothing is timed here."""
        todo: dict[str, list[cells.Cell]] = {}
        for name, members in self.cells.comparisons().items():
            for cell in {member.framework: member for member in reversed(members)}.values():
                arm = frameworks.arms(cell.framework).GATE_ARM
                gated = dataclasses.replace(cell.matched, compiler=arm)
                todo.setdefault(name, []).append(gated)
        with pool.Pool(self.run, self.folder, None, "gate", spread=True) as workers:
            for name, members in todo.items():
                workers.start(members, self._gate_failed)
                asked = [cell for cell in members if self._ask_gate(workers, cell, name)]
                for cell in asked:
                    self._take_gate(workers, cell)
            workers.close()

    def _ask_gate(self, workers: pool.Pool, cell: cells.Cell, name: str) -> bool:
        if (cell.framework, cell.comparison) in self.exact:
            return False  # its worker could not start
        inputs = self.inputs[name]
        self.progress.say(f"gate of {cell.framework}, {cell.workload} in float64")
        workers.worker(cell).begin(
            {
                "op": "gate",
                "cell": cell.to_dict(),
                "archive": str(inputs.archive),
                "reference": str(inputs.reference),
                "arm": cell.compiler,
                "steps": self.run.gate_steps,
            }
        )
        return True

    def _take_gate(self, workers: pool.Pool, cell: cells.Cell) -> None:
        try:
            result = workers.worker(cell).result(self.run.deadline_s)
        except process.WorkerError as error:
            if not error.alive:
                workers.discard(cell)
            self._gate_failed(cell, error)
            return
        status = "ok" if result["passed"] else "mismatch"
        self._gate_record(cell, status, result.get("message", ""), result)

    def _gate_failed(self, cell: cells.Cell, error: process.WorkerError) -> None:
        self._gate_record(cell, error.status, error.reason, {})

    def _gate_record(self, cell: cells.Cell, status: str, reason: str, result: dict[str, Any]) -> None:
        self.exact[cell.framework, cell.comparison] = {"status": status, **result}
        self.append("gate", {"cell": cell.to_dict(), "status": status, "reason": reason, "gate": result})
        if status == "ok":
            return
        for member in self.cells.cells:
            if (member.framework, member.comparison) == (cell.framework, cell.comparison):
                self.keep_cell(member, None, session.Outcome(status, reason, details=result), None)

    def _launches(self, begin: float) -> None:
        chosen = self._plan(0.0, 1.0) if self.run.launches else None
        launch = 0
        while True:
            start = time.perf_counter()
            with self.timed("launches"):
                self._launch(launch)
            launch += 1
            if not any(cell not in self.failed for cell in self.cells.cells):
                return
            if chosen is None:  # the cost of the first launch fixes the looks, nothing of its result does
                chosen = self._plan(time.perf_counter() - begin, time.perf_counter() - start)
            if launch == 1:
                self.append("plan", {"plan": chosen.to_dict(), "mde": analysis.detectable(chosen)})
                between = grid.options_between(self.run)
                self.progress.say(analysis.plan_sentence(chosen, len(self.run.frameworks), between))
                self._say_budget(begin)
            if launch >= chosen.last or (chosen.is_look(launch) and analysis.settled(self.records, chosen, launch)):
                return

    def _say_budget(self, begin: float) -> None:
        if self.run.budget_s is not None and time.perf_counter() - begin > self.run.budget_s:
            self.progress.say(f"--budget_s={self.run.budget_s:g} is spent by the first launch; the least is run")

    def _plan(self, spent_s: float, launch_s: float) -> plan.Plan:
        """The stopping plan: a number of launches, or looks that the budget affords at the cost of a launch."""
        others = {"margin": self.run.margin, "target_ci": self.run.target_ci}
        if self.run.launches:
            return plan.fixed(self.run.launches, **others)
        if self.run.budget_s is None:
            return plan.sequential(**others)
        # What the first launch cost is spent, whatever the budget was: its samples are kept, and the least is planned.
        return plan.from_budget(max(launch_s, self.run.budget_s - spent_s + launch_s), launch_s, **others)

    def _launch(self, launch: int) -> None:
        comparisons = self.cells.comparisons()
        cache = self.folder / "cache" / self.run_id  # a folder may hold several runs, and "cold" must be true of each
        dumping = self.programs is not None or bool(self.run.ablate_flags)
        dumps = self.folder / "dumps" if dumping and launch == 0 else None
        pooled = pool.Pool(self.run, self.folder, cache, f"launch{launch}", dumps=dumps)
        with _deleted(dumps), pooled as workers, client.Client() as reader:
            for done, (name, members) in enumerate(comparisons.items()):
                live = [cell for cell in members if cell not in self.failed]
                if not live:
                    continue
                total = len(comparisons) * max(1, self.run.launches or plan.LOOKS[-1])
                self.progress.phase(f"launch {launch + 1}: {name}", launch * len(comparisons) + done, total)
                begin = time.perf_counter()
                given = self.run, workers, live, self.inputs[name], launch
                made = session.Session(*given, self.programs, None if launch else reader, self.replays)
                made.measure()
                self._keep(made, launch, time.perf_counter() - begin)
            workers.close()

    def _keep(self, made: session.Session, launch: int, wall_s: float) -> None:
        wall = {**dataclasses.asdict(made.wall), "wall_s": wall_s}
        for cell, blocks in made.partial:
            self.append("partial", {"cell": cell.to_dict(), "launch": launch, "blocks": blocks})
        for cell, outcome in made.outcomes.items():
            self.keep_cell(cell, launch, outcome, wall)

    def keep_cell(
        self, cell: cells.Cell, launch: int | None, outcome: session.Outcome, wall: dict[str, Any] | None
    ) -> None:
        if outcome.status != "ok":
            self.failed[cell] = outcome.status
            self.progress.say(f"{cell.id}: {outcome.status}: {outcome.reason}")
        inputs = self.inputs.get(cell.comparison)
        self.append(
            "replay" if cell.program else "cell",
            {
                "comparison": cell.comparison,
                "launch": launch,
                "cell": cell.to_dict(),
                "status": outcome.status,
                "reason": outcome.reason,
                "gate": {
                    "exact": self.exact.get((cell.framework, cell.comparison)),
                    "arm": outcome.built.get("gate", outcome.details),
                },
                "compile": {**outcome.built.get("compile", {}), "rebuild": outcome.finished.get("rebuild")},
                "warm_up": outcome.built.get("warm_up"),
                "fence": outcome.built.get("fence"),
                "steps_per_block": outcome.built.get("steps_per_block"),
                "memory": outcome.finished.get("memory"),
                "program": outcome.program,
                "evidence": outcome.finished.get("evidence"),
                "census": outcome.census,
                "replay": outcome.built.get("replay"),
                "start": {k: v for k, v in outcome.started.items() if k != "describe"},
                "wall": wall,
                "facts": inputs.facts if inputs else {},
                "blocks": preparation.columns(outcome.blocks),
                "environment": preparation.environment_of(cell, self.run, outcome.started, inputs),
            },
        )


@contextlib.contextmanager
def _deleted(folder: pathlib.Path | None) -> Iterator[None]:
    """Deletes a folder at the end, however that comes."""
    try:
        yield
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def execute(
    run: config.RunConfig,
    cells_of_run: grid.Grid,
    folder: pathlib.Path,
    run_id: str,
    command: list[str],
    progress: Progress,
    programs: pathlib.Path | None = None,
) -> Campaign:
    """Runs a configuration into a folder; the `end` record says how it ended, Ctrl-C included.

    `programs`: folder for the programs of the first launch's cells; None: they are not captured.
    """
    writer = record.Writer(folder)
    made = Campaign(run, cells_of_run, folder, writer, progress, run_id, programs)
    about = {"config": run.to_dict(), "command": command, "machine": machine.describe()}
    with made.kept():
        made.append("run", {**about, "definitions": grid.definitions(run.frameworks)})
        made.execute()
    return made
