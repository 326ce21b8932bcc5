"""The worlds of one launch: one per framework, transport and mode, replaced when they die."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xlacompare.collectives import config
from xlacompare.core import collective_cell as cells
from xlacompare.core import machine
from xlacompare.launch import launchers, world

Key = tuple[str, str, str]


class Worlds:
    """Worlds by key; all of them end with `close` or `kill`."""

    def __init__(self, run: config.CollectiveConfig, launcher: launchers.Launcher, name: str) -> None:
        """Makes an empty set.

        Args:
          run: The configuration.
          launcher: Who starts processes.
          name: Names the logs.
        """
        self._run, self._launcher, self._name = run, launcher, name
        self._worlds: dict[Key, world.World] = {}
        self._failed: dict[Key, world.WorldError] = {}
        self._count = 0
        self.cores = cores_of(run, launcher)

    @staticmethod
    def key(cell: cells.CollectiveCell) -> Key:
        """Cells with equal keys share a world."""
        return (cell.framework, cell.transport, cell.mode)

    def spec(self, cell: cells.CollectiveCell) -> launchers.Spec:
        """The world that a cell needs."""
        return launchers.Spec(
            framework=cell.framework,
            transport=cell.transport,
            mode=cell.mode,
            size=self._run.num_ranks,
            platform=self._run.platform,
            cores=self.cores,
            deadline_s=self._run.deadline_s,
        )

    def of(self, cell: cells.CollectiveCell) -> world.World:
        """The running world of a cell; started where there is none.

        Raises:
          WorldError: It could not start, now or before: what does not start once is not tried for every cell.
        """
        key = self.key(cell)
        if key in self._failed:
            raise self._failed[key]
        if key not in self._worlds:
            try:
                self._start(cell)
            except world.WorldError as error:
                self.discard(cell)
                self._failed[key] = error
                raise
        return self._worlds[key]

    def _start(self, cell: cells.CollectiveCell) -> None:
        self._count += 1
        made = world.World(self.spec(cell), self._launcher, f"{self._name}-{self._count}")
        self._worlds[self.key(cell)] = made
        made.start()

    def discard(self, cell: cells.CollectiveCell) -> None:
        """Ends a cell's world at once."""
        gone = self._worlds.pop(self.key(cell), None)
        if gone is not None:
            gone.kill()

    def keep(self, members: Iterable[cells.CollectiveCell]) -> None:
        """Ends the worlds that these cells do not need."""
        wanted = {self.key(cell) for cell in members}
        for key in [key for key in self._worlds if key not in wanted]:
            self._worlds.pop(key).stop()

    def pids(self) -> list[int]:
        """Process ids of this machine."""
        return [pid for made in self._worlds.values() for pid in made.pids]

    def close(self) -> None:
        """Ends all worlds."""
        self.keep(())

    def kill(self) -> None:
        """Ends all worlds without asking."""
        for made in self._worlds.values():
            made.kill()
        self._worlds.clear()

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def cores_of(run: config.CollectiveConfig, launcher: launchers.Launcher) -> tuple[int, ...]:
    """Cores of this machine that its ranks share."""
    return launcher.cores() if run.num_cores is None else machine.default_cores(run.num_cores)


def oversubscribed(run: config.CollectiveConfig, local_ranks: int, cores: tuple[int, ...]) -> bool:
    """More ranks on this machine than cores for them."""
    return run.platform == "cpu" and local_ranks > len(cores)


def describe(started: list[dict[str, Any]]) -> dict[str, Any]:
    """What rank 0's process says of its framework."""
    found: dict[str, Any] = started[0]["describe"] if started else {}
    return found
