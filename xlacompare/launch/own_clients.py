"""Frameworks' own clients as columns of the table of programs and clients (`graph.clients`): a worker for each.

The framework is imported in its worker; the programs run without its Python (`replay_bench`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from xlacompare import frameworks
from xlacompare.core import environment, errors
from xlacompare.graph import client, clients
from xlacompare.launch import grid, process, replay_bench

PLATFORM = "cpu"  # as the table's other clients


class Own:
    """A worker as a `clients.Child`."""

    def __init__(self, name: str, plan: clients.Plan, shared: Columns, log: pathlib.Path) -> None:
        """Starts the process.

        Args:
          name: The framework.
          plan: Deadline, cores and the least seconds of a block.
          shared: Has the programs' HLO modules.
          log: Of the worker.
        """
        self._plan, self._shared = plan, shared
        variables = {**grid.base_environment(name, PLATFORM, len(plan.cores)), **clients.KEPT_MEMORY}
        self._worker = process.Worker(name, variables, log, plan.cores)
        self._alive, self._sizes = True, dict[str, int]()

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._alive

    def pin(self, cores: Sequence[int]) -> None:
        """The worker's start; its cores were given with the plan."""
        assert tuple(cores) == self._worker.cores
        with self._told():
            self._worker.begin_start()
            self._worker.result(self._plan.deadline_s)

    def open(self, name: str, folder: str) -> clients.Opened:
        """See `clients.Child`; values that rounding does not explain are a problem that names the worst output."""
        if folder in self._shared.problems:
            raise client.ProblemError(self._shared.problems[folder])
        given = pathlib.Path(folder), self._shared.computations[folder], self._plan.min_block_s
        found = self._ask(replay_bench.request(name, *given))
        self._sizes[name] = found["steps_per_block"]
        return clients.Opened(found["replay"]["client"], found["replay"]["worst"]["of_allowed"], [], found["step_s"])

    def visit(self, items: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """See `clients.Child`."""
        for name, n in items:
            if self._sizes[name] != n:
                self._ask({"op": "size", "cell": name, "steps_per_block": n})
                self._sizes[name] = n
        blocks = [{"cell": name, "mode": "block"} for name, _ in items]
        answer: list[dict[str, Any]] = self._ask({"op": "visit", "blocks": blocks})
        return answer

    def close(self) -> None:
        """Ends the worker."""
        self._worker.stop()

    def _ask(self, request: dict[str, Any]) -> Any:
        with self._told():
            return self._worker.ask(request, self._plan.deadline_s)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except process.WorkerError as error:
            self._alive = error.alive
            said = error.reason.partition("; log: ")[0]  # the log goes with its folder
            raise client.ProblemError(
                said if error.status in ("mismatch", "unsupported") else f"{error.status}: {said}"
            ) from None


@dataclasses.dataclass
class Columns:
    """What the workers of all launches share.

    Attributes:
      folder: For logs and HLO modules.
      computations: Folder of a program -> its HLO module.
      problems: Folder of a program -> why there is none.
      started: Workers so far.
    """

    folder: pathlib.Path
    computations: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    started: int = 0

    def runtime(self, name: str) -> clients.Runtime:
        """The column of a framework."""
        version = environment.versions((name,))[name]
        called = f"{name} {version} (own)" if version else f"{name} (own)"

        def start(plan: clients.Plan) -> clients.Child:
            self.started += 1
            return Own(name, plan, self, self.folder / f"{name}-{self.started}.log")

        return clients.Runtime(called, start, _absent(name))


def _absent(name: str) -> str:
    """Why a framework's client is not here; "" where it is."""
    try:
        frameworks.require(name)
        grid.base_environment(name, PLATFORM, 1)
    except (errors.MissingFrameworkError, errors.UnsupportedError) as error:
        return str(error)
    return ""


@contextlib.contextmanager
def columns(folders: Sequence[pathlib.Path], deadline_s: float) -> Iterator[list[clients.Runtime]]:
    """The own clients of all frameworks whose XLA is not jaxlib's; those that are not installed say so.

    Args:
      folders: Captured programs.
      deadline_s: Seconds to make an HLO module of one.
    """
    with tempfile.TemporaryDirectory(prefix="xlacompare-clients-") as path, client.Client(deadline_s) as reader:
        shared = Columns(pathlib.Path(path))
        found = [shared.runtime(name) for name in frameworks.own_clients()]
        if any(not one.absent for one in found):
            for place, folder in enumerate(folders):
                target = pathlib.Path(path) / f"{place}.pb"
                try:
                    reader.ask("computation", str(folder), str(target))
                    shared.computations[str(folder)] = target
                except client.ProblemError as problem:
                    shared.problems[str(folder)] = str(problem)
        yield found
