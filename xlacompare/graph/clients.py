"""Programs x clients: the same programs in jaxlib's client and in PJRT plugins, one child process per client.

As in a run (DESIGN 3.4): several launches of fresh children, which take turns block by block in balanced order, the
same number of runs in every client; the launch is the unit of the intervals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

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
    """

    client: str = ""
    launches: list[float] = dataclasses.field(default_factory=list)
    n: list[int] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    wrong: list[str] = dataclasses.field(default_factory=list)
    problem: str = ""

    def estimate(self) -> estimates.Estimate | None:
        """Seconds a run on the log scale, t over launches; None without a time."""
        if self.problem or self.wrong or not self.launches:
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


def measure(folders: Sequence[pathlib.Path], found: Sequence[plugins.Found], plan: Plan) -> Table:
    """Times programs in jaxlib's client and in plugins.

    Args:
      folders: Captured programs.
      found: Plugins.
      plan: How much.

    Returns:
      (program, client) -> entry, in the order given; the program is its folder's name (its path where two are alike),
      the client "jaxlib" or the plugin's name.
    """
    libraries: dict[str, str | None] = {JAXLIB: None, **{item.name: str(item.path) for item in found}}
    short = [folder.name for folder in folders]
    names = {str(folder): folder.name if short.count(folder.name) == 1 else str(folder) for folder in folders}
    table: Table = {(name, library): Entry() for name in names.values() for library in libraries}
    for launch in range(plan.launches):
        with contextlib.ExitStack() as stack:
            children = {name: stack.enter_context(_child(name, plan)) for name in libraries}
            _Launch(table, children, plan, launch).run(names, libraries)
    return table


def _child(name: str, plan: Plan) -> client.Client:
    threads = dict.fromkeys(("NPROC", "OMP_NUM_THREADS"), str(len(plan.cores)))
    extra = {} if name == JAXLIB else plugins.plugin_environment()
    return client.Client(plan.deadline_s, {**threads, **KEPT_MEMORY, **extra}, f"child of {name}")


class _Launch:
    """One launch: fresh children, opened one after the other, then visited in turns."""

    def __init__(self, table: Table, children: Mapping[str, client.Client], plan: Plan, launch: int) -> None:
        self._table, self._children, self._plan, self._launch = table, children, plan, launch
        self._steps: dict[tuple[str, str], float] = {}

    def run(self, names: Mapping[str, str], libraries: Mapping[str, str | None]) -> None:
        for library, path in libraries.items():
            if self._ask(library, list(names.values()), "replay_pin", list(self._plan.cores)) is not None:
                for folder, name in names.items():
                    self._open(library, path, folder, name)
        counts = self._counts(list(names.values()))
        visits = self._visits(counts)
        times: dict[tuple[str, str], list[float]] = {}
        live = [library for library in libraries if any((name, library) in self._steps for name in counts)]
        for order in schedule.orders(live, visits, self._launch) if live else ():
            for library in order:
                self._visit(library, counts, times)
        for key, seconds in times.items():
            self._table[key].launches.append(sum(seconds) / len(seconds))
            self._table[key].n.append(counts[key[0]])

    def _open(self, library: str, path: str | None, folder: str, name: str) -> None:
        entry = self._table[name, library]
        if entry.problem:
            return
        answer = self._ask(library, [name], "replay_open", name, folder, path, library)
        if answer is None:
            return
        entry.client = answer["client"]
        entry.worst = max(entry.worst, *(item["of_allowed"] for item in answer["outputs"]))
        entry.wrong = answer["wrong"]
        if not entry.wrong:
            self._steps[name, library] = answer["step_s"]

    def _ask(self, library: str, names: Sequence[str], *request: Any) -> Any:
        """The answer; None where there is none, then the problem stands with these programs, or with all that died."""
        child = self._children[library]
        try:
            return child.ask(*request)
        except client.ProblemError as problem:
            lost = list(names) if child.alive else [key[0] for key in self._table if key[1] == library]
            for name in lost:
                self._table[name, library].problem = self._table[name, library].problem or str(problem)
                self._steps.pop((name, library), None)
        return None

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
        sequence = [(name, counts[name]) for name in names + names[::-1]]
        for (name, _), block in zip(sequence, self._ask(library, names, "replay_visit", sequence) or ()):
            times.setdefault((name, library), []).append(block["total_s"] / block["n"])


def default_cores() -> tuple[int, ...]:
    """As a run's workers: all but one core, at least one."""
    available = machine.available_cores()
    return machine.default_cores(max(1, len(available) - 1))
