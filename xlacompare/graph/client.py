"""The graph's child process as the parent sees it. Imports no framework: jaxlib is imported by the child."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from typing import Any

from xlacompare.core import census

# A program is only read, or run on the CPU: no accelerator is taken from the frameworks.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


class ProblemError(Exception):
    """No answer; the text is one line for a record."""


class Client:
    """A child process that parses programs; started by the first request, and again after it died.

    Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        deadline_s: float = 60.0,
        environment: Mapping[str, str | None] = types.MappingProxyType({}),
        name: str = "process that reads programs",
    ) -> None:
        """Makes a client; the child is started by the first request.

        Args:
          deadline_s: Seconds for one request (the first one also imports jaxlib).
          environment: Variables of the child beyond this process's own and `ENVIRONMENT`; None removes one.
          name: What the child is called in a `ProblemError`.
        """
        self._deadline_s, self._environment, self._name = deadline_s, environment, name
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def collectives(self, texts: list[str]) -> list[list[census.LoweredCollective] | str]:
        """Collectives of each HLO text; in its place the problem, one line, where a text brought none."""
        found: list[list[census.LoweredCollective] | str] = []
        for text in texts:
            try:
                answer = self.ask("collectives", text)
            except ProblemError as problem:
                found.append(str(problem))
            else:
                found.append([census.LoweredCollective.from_dict(item) for item in answer])
        return found

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Answer to one request.

        Raises:
          ProblemError: The request was refused, the child died or did not answer in time.
        """
        process = self._started()
        assert process.stdin is not None
        line = json.dumps({"op": operation, "arguments": arguments}).encode() + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            raise ProblemError(self._died()) from None
        answer = json.loads(self._line(process))
        if "error" in answer:
            raise ProblemError(answer["error"])
        return answer["ok"]

    @property
    def alive(self) -> bool:
        """Whether a child runs: after it died or was ended at its deadline it has forgotten all."""
        return self._process is not None

    def close(self) -> None:
        """Ends the child; safe to call twice."""
        self._end()
        self._log.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._buffer = b""
            variables = {**os.environ, **ENVIRONMENT, **self._environment}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "xlacompare.graph.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={key: value for key, value in variables.items() if value is not None},
                start_new_session=True,
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + self._deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._end()
                raise ProblemError(f"the {self._name} did not answer within {self._deadline_s:g} s")
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                raise ProblemError(self._died())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> str:
        code = self._end()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"the {self._name} died (exit code {code}): {lines[-1][:200] if lines else 'no output'}"

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what was not sent is lost with the child
                    continue
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait()
