"""What every way to start the processes of a world shares: `crews` starts them itself, `joining` through agents.

Whoever starts them, they report to a meeting (`meeting`), and everything that was started is ended by its process
group: nothing stays, neither a process nor a port nor a segment of shared memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from xlacompare import frameworks
from xlacompare.core import errors, machine
from xlacompare.frameworks import ranks as seam
from xlacompare.launch import blame, meeting, process, protocol

WORKER = ("-m", "xlacompare.launch.rank_worker")
# What an outer launcher leaves in the environment: a library that finds it joins that launcher's job instead of ours.
LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
TERMINATE_S = 2.0
PATIENCE_S = 15.0  # a transport gives up after us, so that a hang is judged by us and not called its victim's crash
SHARED_MEMORY = pathlib.Path("/dev/shm")


class NotMustered(Exception):
    """The processes of a world did not all report."""

    def __init__(self, verdict: blame.Verdict) -> None:
        super().__init__(verdict.reason)
        self.status, self.reason, self.ranks = verdict.status, verdict.reason, verdict.ranks


@dataclasses.dataclass(frozen=True)
class Spec:
    """A world that is wanted.

    Attributes:
      size: Ranks.
      cores: Cores of this machine that its ranks share.
      deadline_s: Seconds after which a silent rank counts as hanging.
      arm: Compiler arm whose variables must be set before the runtime starts; "" for none.
    """

    framework: str
    transport: str
    mode: str
    size: int
    platform: str
    cores: tuple[int, ...]
    deadline_s: float
    arm: str = ""

    @property
    def num_processes(self) -> int:
        """One, or one per rank."""
        return self.size if self.mode == "process" else 1

    def place(self, rank: int, local_rank: int, local_size: int, address: str, port: int) -> seam.Place:
        """Where a process stands."""
        return seam.Place(
            rank=rank,
            size=self.size,
            local_rank=local_rank,
            address=address,
            port=port,
            num_threads=max(1, len(self.cores) // local_size),
            platform=self.platform,
            deadline_s=self.deadline_s + PATIENCE_S,
        )

    def pinned(self, local_rank: int, local_size: int) -> list[int] | None:
        """Cores of a process: its share, where there is a core for each; else none of its own."""
        share = len(self.cores) // local_size
        if share == 0 or local_size == 1:
            return None if local_size > 1 else list(self.cores)
        return list(self.cores[local_rank * share : (local_rank + 1) * share])


@dataclasses.dataclass
class Member:
    """A process that reported."""

    rank: int
    local_rank: int
    pid: int
    host: str
    channel: protocol.Channel

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == socket.gethostname()

    def fileno(self) -> int:
        """For `select`."""
        return self.channel.fileno()


class Crew(Protocol):
    """The processes of one world, as their launcher keeps them."""

    def muster(self, deadline_s: float) -> list[Member]:
        """Waits until all have reported; by rank. Raises NotMustered."""
        ...

    def start_request(self, member: Member) -> dict[str, Any]:
        """The first request to a process."""
        ...

    def started(self) -> None:
        """All have met: notes what they share, while they live."""
        ...

    def codes(self, ranks: Iterable[int]) -> dict[int, int | None]:
        """Exit codes of processes that are ending, where they can be known."""
        ...

    def log(self, rank: int) -> pathlib.Path:
        """A process's output."""
        ...

    def wait(self, grace_s: float) -> None:
        """Waits for the processes to end by themselves."""
        ...

    def kill(self) -> None:
        """Ends all and waits for it; safe to call twice."""
        ...


class Launcher(Protocol):
    """Starts worlds; `name` is what records say."""

    name: str

    def crew(self, spec: Spec, name: str) -> Crew:
        """Starts the processes of a world."""
        ...

    def cores(self) -> tuple[int, ...]:
        """Cores of this machine that its ranks may use."""
        ...


def environment(spec: Spec, place: seam.Place, inside_launcher: bool = False) -> dict[str, str | None]:
    """Variables of a rank's process, over those of this one.

    Args:
      spec: The world.
      place: Where the process stands.
      inside_launcher: Leave the outer launcher's variables: the rank is part of its MPI job.
    """
    made: dict[str, str | None] = {}
    if not inside_launcher:
        made.update(dict.fromkeys(filter(_is_launchers, os.environ)))
    made.update({"PYTHONHASHSEED": "0", "XLACOMPARE_PLATFORM": spec.platform})
    with contextlib.suppress(errors.MissingFrameworkError):  # a bare library has collectives and no compiler arms
        made.update(frameworks.arms(spec.framework).environment(spec.platform, place.num_threads))
    made.update(frameworks.transports(spec.framework).environment(spec.transport, spec.mode, place))
    if spec.arm:
        for key, value in frameworks.arms(spec.framework).ARMS[spec.arm].environment.items():
            made[key] = process.joined(key, made.get(key, os.environ.get(key)), value)
    return made


def _is_launchers(name: str) -> bool:
    return name.startswith(LAUNCHER_PREFIXES) or name in LAUNCHER_VARIABLES


def popen(
    command: Sequence[str], variables: Mapping[str, str], log: pathlib.Path | None, keep: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A child that leads a process group of its own, its output in a log (None: where ours goes)."""
    with contextlib.ExitStack() as stack:
        output = None if log is None else stack.enter_context(open(log, "ab"))
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(variables),
            pass_fds=tuple(keep),
            start_new_session=True,
        )


def start_request(spec: Spec, place: seam.Place, cores: list[int] | None) -> dict[str, Any]:
    """The first request to a process."""
    return {
        "op": "start",
        "framework": spec.framework,
        "transport": spec.transport,
        "mode": spec.mode,
        "place": dataclasses.asdict(place),
        "cores": cores,
    }


def member_of(arrival: meeting.Arrival) -> Member:
    """A member from what it said of itself; on one machine its place there is its rank."""
    hello = arrival.hello
    rank = int(hello["rank"])
    return Member(rank, int(hello.get("local_rank", rank)), int(hello["pid"]), str(hello["host"]), arrival.channel)


def end_group(pid: int, signal_number: int) -> None:
    """Signals a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal_number)


def end_ranks(pids: Iterable[int], grace_s: float = TERMINATE_S) -> None:
    """Kills ranks that are not our children (mpiexec's) and waits until they are gone; other processes are left."""
    waiting, end = list(pids), time.monotonic() + grace_s
    while waiting and time.monotonic() < end:
        waiting = [pid for pid in waiting if WORKER[-1] in (machine.read_text(machine.PROC / f"{pid}/cmdline") or "")]
        for pid in waiting:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01 if waiting else 0.0)


class SharedMemory:
    """Segments that a world's processes made and that outlive them: a killed MPI rank leaves its own behind."""

    def __init__(self) -> None:
        """Before the processes start: what is there now is not theirs."""
        self._before = self._all()
        self._made: set[pathlib.Path] = set()

    @staticmethod
    def _all() -> set[pathlib.Path]:
        return set(SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else set()

    def note(self, pids: Iterable[int]) -> None:
        """Remembers the segments that these processes have open and that still have a name."""
        for pid in pids:
            for line in (machine.read_text(machine.PROC / str(pid) / "maps") or "").splitlines():
                _, separator, path = line.partition(f"{SHARED_MEMORY}/")
                if separator and not path.endswith(" (deleted)"):
                    self._made.add(SHARED_MEMORY / path)

    def free(self) -> None:
        """Removes what is left of them; after the processes ended."""
        for path in self._made - self._before:
            path.unlink(missing_ok=True)
