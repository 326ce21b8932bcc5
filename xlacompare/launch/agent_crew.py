"""A world whose processes are started by the agents of another launcher (`joining`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from xlacompare.launch import blame, launchers, meeting, membership, process


class Agent(Protocol):
    """What this file needs of an agent."""

    rank: int
    local_rank: int
    local_size: int
    host: str

    def ask(self, request: dict[str, Any]) -> Any:
        """Its answer; None where it is gone."""
        ...


class NoCrew:
    """In place of an MPI world that cannot be: MPI's ranks are those of the mpirun around us, once."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher

    def muster(self, deadline_s: float) -> list[launchers.Member]:
        """Says why not."""
        reason = (
            "one MPI world per mpirun: this one has ended; start the run again, or without mpirun"
            if self._launcher == "mpirun"
            else f"MPI over several machines needs mpirun, not {self._launcher}"
        )
        raise launchers.NotMustered(blame.Verdict("unsupported", reason, ()))

    def start_request(self, member: launchers.Member) -> dict[str, Any]:
        """Never asked."""
        raise AssertionError

    def started(self) -> None:
        """Never started."""

    def codes(self, ranks: Iterable[int]) -> dict[int, int | None]:
        """None."""
        return {}

    def log(self, rank: int) -> pathlib.Path:
        """None."""
        return pathlib.Path(os.devnull)

    def wait(self, grace_s: float) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""


class AgentCrew:
    """A process by each agent, and one by this process for rank 0."""

    def __init__(self, spec: launchers.Spec, me: membership.Membership, agents: Mapping[int, Agent], log: str) -> None:
        """Starts the processes.

        Args:
          spec: The world.
          me: Rank 0's membership.
          agents: By rank, all but rank 0.
          log: Path of a rank's log, with {rank} in it; used on machines where its folder exists.
        """
        self._spec, self._me, self._agents, self._log = spec, me, agents, log
        token, everywhere = secrets.token_hex(16), "0.0.0.0"
        where = me.address if me.address == meeting.LOOPBACK else everywhere
        self._meeting = meeting.Meeting(token, where)
        self._port = meeting.free_port(where)
        self._memory = launchers.SharedMemory()
        self._members: list[launchers.Member] = []
        self._request = {
            "op": "spawn",
            "spec": dataclasses.asdict(spec),
            "port": self._port,
            "meeting": self._meeting.port,
            "token": token,
            "log": log,
        }
        for agent in agents.values():
            agent.ask(self._request)
        self._child = spawn(me, self._request)

    def muster(self, deadline_s: float) -> list[launchers.Member]:
        """Waits until all have reported."""
        arrivals = self._meeting.accept(self._spec.size, deadline_s, self._all_run)
        self._meeting.close()
        self._members = sorted(map(launchers.member_of, arrivals), key=lambda member: member.rank)
        lacking = sorted(set(range(self._spec.size)) - {member.rank for member in self._members})
        if lacking:
            raise launchers.NotMustered(
                blame.Verdict("crash", f"rank {lacking[0]} did not report; log: {self.log(lacking[0])}", (lacking[0],))
            )
        return self._members

    def _all_run(self) -> bool:
        return self._child.poll() is None and all(agent.ask({"op": "alive"}) for agent in self._agents.values())

    def start_request(self, member: launchers.Member) -> dict[str, Any]:
        """The first request to a process; pinned on this machine, as its launcher bound it on others."""
        agent = self._agents.get(member.rank)
        local = (self._me.local_rank, self._me.local_size) if agent is None else (agent.local_rank, agent.local_size)
        place = self._spec.place(member.rank, *local, self._me.address, self._port)
        here = agent is None or agent.host == socket.gethostname()
        return launchers.start_request(self._spec, place, self._spec.pinned(*local) if here else None)

    def started(self) -> None:
        """Notes what the ranks of this machine share."""
        self._memory.note(member.pid for member in self._members if member.is_local)

    def codes(self, ranks: Iterable[int]) -> dict[int, int | None]:
        """Exit codes, by the agents."""
        found: dict[int, int | None] = {}
        for rank in ranks:
            if rank in self._agents:
                found[rank] = self._agents[rank].ask({"op": "code"})
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(launchers.TERMINATE_S)
                found[rank] = self._child.returncode
        return found

    def log(self, rank: int) -> pathlib.Path:
        """A process's output, where it is on this machine."""
        return pathlib.Path(self._log.replace("{rank}", str(rank)))

    def wait(self, grace_s: float) -> None:
        """Waits for the processes to end by themselves."""
        end = time.monotonic() + grace_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(grace_s)
        while time.monotonic() < end and any(agent.ask({"op": "alive"}) for agent in self._agents.values()):
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends all."""
        self.started()
        launchers.end_group(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for agent in self._agents.values():
            agent.ask({"op": "kill"})
        self._meeting.close()
        self._memory.free()


def spawn(me: membership.Membership, request: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Starts this launched process's rank of a world. Only names and numbers of the request are used."""
    spec = launchers.Spec(**{**request["spec"], "cores": tuple(request["spec"]["cores"])})
    place = spec.place(me.rank, me.local_rank, me.local_size, me.address, int(request["port"]))
    mpi = spec.transport == "mpi"
    ours = {
        meeting.RANK_VARIABLE: str(me.rank),
        meeting.ADDRESS_VARIABLE: f"{me.address}:{int(request['meeting'])}",
        meeting.TOKEN_VARIABLE: str(request["token"]),
        meeting.LOG_VARIABLE: str(request["log"]),
    }
    variables = {**process.merged(launchers.environment(spec, place, inside_launcher=mpi)), **ours}
    # Hydra's ranks speak to their mpiexec over an inherited socket.
    keep = [int(os.environ["PMI_FD"])] if mpi and "PMI_FD" in os.environ else []
    return launchers.popen([sys.executable, *launchers.WORKER], variables, None, keep)
