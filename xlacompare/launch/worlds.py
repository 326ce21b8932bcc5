"""The worlds of one launch: one per framework, transport, mode and variables, replaced when they die."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from xlacompare.core import machine
from xlacompare.launch import launchers, world

Key = tuple[str, str, str, str]


class Run(Protocol):
    """What the worlds need of a configuration."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        ...

    @property
    def platform(self) -> str:
        """Where they run."""
        ...

    @property
    def num_cores(self) -> int | None:
        """Cores that they share; None: all that this process may use."""
        ...

    @property
    def deadline_s(self) -> float:
        """Seconds after which a silent rank counts as hanging."""
        ...


class Cell(Protocol):
    """What the worlds need of a cell."""

    @property
    def framework(self) -> str:
        """Name in the registry."""
        ...

    @property
    def transport(self) -> str:
        """Name of a transport."""
        ...

    @property
    def mode(self) -> str:
        """Way to run it."""
        ...


def _no_arm(cell: Any) -> str:
    return ""


class Worlds:
    """Worlds by key; all of them end with `close` or `kill`."""

    def __init__(self, run: Run, launcher: launchers.Launcher, name: str, arm: Callable[[Any], str] = _no_arm) -> None:
        """Makes an empty set.

        Args:
          run: The configuration.
          launcher: Who starts processes.
          name: Names the logs.
          arm: The compiler arm of a cell where that needs processes of its own (`launchers.Spec.arm`), else "".
        """
        self._run, self._launcher, self._name, self._arm = run, launcher, name, arm
        self._worlds: dict[Key, world.World] = {}
        self._failed: dict[Key, world.WorldError] = {}
        self._count = 0
        self.cores = cores_of(run, launcher)

    def key(self, cell: Cell) -> Key:
        """Cells with equal keys share a world."""
        return (cell.framework, cell.transport, cell.mode, self._arm(cell))

    def spec(self, cell: Cell) -> launchers.Spec:
        """The world that a cell needs."""
        return launchers.Spec(
            framework=cell.framework,
            transport=cell.transport,
            mode=cell.mode,
            size=self._run.num_ranks,
            platform=self._run.platform,
            cores=self.cores,
            deadline_s=self._run.deadline_s,
            arm=self._arm(cell),
        )

    def of(self, cell: Cell) -> world.World:
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

    def _start(self, cell: Cell) -> None:
        self._count += 1
        made = world.World(self.spec(cell), self._launcher, f"{self._name}-{self._count}")
        self._worlds[self.key(cell)] = made
        made.start()

    def discard(self, cell: Cell) -> None:
        """Ends a cell's world at once."""
        gone = self._worlds.pop(self.key(cell), None)
        if gone is not None:
            gone.kill()

    def keep(self, members: Iterable[Cell]) -> None:
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


def cores_of(run: Run, launcher: launchers.Launcher) -> tuple[int, ...]:
    """Cores of this machine that its ranks share."""
    return launcher.cores() if run.num_cores is None else machine.default_cores(run.num_cores)


def oversubscribed(run: Run, local_ranks: int, cores: tuple[int, ...]) -> bool:
    """More ranks on this machine than cores for them."""
    return run.platform == "cpu" and local_ranks > len(cores)
