"""Programs x clients: the same programs in jaxlib's client, in PJRT plugins and in frameworks' own clients.

One process per client. As in a run (DESIGN 3.4): several launches of fresh processes, which take turns block by block
in balanced order, the same number of runs in every client; the launch is the unit of the intervals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from xlacompare.core import estimates, machine, schedule, timing
from xlacompare.graph import client, plugins

JAXLIB = "jaxlib"
MIN_VISITS, MAX_VISITS = 3, 40
# Without donation every run asks for the memory of all its results again. glibc gets large pieces from the kernel and
# gives them back, so that each run touches fresh pages: 2.5 ms instead of 2.0, the step's own time, on the tiny mlp.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}


@dataclasses.dataclass
class Entry:
    """One program in one client.

    Attributes:
      client: What the client calls itself.
      launches: Mean seconds a run, by launch.
      n: Runs of a block, by launch.
      worst: Largest error of an output, as a share of what rounding explains.
      wrong: Outputs beyond it.
      problem: Why there is no time.
      absent: Why this client is not here at all; nothing failed.
    """

    client: str = ""
    launches: list[float] = dataclasses.field(default_factory=list)
    n: list[int] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    wrong: list[str] = dataclasses.field(default_factory=list)
    problem: str = ""
    absent: str = ""

    def estimate(self) -> estimates.Estimate | None:
        """Seconds a run on the log scale, t over launches; None without a time."""
        if self.absent or self.problem or self.wrong or not self.launches:
            return None
        return estimates.t_interval([math.log(value) for value in self.launches], scale="log")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the interval in seconds."""
        found = self.estimate()
        ends = None if found is None else [value if math.isfinite(value) else None for value in found.ratio()]
        return {**dataclasses.asdict(self), "seconds": ends}


Table = dict[tuple[str, str], Entry]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      launches: Fresh children of every client.
      cell_s: Seconds of timed blocks per program, client and launch, about.
      min_block_s: Least seconds of a block, of the fastest client; the others run as often.
      deadline_s: Seconds for a request to a child.
      cores: Cores that children are pinned to.
    """

    launches: int = 3
    cell_s: float = 0.5
    min_block_s: float = 0.03
    deadline_s: float = 300.0
    cores: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a process says of a program that it compiled and ran once.

    Attributes:
      client: What the client calls itself.
      worst: Largest error of an output, as a share of what rounding explains.
      wrong: Outputs beyond it.
      step_s: Seconds a run.
    """

    client: str
    worst: float
    wrong: list[str]
    step_s: float


class Child(Protocol):
    """A process with one client. Each method raises `client.ProblemError` where there is no answer."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        ...

    def pin(self, cores: Sequence[int]) -> None:
        """Before anything else: the cores that its client starts on."""
        ...

    def open(self, name: str, folder: str) -> Opened:
        """Compiles a program, checks its values, warms it up."""
        ...

    def visit(self, items: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """One block of each (program, runs) in this order."""
        ...

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        ...


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A client, as a column of the table.

    Attributes:
      name: Of the column.
      start: Makes its process, for one launch.
      absent: Why it is not here; it is never started then.
    """

    name: str
    start: Callable[[Plan], Child]
    absent: str = ""


@dataclasses.dataclass
class Reader:
    """The graph's child process with jaxlib's client or a plugin's (`replays`)."""

    child: client.Client
    library: str | None
    label: str

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self.child.alive

    def pin(self, cores: Sequence[int]) -> None:
        """See `Child`."""
        self.child.ask("replay_pin", list(cores))

    def open(self, name: str, folder: str) -> Opened:
        """See `Child`."""
        found = self.child.ask("replay_open", name, folder, self.library, self.label)
        worst = max(item["of_allowed"] for item in found["outputs"])
        return Opened(found["client"], worst, found["wrong"], found["step_s"])

    def visit(self, items: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """See `Child`."""
        blocks: list[dict[str, Any]] = self.child.ask("replay_visit", items)
        return blocks

    def close(self) -> None:
        """Ends the process."""
        self.child.close()


def readers(found: Sequence[plugins.Found]) -> list[Runtime]:
    """jaxlib's client and those of plugins."""
    return [_reader(JAXLIB, None), *(_reader(item.name, str(item.path)) for item in found)]


def _reader(name: str, library: str | None) -> Runtime:
    def start(plan: Plan) -> Child:
        extra = {} if library is None else plugins.plugin_environment()
        environment = {**threads(plan), **KEPT_MEMORY, **extra}
        return Reader(client.Client(plan.deadline_s, environment, f"child of {name}"), library, name)

    return Runtime(name, start)


def threads(plan: Plan) -> dict[str, str]:
    """Variables by which clients size their thread pools."""
    return dict.fromkeys(("NPROC", "OMP_NUM_THREADS"), str(len(plan.cores)))


def measure(folders: Sequence[pathlib.Path], runtimes: Sequence[Runtime], plan: Plan) -> Table:
    """Times programs in clients.

    Args:
      folders: Captured programs.
      runtimes: The clients.
      plan: How much.

    Returns:
      (program, client) -> entry, in the order given; the program is its folder's name (its path where two are alike).
    """
    short = [folder.name for folder in folders]
    names = {str(folder): folder.name if short.count(folder.name) == 1 else str(folder) for folder in folders}
    table: Table = {(name, one.name): Entry(absent=one.absent) for name in names.values() for one in runtimes}
    for launch in range(plan.launches):
        with contextlib.ExitStack() as stack:
            here = [one for one in runtimes if not one.absent]
            children = {one.name: stack.enter_context(contextlib.closing(one.start(plan))) for one in here}
            _Launch(table, children, plan, launch).run(names)
    return table


class _Launch:
    """One launch: fresh children, opened one after the other, then visited in turns."""

    def __init__(self, table: Table, children: Mapping[str, Child], plan: Plan, launch: int) -> None:
        self._table, self._children, self._plan, self._launch = table, children, plan, launch
        self._steps: dict[tuple[str, str], float] = {}

    def run(self, names: Mapping[str, str]) -> None:
        for library, child in self._children.items():
            with self._told(library, list(names.values())):
                child.pin(self._plan.cores)
                for folder, name in names.items():
                    self._open(library, child, folder, name)
        counts = self._counts(list(names.values()))
        visits = self._visits(counts)
        times: dict[tuple[str, str], list[float]] = {}
        live = [library for library in self._children if any((name, library) in self._steps for name in counts)]
        for order in schedule.orders(live, visits, self._launch) if live else ():
            for library in order:
                self._visit(library, counts, times)
        for key, seconds in times.items():
            self._table[key].launches.append(sum(seconds) / len(seconds))
            self._table[key].n.append(counts[key[0]])

    def _open(self, library: str, child: Child, folder: str, name: str) -> None:
        entry = self._table[name, library]
        if entry.problem:
            return
        with self._told(library, [name]):
            opened = child.open(name, folder)
            entry.client, entry.wrong = opened.client, opened.wrong
            entry.worst = max(entry.worst, opened.worst)
            if not opened.wrong:
                self._steps[name, library] = opened.step_s

    @contextlib.contextmanager
    def _told(self, library: str, names: Sequence[str]) -> Iterator[None]:
        """A problem stands with these programs, or with all where the process died."""
        try:
            yield
        except client.ProblemError as problem:
            lost = names if self._children[library].alive else [key[0] for key in self._table if key[1] == library]
            for name in lost:
                self._table[name, library].problem = self._table[name, library].problem or str(problem)
                self._steps.pop((name, library), None)

    def _counts(self, names: Sequence[str]) -> dict[str, int]:
        """Runs of a block by program: the same in every client, long enough in the fastest one."""
        counts = {}
        for name in names:
            steps = [seconds for key, seconds in self._steps.items() if key[0] == name]
            if steps:
                counts[name] = timing.steps_per_block(min(steps), self._plan.min_block_s)
        return counts

    def _visits(self, counts: Mapping[str, int]) -> int:
        """Visits of each client; two blocks of each program in a visit."""
        if not self._steps:
            return 0
        block = sum(counts[key[0]] * seconds for key, seconds in self._steps.items()) / len(self._steps)
        return min(MAX_VISITS, max(MIN_VISITS, math.ceil(self._plan.cell_s / (2 * block))))

    def _visit(self, library: str, counts: Mapping[str, int], times: dict[tuple[str, str], list[float]]) -> None:
        names = [name for name in counts if (name, library) in self._steps]
        if not names:
            return
        sequence = [(name, counts[name]) for name in names + names[::-1]]
        with self._told(library, names):
            for (name, _), block in zip(sequence, self._children[library].visit(sequence), strict=True):
                times.setdefault((name, library), []).append(block["total_s"] / block["n"])


def default_cores() -> tuple[int, ...]:
    """As a run's workers: all but one core, at least one."""
    available = machine.available_cores()
    return machine.default_cores(max(1, len(available) - 1))
