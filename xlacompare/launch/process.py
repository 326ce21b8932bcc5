"""A worker as the parent sees it: start it, ask it, end it, and say how it ended.

A worker leads a process group of its own, so that whatever it starts (compilers) ends with it, and it dies with its
parent. Its output goes to a log file that records name.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from xlacompare.launch import hints, protocol

GRACE_S = 5.0
# The line that says what was raised; frameworks add advice below it.
RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Unsupported|Exit)\b.*: ")
STATUSES = ("ok", "unsupported", "mismatch", "hang", "crash", "out_of_memory")


class WorkerError(Exception):
    """A request that brought no result.

    Attributes:
      status: One of `STATUSES`.
      reason: One line.
      alive: Whether the worker can be asked again.
      details: What the worker sent along (a failed gate, for instance).
    """

    def __init__(self, status: str, reason: str, alive: bool, details: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.alive = alive
        self.details = details or {}


class Worker:
    """One child process with one framework in it."""

    def __init__(
        self,
        framework: str,
        environment: Mapping[str, str | None],
        log: pathlib.Path,
        cores: tuple[int, ...] | None = None,
    ) -> None:
        """Starts the process; the framework is loaded by `start`.

        Args:
          framework: Name in the registry.
          environment: Variables for the child; None removes one. They are set before the child imports anything.
          log: File for its standard output and error.
          cores: Cores that the runtime is pinned to, after imports; None leaves it free.
        """
        self.framework = framework
        self.log = log
        self.cores = cores
        mine, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._oom_kills = oom_kills()
        with open(log, "ab") as output, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "xlacompare.launch.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=merged(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = protocol.Channel(mine)
        self._asked, self._gone = "", False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def begin(self, request: dict[str, Any]) -> None:
        """Sends a request; `result` takes its answer. Lets several workers work at the same time."""
        self._asked = request["op"]
        self._gone = False
        try:
            self._channel.send(request)
        except protocol.StreamClosed:
            self._gone = True

    def result(self, deadline_s: float) -> Any:
        """Waits for the answer to `begin`.

        Raises:
          WorkerError: With the classified reason. After `hang`, `crash` and `out_of_memory` the process is gone.
        """
        if self._gone:
            raise self._died()
        try:
            answer = self._channel.receive(deadline_s)
        except protocol.DeadlinePassed:
            self.kill()
            reason = f"no answer to {self._asked!r} within {deadline_s:g} s (--deadline_s); log: {self.log}"
            raise WorkerError("hang", reason, False) from None
        except protocol.StreamClosed:
            raise self._died() from None
        if "error" in answer:
            error = answer["error"]
            raise WorkerError(error["status"], error["message"], True, error.get("details"))
        return answer["ok"]

    def ask(self, request: dict[str, Any], deadline_s: float) -> Any:
        """`begin` and `result` in one."""
        self.begin(request)
        return self.result(deadline_s)

    def begin_start(self) -> None:
        """Asks the worker to import the framework, pin itself and start the runtime."""
        cores = None if self.cores is None else list(self.cores)
        self.begin({"op": "start", "framework": self.framework, "cores": cores})

    def _died(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)  # its stream ends before the process does; its own exit code says more
        code = self._process.poll()  # before our own kill, which would be taken for its end
        self.kill()
        oom = code == -signal.SIGKILL and oom_kills() > self._oom_kills
        tail = last_line(self.log)
        if oom or "MemoryError" in tail or "RESOURCE_EXHAUSTED" in tail or "OutOfMemoryError" in tail:
            reason = f"the worker ran out of memory ({tail or _ended(code)}); log: {self.log}"
            return WorkerError("out_of_memory", reason, False)
        if refused := hints.refused_flag(self.log):
            return WorkerError("unsupported", f"{refused}; log: {self.log}", False)
        said = f"{tail or 'no output'}{hints.hint(tail)}"
        return WorkerError("crash", f"the worker {_ended(code)}: {said}; log: {self.log}", False)

    def kill(self) -> None:
        """Ends the process group at once and waits for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Asks the worker to leave; kills it, and all that it started, when it does not."""
        with contextlib.suppress(protocol.StreamClosed):
            self._channel.send({"op": "exit"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()


def merged(environment: Mapping[str, str | None]) -> dict[str, str]:
    """This process's variables with the given ones over them; None removes one."""
    made = dict(os.environ)
    for key, value in environment.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = value
    return made


def joined(key: str, present: str | None, value: str) -> str:
    """A variable's new value: flags are added to flags that are there already; every other variable is replaced."""
    return f"{present} {value}" if key.endswith(("_FLAGS", "_ARGS")) and present else value


def _ended(code: int | None) -> str:
    if code is None:
        return f"gave up and had not ended {GRACE_S:g} s later"
    if code >= 0:
        return f"exited with code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def oom_kills() -> int:
    """Kills by the kernel's out-of-memory killer since boot; 0 where the kernel does not say."""
    try:
        text = pathlib.Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def last_line(log: pathlib.Path) -> str:
    """The line of a log's end that says what was raised, else its last line; cut to 300 characters."""
    try:
        data = log.read_bytes()[-20000:]
    except OSError:
        return ""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    return (raised or lines or [""])[-1][:300]
