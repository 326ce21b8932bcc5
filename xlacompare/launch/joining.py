"""The same command under torchrun, mpirun, srun or on a TPU pod: every launched process joins, rank 0's coordinates.

Rank 0's process runs the campaign and writes the records. The others are agents: they connect to it, start a process
for their rank whenever a world is wanted, and end it. Rank processes connect straight to the coordinator, so that
everything after the start is as in the built-in launch. An agent only ever starts `rank_worker`: what comes over the
network are names and numbers, no commands and no variables.

MPI's processes are part of the job of the mpirun that started them: there is one MPI world per mpirun, and what a
dead rank leaves of it cannot be measured any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import Any

from xlacompare.core import errors, machine
from xlacompare.launch import agent_crew, crews, launchers, meeting, membership, protocol

JOIN_S = 120.0
ASK_S = 15.0


@dataclasses.dataclass
class Agent:
    """An agent as the coordinator sees it."""

    rank: int
    local_rank: int
    local_size: int
    host: str
    affinity: tuple[int, ...]
    channel: protocol.Channel

    def ask(self, request: dict[str, Any]) -> Any:
        """Its answer; None where it is gone."""
        try:
            self.channel.send(request)
            return self.channel.receive(ASK_S)["ok"]
        except (protocol.StreamClosed, protocol.DeadlinePassed):
            return None


class Lead:
    """The launcher of rank 0's process."""

    def __init__(self, me: membership.Membership, folder: pathlib.Path) -> None:
        """Waits for the agents of the other ranks.

        Raises:
          BadInputError: They did not come.
        """
        self.name, self._me = me.launcher, me
        self._builtin = crews.BuiltIn(folder, name=me.launcher)
        self._logs = folder / "logs"
        self._mpi_taken = False
        self.agents: dict[int, Agent] = {}
        listening = meeting.Meeting(me.token, bound(me.address), me.ports)
        try:
            self.agents = {agent.rank: agent for agent in map(_agent_of, listening.accept(me.size - 1, JOIN_S, _yes))}
        finally:
            listening.close()
        lacking = sorted(set(range(1, me.size)) - set(self.agents))
        if lacking:
            self.dismiss()
            raise errors.BadInputError(
                f"{me.launcher}: rank {lacking[0]} of {me.size} did not join within {JOIN_S:g} s; is "
                f"{me.address} reachable from its machine ({membership.HOST_VARIABLE} sets another host)?"
            )

    def cores(self) -> tuple[int, ...]:
        """Cores of this machine that its ranks may use: a launcher binds each process to some of them."""
        own = set(machine.available_cores())
        host = socket.gethostname()
        return tuple(sorted(own.union(*(agent.affinity for agent in self.agents.values() if agent.host == host))))

    def crew(self, spec: launchers.Spec, name: str) -> launchers.Crew:
        """Starts the processes of a world: the agents', or this machine's own where one process holds all ranks.

        Raises:
          BadInputError: The launcher's ranks are not as many as the world's.
        """
        alone = spec.num_processes == 1 or (spec.transport == "mpi" and self._me.launcher != "mpirun")
        if alone and (spec.num_processes == 1 or self._me.one_machine):
            return self._builtin.crew(spec, name)
        if spec.size != self._me.size:
            raise errors.BadInputError(
                f"{self._me.launcher} started {self._me.size} ranks, the mesh has {spec.size}: make them equal"
            )
        if spec.transport == "mpi" and (self._mpi_taken or alone):
            return agent_crew.NoCrew(self._me.launcher)
        self._mpi_taken |= spec.transport == "mpi"
        with contextlib.suppress(OSError):
            self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs.resolve() / f"{name}-{spec.framework}-{spec.transport}-{spec.mode}-rank{{rank}}.log"
        return agent_crew.AgentCrew(spec, self._me, self.agents, str(log))

    def dismiss(self) -> None:
        """Lets the agents go."""
        for agent in self.agents.values():
            with contextlib.suppress(protocol.StreamClosed):
                agent.channel.send({"op": "end"})
            agent.channel.close()


@contextlib.contextmanager
def launcher_of(me: membership.Membership | None, folder: pathlib.Path) -> Iterator[launchers.Launcher]:
    """Who starts the ranks: this process (None), or the agents of the job whose rank 0 it is."""
    if me is None:
        yield crews.BuiltIn(folder)
        return
    lead = Lead(me, folder)
    try:
        yield lead
    finally:
        lead.dismiss()


def serve(me: membership.Membership) -> int:
    """The life of an agent; returns the exit code of its process: 0 when the coordinator said that all is done.

    Raises:
      BadInputError: Rank 0 is not to be found.
    """
    channel = _join(me)
    children: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            try:
                request = channel.receive()
            except protocol.StreamClosed:
                return errors.EXIT_FAILED_CELL  # the coordinator is gone, and nobody wants the ranks any more
            if request["op"] == "end":
                return errors.EXIT_OK
            answer = _answer(me, request, children)
            with contextlib.suppress(protocol.StreamClosed):
                channel.send({"ok": answer})
    finally:
        _end(children)


def _answer(me: membership.Membership, request: dict[str, Any], children: list[subprocess.Popen[bytes]]) -> Any:
    if request["op"] == "spawn":
        children.append(agent_crew.spawn(me, request))
        return children[-1].pid
    if request["op"] == "alive":
        return all(child.poll() is None for child in children)
    if request["op"] == "code":
        return _code(children)
    _end(children)
    return True


def _code(children: Iterable[subprocess.Popen[bytes]]) -> int | None:
    """Exit code of the last rank, which is ending."""
    code = None
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(launchers.TERMINATE_S)
    return code


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    while children:
        child = children.pop()
        launchers.end_group(child.pid, signal.SIGKILL)
        child.wait()


def _join(me: membership.Membership) -> protocol.Channel:
    """Connects to rank 0, which may not listen yet, on the first of the job's ports that knows the token."""
    hello = {
        "token": me.token,
        **{name: getattr(me, name) for name in ("rank", "local_rank", "local_size")},
        "host": socket.gethostname(),
        "affinity": list(machine.available_cores()),
    }
    end = time.monotonic() + JOIN_S
    while time.monotonic() < end:
        for port in me.ports:
            with contextlib.suppress(protocol.StreamClosed, protocol.DeadlinePassed):
                return meeting.report(me.address, port, hello)
        time.sleep(0.05)
    raise errors.BadInputError(
        f"{me.launcher}: rank {me.rank} found no rank 0 at {me.address} within {JOIN_S:g} s; "
        f"{membership.HOST_VARIABLE}=HOST sets another host"
    )


def bound(address: str) -> str:
    """Where to listen so that `address` reaches it: the loopback stays the loopback."""
    return address if address in (meeting.LOOPBACK, "localhost") else "0.0.0.0"


def _agent_of(arrival: meeting.Arrival) -> Agent:
    hello = arrival.hello
    rank, local_rank, local_size = (int(hello[name]) for name in ("rank", "local_rank", "local_size"))
    return Agent(rank, local_rank, local_size, str(hello["host"]), tuple(hello["affinity"]), arrival.channel)


def _yes() -> bool:
    return True
