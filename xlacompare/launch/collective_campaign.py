"""A whole run of collectives: launches under a plan that was fixed before the first sample, one record per cell."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

from xlacompare import frameworks
from xlacompare.collectives import config, table
from xlacompare.core import collective_cell as cells
from xlacompare.core import machine, plan, record
from xlacompare.graph import client
from xlacompare.launch import (
    campaign,
    collective_grid,
    collective_records,
    collective_session,
    crews,
    launchers,
    launches,
)
from xlacompare.launch import worlds as worlds_of_launch

FENCE_SIZE = 1 << 20  # the fence is tested once per world and series, on the largest size up to this


@dataclasses.dataclass
class Campaign(launches.Launches):
    """State of a run.

    Attributes:
      failed: Cells that ended otherwise than `ok`, with their status; later launches leave them out.
      times: Seconds by phase, for "where the time went".
    """

    run: config.CollectiveConfig
    grid: collective_grid.Grid
    launcher: launchers.Launcher
    writer: record.Writer
    progress: campaign.Progress
    run_id: str
    census: collective_records.Census
    failed: dict[cells.CollectiveCell, str] = dataclasses.field(default_factory=dict)
    times: dict[str, float] = dataclasses.field(default_factory=dict)
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def execute(self) -> None:
        """Runs everything; records are complete up to wherever an exception leaves it."""
        begin = time.perf_counter()
        cores = worlds_of_launch.cores_of(self.run, self.launcher)
        for cell, reason in self.grid.unsupported:
            self._keep(cell, None, collective_session.Outcome("unsupported", reason), cores)
        self.say_cores(cores)
        if self.grid.cells:
            self.launch_all(begin)

    def live(self) -> bool:
        """Whether any cell is left to measure."""
        return any(cell not in self.failed for cell in self.grid.cells)

    def launch(self, number: int) -> None:
        """Measures all cells once."""
        comparisons = self.grid.comparisons()
        tested = self._fence_tested()
        with worlds_of_launch.Worlds(self.run, self.launcher, f"launch{number}") as worlds:
            for done, (name, members) in enumerate(comparisons.items()):
                live = [cell for cell in members if cell not in self.failed]
                if not live:
                    continue
                total = len(comparisons) * max(1, self.run.launches or plan.LOOKS[0])
                self.progress.phase(f"launch {number + 1}: {name}", number * len(comparisons) + done, total)
                worlds.keep(cell for cell in self.grid.cells if cell.transport == live[0].transport)
                made = collective_session.Session(self.run, worlds, live, number, number == 0 and name in tested)
                begin = time.perf_counter()
                made.measure()
                self.times["timed"] = self.times.get("timed", 0.0) + made.timed_s
                self.times["cells"] = self.times.get("cells", 0.0) + time.perf_counter() - begin
                for cell in live:
                    self._keep(cell, number, made.outcomes[cell], worlds.cores)
            worlds.close()

    def _fence_tested(self) -> set[str]:
        """Comparisons whose cells have their fence tested: a size in the middle of each series."""
        chosen: dict[tuple[str, str], cells.CollectiveCell] = {}
        for cell in sorted(self.grid.cells, key=lambda cell: cell.size_bytes):
            key = (cell.series, cell.transport)
            if key not in chosen or cell.size_bytes <= FENCE_SIZE:
                chosen[key] = cell
        return {cell.comparison for cell in chosen.values()}

    def _keep(
        self,
        cell: cells.CollectiveCell,
        launch: int | None,
        outcome: collective_session.Outcome,
        cores: tuple[int, ...],
    ) -> None:
        """Writes the record of a cell; a collective that did not run has no time either."""
        lowered = next((answer["lowered"] for answer in outcome.finished if "lowered" in answer), None)
        seen: dict[str, Any] = collective_records.NOTHING_RAN
        if outcome.finished:
            seen, removed = self.census.judge(cell, lowered)
            if removed and outcome.status == "ok":
                outcome.status = "mismatch"
                outcome.reason = "; ".join(seen["findings"]) or "the program that ran holds no collective"
        if outcome.status != "ok":
            self.failed[cell] = outcome.status
        made = collective_records.record(self.run, cell, launch, outcome, seen, self.launcher.name, cores)
        self.append("collective", made)


def execute(
    run: config.CollectiveConfig,
    folder: pathlib.Path,
    run_id: str,
    command: list[str],
    progress: campaign.Progress,
    launcher: launchers.Launcher | None = None,
) -> Campaign:
    """Runs a configuration into a folder; the `end` record says how it ended, Ctrl-C included.

    Args:
      run: The configuration.
      folder: For records and logs.
      run_id: Name of the run in its records.
      command: The command line, for the record.
      progress: Who watches.
      launcher: Who starts the ranks; None: this process.

    Raises:
      BadInputError: An unknown name, a folder that cannot be written.
    """
    grid = collective_grid.expand(run)
    writer = record.Writer(folder)
    with client.Client() as parser:
        census = collective_records.Census(parser)
        made = Campaign(run, grid, launcher or crews.BuiltIn(folder), writer, progress, run_id, census)
        about = {"config": run.to_dict(), "command": command, "machine": machine.describe(), "mode": "collective"}
        with made.kept():
            made.append("run", {**about, "definitions": definitions(run)})
            made.execute()
    return made


def definitions(run: config.CollectiveConfig) -> dict[str, Any]:
    """What the words of the records mean: the collectives, and each framework's transports."""
    transports = {
        name: {spec.name: spec.definition for spec in frameworks.transports(name).TRANSPORTS.values()}
        for name in run.frameworks
    }
    return {"collectives": {name: table.get(name).definition for name in run.collectives}, "transports": transports}
