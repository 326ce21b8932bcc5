"""The workers of one launch: one per framework and environment, started together, replaced when they die."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import config, machine
from xlacompare.launch import grid, process

Key = tuple[Any, ...]


class Pool:
    """Workers by key; all of them end with `close`."""

    def __init__(
        self,
        run: config.RunConfig,
        folder: pathlib.Path,
        cache: pathlib.Path | None,
        name: str,
        spread: bool = False,
        dumps: pathlib.Path | None = None,
    ) -> None:
        """Makes an empty pool.

        Args:
          run: The configuration.
          folder: The run's folder; logs go below it.
          cache: Folder of the compilers' disk caches, or None.
          name: Names the logs.
          spread: Give each worker other cores (for work that is not timed); otherwise all share the same cores.
          dumps: Folder for what compilers write where programs are saved; deleted by whoever names it.
        """
        self._run, self._folder, self._cache, self._name, self._spread = run, folder, cache, name, spread
        self._dumps = None if dumps is None else str(dumps.resolve())
        self._workers: dict[Key, process.Worker] = {}
        self._started: dict[Key, dict[str, Any]] = {}
        self._count = 0

    def key(self, cell: cells.Cell) -> Key:
        """Cells with equal keys share a process."""
        environment = grid.worker_environment(cell, self._run, self._cache_of(cell), self._dumps)
        return (cell.framework, "threads" in dict(cell.changed), tuple(sorted(environment.items(), key=str)))

    def _cache_of(self, cell: cells.Cell) -> str | None:
        # Absolute: Inductor runs the compiler in a folder of its own.
        return None if self._cache is None else str((self._cache / cell.framework).resolve())

    def _cores(self) -> tuple[int, ...]:
        available = machine.available_cores()
        if self._spread:
            shift = self._count % len(available)
            return available[shift:] + available[:shift]
        return machine.default_cores(self._run.num_cores)

    def start(self, members: Sequence[cells.Cell], failed: Callable[[cells.Cell, process.WorkerError], None]) -> None:
        """Starts the workers that these cells need and that are not running; imports run side by side.

        Args:
          members: Cells.
          failed: Called for each cell whose worker could not start.
        """
        fresh: dict[Key, list[cells.Cell]] = {}
        for cell in members:
            key = self.key(cell)
            if key not in self._workers:
                self._workers[key] = self._spawn(cell)
                self._workers[key].begin_start()
                fresh[key] = []
            if key in fresh:
                fresh[key].append(cell)
        for key, needing in fresh.items():
            try:
                self._started[key] = self._take_start(key, needing[0])
            except process.WorkerError as error:
                self.discard(needing[0])
                for cell in needing:
                    failed(cell, error)

    def _take_start(self, key: Key, cell: cells.Cell) -> dict[str, Any]:
        """The answer to a start; a worker that died of it is started once more, because all its cells hang on it.

        Raises:
          WorkerError: The second start failed too, or the first in a way that would come again.
        """
        try:
            started: dict[str, Any] = self._workers[key].result(self._run.deadline_s)
            return started
        except process.WorkerError as error:
            if error.status != "crash" or error.alive:
                raise
            self.discard(cell)
            self._workers[key] = self._spawn(cell)
            self._workers[key].begin_start()
            again: dict[str, Any] = self._workers[key].result(self._run.deadline_s)
            return {**again, "started_again_after": error.reason}

    def _spawn(self, cell: cells.Cell) -> process.Worker:
        environment = grid.worker_environment(cell, self._run, self._cache_of(cell), self._dumps)
        cores = grid.pinned_cores(cell, self._run, self._cores())
        self._count += 1
        log = self._folder / "logs" / f"{self._name}-{cell.framework}-{self._count}.log"
        return process.Worker(cell.framework, environment, log, cores)

    def worker(self, cell: cells.Cell) -> process.Worker:
        """The running worker of a cell."""
        return self._workers[self.key(cell)]

    def started(self, cell: cells.Cell) -> dict[str, Any]:
        """What the cell's worker answered to its start: `describe`, `import_s`, `start_s`, `affinity`."""
        return self._started[self.key(cell)]

    def discard(self, cell: cells.Cell) -> None:
        """Ends a cell's worker at once."""
        key = self.key(cell)
        self._workers.pop(key).kill()
        self._started.pop(key, None)

    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.pid for worker in self._workers.values()]

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()
        self._started.clear()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends all workers without asking."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        self._started.clear()
