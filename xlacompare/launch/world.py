"""The ranks of one framework over one transport, as the coordinator sees them: ask all, collect from all, end all.

Every request goes to all processes before any answer is waited for, and the answers are collected as they come, so
that a rank that dies is seen at once while the others still wait for it inside a collective.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import time
from typing import Any

from xlacompare.launch import blame, launchers, process, protocol

WHERE_S = 1.0  # a process that runs answers in milliseconds
LATE_DEATHS_S = 0.3  # so long the first death waits for those that it causes, to be judged together
ERROR_GRACE_S = 5.0  # after one rank's error the others may be stuck: so long they may take to say the same
START_S = 120.0  # importing a framework on a busy machine, at least


class WorldError(Exception):
    """A request that brought no result.

    Attributes:
      status: One of `process.STATUSES`.
      reason: One line that names the rank.
      alive: Whether the world can be asked again.
      ranks: The ranks that are blamed.
    """

    def __init__(self, verdict: blame.Verdict, alive: bool) -> None:
        super().__init__(verdict.reason)
        self.status, self.reason, self.ranks, self.alive = verdict.status, verdict.reason, verdict.ranks, alive


@dataclasses.dataclass
class _Round:
    """One request under way: answers by rank, who died, what they said before."""

    answers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    raised: dict[int, tuple[str, float]] = dataclasses.field(default_factory=dict)
    where: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    dead: list[int] = dataclasses.field(default_factory=list)


class World:
    """Processes that hold the ranks."""

    def __init__(self, spec: launchers.Spec, launcher: launchers.Launcher, name: str) -> None:
        """Starts the processes; `start` connects them.

        Args:
          spec: Framework, transport, mode, ranks, machine.
          launcher: Who starts them.
          name: Names the logs.

        Raises:
          WorldError: They did not report.
        """
        self.spec = spec
        self._oom_kills = process.oom_kills()
        self._crew = launcher.crew(spec, name)
        self.members: list[launchers.Member] = []
        self.started: list[dict[str, Any]] = []
        try:
            self.members = self._crew.muster(max(START_S, spec.deadline_s))
        except launchers.NotMustered as error:
            raise WorldError(blame.Verdict(error.status, error.reason, error.ranks), False) from None
        finally:
            if not self.members:  # also at Ctrl-C: nobody holds this world yet
                self.kill()

    @property
    def pids(self) -> list[int]:
        """Process ids on this machine."""
        return [member.pid for member in self.members if member.is_local]

    def start(self) -> None:
        """Imports the framework in all processes and connects them; fills `started`, by process."""
        requests = [self._crew.start_request(member) for member in self.members]
        answers = self._ask(requests, max(START_S, self.spec.deadline_s))
        self._crew.started()
        self.started = [
            {**answer, "rank": member.rank, "pid": member.pid, "host": member.host}
            for member, answer in zip(self.members, answers)
        ]

    def ask(self, request: dict[str, Any]) -> list[Any]:
        """The answers of all processes, in the order of ranks.

        Raises:
          WorldError: A rank died, hangs, or said that it cannot. After a death or a hang all processes are gone.
        """
        return self._ask([request] * len(self.members), self.spec.deadline_s)

    def _ask(self, requests: list[dict[str, Any]], deadline_s: float) -> list[Any]:
        asked, current = requests[0]["op"], _Round()
        for member, request in zip(self.members, requests):
            try:
                member.channel.send(request)
            except protocol.StreamClosed:
                current.dead.append(member.rank)
        end = time.monotonic() + deadline_s
        while len(current.answers) < len(self.members):
            if current.dead:
                raise self._died(current)
            self._collect(current, end - time.monotonic())
            if any("error" in answer for answer in current.answers.values()):
                end = min(end, time.monotonic() + ERROR_GRACE_S)
            if time.monotonic() >= end and not current.dead and len(current.answers) < len(self.members):
                raise self._hangs(current, asked, deadline_s)
        return self._results(current)

    def _collect(self, current: _Round, wait_s: float) -> None:
        """Takes one message from whoever has one."""
        owing = [m for m in self.members if m.rank not in current.dead]
        ready = [m for m in owing if m.channel.pending]
        if not ready:
            ready, _, _ = select.select(owing, [], [], max(0.0, wait_s))
        for member in ready:
            try:
                message = member.channel.receive(max(0.5, wait_s))
            except protocol.StreamClosed:
                current.dead.append(member.rank)
            except protocol.DeadlinePassed:  # half a message, then silence
                continue
            else:
                self._file(current, member.rank, message)

    @staticmethod
    def _file(current: _Round, rank: int, message: dict[str, Any]) -> None:
        if "where" in message:
            current.where[rank] = message["where"]
        elif "raised" in message:
            current.raised[rank] = (message["raised"], message["at"])
        else:
            current.answers[rank] = message

    def _results(self, current: _Round) -> list[Any]:
        for member in self.members:
            error = current.answers[member.rank].get("error")
            if error:
                verdict = blame.Verdict(error["status"], f"rank {member.rank}: {error['message']}", (member.rank,))
                together = all("error" in answer for answer in current.answers.values())
                if not together:  # some have built what others have not: no request would fit all of them any more
                    self.kill()
                raise WorldError(verdict, together)
        return [current.answers[member.rank]["ok"] for member in self.members]

    def _died(self, current: _Round) -> WorldError:
        """Ends the world; the verdict names who died first."""
        end = time.monotonic() + LATE_DEATHS_S
        while len(current.dead) < len(self.members) and time.monotonic() < end:
            self._collect(current, end - time.monotonic())
        codes = self._crew.codes(current.dead)
        ended = [
            blame.Ended(rank, codes.get(rank), *current.raised.get(rank, ("", 0.0)), order, self._crew.log(rank))
            for order, rank in enumerate(current.dead)
        ]
        verdict = blame.of_deaths(ended, process.oom_kills() - self._oom_kills)
        living = [m for m in self.members if m.rank not in current.dead and m.is_local]
        stopped = [m.rank for m in living if blame.is_stopped(m.pid)]
        if stopped:  # those that died gave up waiting for it
            reason = f"rank {stopped[0]} is stopped (SIGSTOP); {verdict.reason}"
            verdict = blame.Verdict("hang", reason, tuple(stopped))
        self.kill()
        return WorldError(verdict, False)

    def _hangs(self, current: _Round, asked: str, deadline_s: float) -> WorldError:
        """Asks the silent ranks where they are, then ends the world."""
        failed = next((a["error"] for a in current.answers.values() if "error" in a), None)
        silent = [member for member in self.members if member.rank not in current.answers]
        for member in silent:
            with contextlib.suppress(protocol.StreamClosed):
                member.channel.send({"op": "where"})
        end = time.monotonic() + WHERE_S
        while len(current.where) < len(silent) and time.monotonic() < end and not current.dead:
            self._collect(current, end - time.monotonic())
        found = [blame.Whereabouts(m.rank, current.where.get(m.rank), m.pid if m.is_local else None) for m in silent]
        verdict = blame.of_hang(found, asked, deadline_s, self._crew.log(found[0].rank))
        if failed is not None:  # the others wait for the rank that gave up
            rank = next(rank for rank, answer in current.answers.items() if "error" in answer)
            verdict = blame.Verdict(failed["status"], f"rank {rank}: {failed['message']}", (rank,))
        self.kill()
        return WorldError(verdict, False)

    def stop(self) -> None:
        """Asks the processes to leave the transport and to end; ends what stays."""
        with contextlib.suppress(WorldError):
            self._ask([{"op": "exit"}] * len(self.members), process.GRACE_S)
        self._crew.wait(process.GRACE_S)
        self.kill()

    def kill(self) -> None:
        """Ends everything that the world started, and frees its sockets and shared memory."""
        self._crew.kill()
        for member in self.members:
            member.channel.close()


def unsupported(reason: str) -> WorldError:
    """A cell that its world cannot run, found out by the coordinator; the world lives."""
    return WorldError(blame.Verdict("unsupported", reason, ()), True)
