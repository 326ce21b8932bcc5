"""The programs that are replayed: captured once, in workers of their own, before the first launch.

The workers of the launches capture nothing, so that a run with replays times its steps as one without.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import config
from xlacompare.graph import client
from xlacompare.launch import pool as pools
from xlacompare.launch import preparation, process, replay_bench

FOLDER = "replays"  # below the run's folder, until its end
MOST_ENTRIES = 40  # operations of a pair that a record keeps


@dataclasses.dataclass
class Programs:
    """Captured programs of a run.

    Attributes:
      folders: Replay -> folder of the program that it runs.
      problems: Replay without one -> (status, reason).
    """

    folders: dict[cells.Cell, pathlib.Path] = dataclasses.field(default_factory=dict)
    problems: dict[cells.Cell, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def request(self, cell: cells.Cell, run: config.RunConfig) -> dict[str, Any]:
        """What a worker is asked, to build a replay."""
        folder = self.folders[cell]
        return replay_bench.request(cell.id, folder, folder / replay_bench.COMPUTATION, run.min_block_s)


def source_of(cell: cells.Cell, members: Iterable[cells.Cell]) -> cells.Cell:
    """The cell whose program a replay runs: the same arm and settings' label of the framework that it names."""
    wanted = (cell.program, cell.compiler, cell.comparison, cell.label)
    return next(m for m in members if not m.program and (m.framework, m.compiler, m.comparison, m.label) == wanted)


def capture(
    run: config.RunConfig,
    folder: pathlib.Path,
    sources: Mapping[cells.Cell, cells.Cell],
    inputs: Mapping[str, preparation.Inputs],
    reader: client.Client,
) -> Programs:
    """Builds each cell whose program is replayed and saves the program; nothing is timed.

    Args:
      run: The configuration.
      folder: The run's folder.
      sources: Replay -> the cell whose program it runs.
      inputs: By comparison.
      reader: Makes of StableHLO what XLA reads where it cannot read that.
    """
    wanted = list(dict.fromkeys(sources.values()))
    folders: dict[cells.Cell, pathlib.Path] = {}
    problems: dict[cells.Cell, tuple[str, str]] = {}

    def failed(cell: cells.Cell, error: process.WorkerError) -> None:
        problems[cell] = (error.status, error.reason)

    with pools.Pool(run, folder, None, "programs", spread=True) as workers:
        workers.start(wanted, failed)
        for cell in wanted:
            if cell in problems:
                continue
            try:
                folders[cell] = _captured(run, folder, cell, inputs[cell.comparison], workers, reader)
            except process.WorkerError as error:
                failed(cell, error)
                if not error.alive:
                    workers.discard(cell)
                    workers.start([c for c in wanted if c not in folders and c not in problems], failed)
            except client.ProblemError as problem:
                problems[cell] = ("unsupported", str(problem))
        workers.close()
    return Programs(
        {replay: folders[cell] for replay, cell in sources.items() if cell in folders},
        {replay: problems[cell] for replay, cell in sources.items() if cell not in folders},
    )


def _captured(
    run: config.RunConfig,
    folder: pathlib.Path,
    cell: cells.Cell,
    inputs: preparation.Inputs,
    workers: pools.Pool,
    reader: client.Client,
) -> pathlib.Path:
    """Folder of a cell's program."""
    worker = workers.worker(cell)
    worker.ask(preparation.build_request(cell, inputs, run, fence=False), run.deadline_s)
    request = preparation.program_request(cell, inputs, (folder / FOLDER).resolve())
    answer = worker.ask(request, run.deadline_s)
    worker.ask({"op": "finish", "cell": cell.id, "rebuild": False, "evidence": False}, run.deadline_s)
    made = pathlib.Path(answer["folder"])
    if answer.get("status") == "unsupported":
        raise client.ProblemError(answer["reason"])
    reader.ask("computation", str(made), str(made / replay_bench.COMPUTATION))
    return made


def operations(found: Programs, run: config.RunConfig) -> Iterator[dict[str, Any]]:
    """What each two programs spend their time on, for records: after the last launch, since it takes the cores.

    Times are of jaxlib's CPU client; for another platform they would say nothing, and the diff of the programs stands
    in: what is there in one of them only, or differs, ranked by FLOPs and bytes.
    """
    own = [cell for cell in found.folders if cell.program == cell.framework]
    with client.Client(run.deadline_s) as reader:
        for a, b in itertools.combinations(own, 2):
            if (a.comparison, a.label) != (b.comparison, b.label):
                continue
            sides = {side: dataclasses.replace(cell, program="").to_dict() for side, cell in (("a", a), ("b", b))}
            folders, measured = (str(found.folders[a]), str(found.folders[b])), run.platform == "cpu"
            try:
                made = reader.ask("costs", *folders) if measured else reader.ask("compare", *folders, "stablehlo")
            except client.ProblemError as problem:
                yield {**sides, "measured": measured, "problem": str(problem)}
            else:
                yield {**sides, "measured": measured, **made, "entries": made["entries"][:MOST_ENTRIES]}
