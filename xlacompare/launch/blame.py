"""Which rank ended a collective: of several that died the one that died first, of several that hang the one behind.

A collective drags the others along: a rank that loses its partner raises "connection closed", and one that waits for
it looks as stuck as the partner itself. So the first death counts, an end by a signal before a raised error, and in a
hang a rank that does not answer "where are you" (stopped, or spinning with the interpreter's lock) before one that did
not get as far as the others.
"""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from collections.abc import Sequence
from typing import Any

from xlacompare.core import machine
from xlacompare.launch import process

CUT = 160  # characters of a rank's last line in a reason


@dataclasses.dataclass
class Ended:
    """How a process of a world ended.

    Attributes:
      rank: Its rank.
      code: Exit code as `subprocess` has it, None where nobody knows (another launcher's child).
      raised: What it said before it went, with the time (`at`, its own clock); empty: it said nothing.
      order: Place in the order in which the streams ended.
      log: Its output.
    """

    rank: int
    code: int | None
    raised: str
    at: float
    order: int
    log: pathlib.Path

    @property
    def tail(self) -> str:
        """What it raised, or the line of its log that says so."""
        return self.raised or process.last_line(self.log)

    def sentence(self) -> str:
        """How it ended, one line."""
        if self.code is not None and self.code < 0:
            name = signal.Signals(-self.code).name
            # Who is killed from outside wrote its last line about something else.
            told = self.raised if self.code == -signal.SIGKILL else self.tail
            return f"rank {self.rank} was ended by {name}{_after(told)}"
        if self.raised or self.code is None:
            return f"rank {self.rank} died{_after(self.tail) or ' without a word'}"
        return f"rank {self.rank} exited with code {self.code}{_after(self.tail or 'no output')}"


def _after(text: str) -> str:
    return f": {text[:CUT]}" if text else ""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Status and reason of a cell, and the ranks that it is blamed on."""

    status: str
    reason: str
    ranks: tuple[int, ...]


def of_deaths(ended: Sequence[Ended], oom_kills: int) -> Verdict:
    """Judges the processes that died.

    A rank that says what it raised is believed about the time; one that was killed without a word and before anybody
    raised, or that a signal ended, was first.

    Args:
      ended: At least one.
      oom_kills: Kills by the kernel's out-of-memory killer since the world began.
    """
    silent = [end for end in ended if not end.raised and (end.code is None or end.code < 0)]
    first = min(silent, key=lambda end: end.order) if silent else min(ended, key=lambda end: (not end.raised, end.at))
    others = sorted(end.rank for end in ended if end is not first)
    reason = first.sentence()
    if others:
        reason += f"; after it {_ranks(others)} died too"
    killed = first.code == -signal.SIGKILL and oom_kills > 0
    words = ("MemoryError", "RESOURCE_EXHAUSTED", "OutOfMemoryError")
    status = "out_of_memory" if killed or any(word in first.tail for word in words) else "crash"
    return Verdict(status, f"{reason}; log: {first.log}", (first.rank,))


@dataclasses.dataclass(frozen=True)
class Whereabouts:
    """A rank that owes an answer.

    Attributes:
      where: Its answer to "where are you"; None: it gave none.
      local_pid: Process id where it runs on this machine, else None.
    """

    rank: int
    where: dict[str, Any] | None
    local_pid: int | None

    @property
    def progress(self) -> tuple[int, int]:
        """How far it got: what it entered last, and the run inside the block."""
        where = self.where or {}
        index = where.get("index")
        return (int(where.get("sequence", -1)), -1 if index is None else int(index))

    def sentence(self) -> str:
        """Where it is, one line."""
        if self.where is None:
            stopped = self.local_pid is not None and is_stopped(self.local_pid)
            return f"rank {self.rank} {'is stopped (SIGSTOP)' if stopped else 'does not answer'}"
        index = self.where.get("index")
        at = f" run {index}" if index is not None else ""
        return f"rank {self.rank} is in {self.where['note']}{at}, {self.where['frame']}"


def of_hang(silent: Sequence[Whereabouts], asked: str, deadline_s: float, log: pathlib.Path) -> Verdict:
    """Judges the ranks that owe an answer at the deadline."""
    mute = [one for one in silent if one.where is None]
    behind = [one for one in silent if one.progress == min(other.progress for other in silent)]
    blamed = mute or (behind if len(behind) < len(silent) else list(silent))
    rest = [one for one in silent if one not in blamed]
    told = "; ".join(one.sentence() for one in [*blamed, *rest][:4])
    more = "" if len(silent) <= 4 else f"; and {len(silent) - 4} more"
    reason = f"no answer to {asked!r} within {deadline_s:g} s (--deadline_s): {told}{more}; log: {log}"
    return Verdict("hang", reason, tuple(sorted(one.rank for one in blamed)))


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal (state T of /proc)."""
    text = machine.read_text(machine.PROC / str(pid) / "stat") or ""
    return text.rpartition(")")[2].split()[:1] == ["T"]


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
