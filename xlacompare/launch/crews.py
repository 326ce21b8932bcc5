"""Worlds whose processes this run starts itself: a child per process, or one `mpiexec` for MPI."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from typing import Any

from xlacompare.core import errors, machine
from xlacompare.frameworks import ranks as seam
from xlacompare.launch import blame, launchers, meeting, process, protocol


@dataclasses.dataclass
class BuiltIn:
    """This run starts its ranks on this machine.

    Attributes:
      folder: The run's folder; logs go below it.
      prefixes: By rank, the beginning of its command line (`ip netns exec NAME`); empty: none.
      address: Where the ranks of a world meet; rank 0 must have it.
    """

    folder: pathlib.Path
    prefixes: tuple[tuple[str, ...], ...] = ()
    address: str = meeting.LOOPBACK
    name: str = "built-in"

    def crew(self, spec: launchers.Spec, name: str) -> launchers.Crew:
        """Starts the processes of a world."""
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = str(logs.resolve() / f"{name}-{spec.framework}-{spec.transport}-{spec.mode}-rank{{rank}}.log")
        if spec.transport == "mpi" and spec.mode == "process":
            return MpiexecCrew(spec, log, self.address)
        return SpawnedCrew(spec, log, self.address, self.prefixes)

    def cores(self) -> tuple[int, ...]:
        """Cores that this process may use."""
        return machine.available_cores()


class LocalCrew:
    """Processes of this machine."""

    def __init__(self, spec: launchers.Spec, log: str, address: str) -> None:
        """Starts the processes.

        Args:
          spec: The world.
          log: Path of a rank's log, with {rank} in it.
          address: Where the ranks meet.
        """
        self._spec, self._log, self._address = spec, log, address
        self._port = meeting.free_port()
        self._memory = launchers.SharedMemory()
        self._members: list[launchers.Member] = []
        self._children: dict[int, subprocess.Popen[bytes]] = self._spawn()

    def _spawn(self) -> dict[int, subprocess.Popen[bytes]]:
        raise NotImplementedError

    def _arrivals(self, deadline_s: float) -> list[meeting.Arrival]:
        raise NotImplementedError

    def _place(self, rank: int) -> seam.Place:
        return self._spec.place(rank, rank, self._spec.num_processes, self._address, self._port)

    def _variables(self, place: seam.Place) -> dict[str, str]:
        return process.merged(launchers.environment(self._spec, place))

    def muster(self, deadline_s: float) -> list[launchers.Member]:
        """Waits until all have reported."""
        arrivals = self._arrivals(deadline_s)
        self._members = sorted(map(launchers.member_of, arrivals), key=lambda member: member.rank)
        lacking = sorted(set(range(self._spec.num_processes)) - {member.rank for member in self._members})
        if lacking:
            raise launchers.NotMustered(self._absence(lacking, deadline_s))
        return self._members

    def _all_run(self) -> bool:
        return all(child.poll() is None for child in self._children.values())

    def _absence(self, lacking: list[int], deadline_s: float) -> blame.Verdict:
        log = self.log(lacking[0])
        if self._all_run():
            return blame.Verdict("hang", f"rank {lacking[0]} did not report within {deadline_s:g} s; log: {log}", (0,))
        codes = self.codes(lacking)
        ended = [blame.Ended(rank, codes.get(rank), "", 0.0, i, self.log(rank)) for i, rank in enumerate(lacking)]
        return blame.of_deaths(ended, 0)

    def start_request(self, member: launchers.Member) -> dict[str, Any]:
        """The first request to a process."""
        return launchers.start_request(
            self._spec, self._place(member.rank), self._spec.pinned(member.local_rank, self._spec.num_processes)
        )

    def started(self) -> None:
        """Notes what the ranks of this machine share."""
        self._memory.note(member.pid for member in self._members if member.is_local)

    def codes(self, ranks: Iterable[int]) -> dict[int, int | None]:
        """Exit codes of the children among them."""
        found: dict[int, int | None] = {}
        end = time.monotonic() + process.GRACE_S
        for child in (self._children[rank] for rank in ranks if rank in self._children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end - time.monotonic()))
        for rank in ranks:
            found[rank] = self._children[rank].returncode if rank in self._children else None
        return found

    def log(self, rank: int) -> pathlib.Path:
        """A process's output."""
        return pathlib.Path(self._log.replace("{rank}", str(rank)))

    def wait(self, grace_s: float) -> None:
        """Waits for the children to end by themselves."""
        end = time.monotonic() + grace_s
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """Ends all, what they started included."""
        self.started()
        self._end_children()
        self._memory.free()

    def _end_children(self) -> None:
        for child in self._children.values():
            launchers.end_group(child.pid, signal.SIGKILL)
        for child in self._children.values():
            child.wait()


class SpawnedCrew(LocalCrew):
    """A child of this process for each process of the world, on a socket pair: no port, and any network namespace."""

    def __init__(self, spec: launchers.Spec, log: str, address: str, prefixes: tuple[tuple[str, ...], ...]) -> None:
        """Starts the processes; `prefixes` by rank, see `BuiltIn`."""
        self._prefixes = prefixes
        self._channels: dict[int, protocol.Channel] = {}
        super().__init__(spec, log, address)

    def _spawn(self) -> dict[int, subprocess.Popen[bytes]]:
        return {rank: self._child(rank) for rank in range(self._spec.num_processes)}

    def _child(self, rank: int) -> subprocess.Popen[bytes]:
        mine, theirs = socket.socketpair()
        self._channels[rank] = protocol.Channel(mine)
        ours = {meeting.RANK_VARIABLE: str(rank), meeting.CHANNEL_VARIABLE: str(theirs.fileno())}
        prefix = self._prefixes[rank] if self._prefixes else ()
        with theirs:
            command = [*prefix, sys.executable, *launchers.WORKER]
            variables = {**self._variables(self._place(rank)), **ours}
            return launchers.popen(command, variables, self.log(rank), (theirs.fileno(),))

    def _arrivals(self, deadline_s: float) -> list[meeting.Arrival]:
        """Waits for every child's first words; stops at the first that ended without any."""
        end, found = time.monotonic() + deadline_s, []
        for channel in self._channels.values():
            try:
                found.append(meeting.Arrival(channel.receive(max(0.0, end - time.monotonic())), channel))
            except (protocol.StreamClosed, protocol.DeadlinePassed):
                break
        return found

    def kill(self) -> None:
        """Ends all, what they started included."""
        super().kill()
        for channel in self._channels.values():
            channel.close()


class MpiexecCrew(LocalCrew):
    """One `mpiexec`, whose ranks report over the loopback. Its own output is in the log of "rank-mpiexec"."""

    def __init__(self, spec: launchers.Spec, log: str, address: str) -> None:
        """Starts mpiexec."""
        self._token = secrets.token_hex(16)
        self._meeting = meeting.Meeting(self._token)
        super().__init__(spec, log, address)

    def _spawn(self) -> dict[int, subprocess.Popen[bytes]]:
        ours = {
            meeting.ADDRESS_VARIABLE: f"{meeting.LOOPBACK}:{self._meeting.port}",
            meeting.TOKEN_VARIABLE: self._token,
            meeting.LOG_VARIABLE: self._log,
        }
        command = [mpiexec(), "-n", str(self._spec.num_processes), sys.executable, *launchers.WORKER]
        variables = {**self._variables(self._place(0)), **ours}
        return {-1: launchers.popen(command, variables, pathlib.Path(self._log.replace("{rank}", "-mpiexec")))}

    def _arrivals(self, deadline_s: float) -> list[meeting.Arrival]:
        arrived = self._meeting.accept(self._spec.num_processes, deadline_s, self._all_run)
        self._meeting.close()
        return arrived

    def _end_children(self) -> None:
        """Lets mpiexec end its ranks and free what they share, then ends what is left."""
        self._meeting.close()
        for child in self._children.values():
            if child.poll() is None:
                launchers.end_group(child.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(launchers.TERMINATE_S)
        super()._end_children()
        launchers.end_ranks(member.pid for member in self._members)


def mpiexec() -> str:
    """The `mpiexec` beside the interpreter, whose MPI is the one that the packages there use; else that of PATH.

    Raises:
      BadInputError: There is none.
    """
    found = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    if found is None:
        raise errors.BadInputError("--transport=mpi needs mpiexec; install with: pip install -e '.[mpi]'")
    return found
