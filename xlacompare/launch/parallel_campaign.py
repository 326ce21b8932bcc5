"""A whole run of training over ranks: inputs and reference, launches under a fixed plan, one record per cell."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import machine, record
from xlacompare.graph import client
from xlacompare.launch import (
    campaign,
    crews,
    launchers,
    launches,
    parallel_building,
    parallel_census,
    parallel_grid,
    parallel_records,
    parallel_session,
    preparation,
    rank_rows,
)
from xlacompare.launch import worlds as worlds_of_launch
from xlacompare.parallel import config


@dataclasses.dataclass
class Campaign(launches.Launches):
    """State of a run.

    Attributes:
      inputs: What the ranks read, by comparison.
      failed: Cells that ended otherwise than `ok`, with their status; later launches leave them out.
      times: Seconds by phase, for "where the time went".
    """

    run: config.ParallelConfig
    grid: parallel_grid.Grid
    folder: pathlib.Path
    launcher: launchers.Launcher
    writer: record.Writer
    progress: campaign.Progress
    run_id: str
    reader: parallel_census.Reader
    inputs: dict[str, preparation.Inputs] = dataclasses.field(default_factory=dict)
    failed: dict[cells.Cell, str] = dataclasses.field(default_factory=dict)
    times: dict[str, float] = dataclasses.field(default_factory=dict)
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def execute(self) -> None:
        """Runs everything; records are complete up to wherever an exception leaves it."""
        begin = time.perf_counter()
        worlds = self._worlds("none")
        for cell, reason in self.grid.unsupported:
            self._keep(cell, None, parallel_building.Outcome("unsupported", reason), worlds)
        self.say_cores(worlds.cores)
        if self.grid.cells:
            with self.timed("inputs and reference"):
                self._prepare()
            self.launch_all(begin)

    def live(self) -> bool:
        """Whether any cell is left to measure."""
        return any(cell not in self.failed for cell in self.grid.cells)

    def launch(self, number: int) -> None:
        """Measures all comparisons once, in fresh worlds."""
        comparisons = self.grid.comparisons()
        with self._worlds(f"launch{number}") as worlds:
            for done, (name, members) in enumerate(comparisons.items()):
                live = [cell for cell in members if cell not in self.failed]
                if not live:
                    continue
                tell = functools.partial(self._tell, f"launch {number + 1}: {name}", number * len(comparisons) + done)
                self._measure(worlds, live, number, tell)
            worlds.close()

    def _tell(self, about: str, done: int, text: str) -> None:
        total = len(self.grid.comparisons()) * max(1, self.run.launches)
        self.progress.phase(f"{about}: {text}", done, total)

    def _measure(
        self, worlds: worlds_of_launch.Worlds, live: list[cells.Cell], number: int, tell: Callable[[str], None]
    ) -> None:
        """One comparison; an interrupt keeps the cells that have samples."""
        worlds.keep(cell for cell in self.grid.cells if cell.transport == live[0].transport)
        inputs = self.inputs[live[0].comparison]
        traces = self.folder / "traces" / f"launch{number}" if self.run.profile else None
        made = parallel_session.Session(self.run, worlds, live, inputs, number, self.reader, tell, traces)
        begin, whole = time.perf_counter(), False
        try:
            made.measure()
            whole = True
        finally:
            self.times["timed"] = self.times.get("timed", 0.0) + made.timed_s
            self.times["cells"] = self.times.get("cells", 0.0) + time.perf_counter() - begin
            for cell, rows in made.partial:
                self.append("partial", {"cell": cell.to_dict(), "launch": number, "blocks": rank_rows.columns(rows)})
            for cell in live if whole else made.measured():
                self._keep(cell, number, made.outcomes[cell], worlds)

    def _worlds(self, name: str) -> worlds_of_launch.Worlds:
        return worlds_of_launch.Worlds(self.run, self.launcher, name, parallel_grid.arm_of)

    def _prepare(self) -> None:
        """Inputs and reference: those of the step on one device, the same for every strategy and transport."""
        folder = (self.folder / "inputs").resolve()  # ranks read there
        made: dict[str, preparation.Inputs] = {}
        for name, members in self.grid.comparisons().items():
            single = dataclasses.replace(members[0], strategy="single", mesh=(1,), transport="none")
            if single.comparison not in made:
                self.progress.say(f"inputs and float64 reference of {single.comparison}")
                made[single.comparison] = preparation.prepare(single, self.run, folder)
            self.inputs[name] = made[single.comparison]

    def _keep(
        self,
        cell: cells.Cell,
        launch: int | None,
        outcome: parallel_building.Outcome,
        worlds: worlds_of_launch.Worlds,
    ) -> None:
        if outcome.status != "ok":
            self.failed[cell] = outcome.status
            self.progress.say(f"{cell.id}: {outcome.status}: {outcome.reason}")
        inputs = self.inputs.get(cell.comparison)
        about = (inputs, self.launcher.name, worlds.spec(cell))
        self.append(parallel_records.KIND, parallel_records.record(self.run, cell, launch, outcome, *about))


def execute(
    run: config.ParallelConfig,
    grid: parallel_grid.Grid,
    folder: pathlib.Path,
    run_id: str,
    command: list[str],
    progress: campaign.Progress,
    launcher: launchers.Launcher | None = None,
) -> Campaign:
    """Measures a grid into a folder; the `end` record says how it ended, Ctrl-C included.

    Args:
      run: The configuration.
      grid: What to measure: `parallel_grid.expand`, or cells of an experiment's own.
      folder: For records, inputs and logs.
      run_id: Name of the run in its records.
      command: The command line, for the record.
      progress: Who watches.
      launcher: Who starts the ranks; None: this process.

    Raises:
      BadInputError: A folder that cannot be written.
    """
    writer = record.Writer(folder)
    with client.Client() as parser:
        reader = parallel_census.Reader(parser)
        who = launcher or crews.BuiltIn(folder)
        made = Campaign(run, grid, folder, who, writer, progress, run_id, reader)
        about = {"config": run.to_dict(), "command": command, "machine": machine.describe(), "mode": "parallel"}
        with made.kept():
            made.append("run", {**about, "definitions": parallel_grid.definitions(run)})
            made.execute()
    return made
