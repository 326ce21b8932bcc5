"""Worlds of torch ranks for the tests: started here, run in child processes (`python -m tests.frameworks.torch_ranks`).

A rank gets the name of its work ("MODULE.FUNCTION" beside this file) and writes one file of JSON: the answer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 280  # the longest answers take 30 s on cores of their own
MPIEXEC = pathlib.Path(sys.executable).with_name("mpiexec")


def answers(transport: str, size: int, work: str) -> list[Any]:
    """Runs a world once, and returns the answers of its ranks; asserts that every rank ends well.

    Args:
      transport: "gloo" or "mpi".
      size: Ranks.
      work: Name of a function of tests.frameworks.torch_work, or "MODULE.FUNCTION" of another module beside it.
    """
    outcome = _outcome(transport, size, work)
    assert isinstance(outcome, list), outcome
    return outcome


@functools.cache
def _outcome(transport: str, size: int, work: str) -> list[Any] | str:
    """The answers, or what went wrong; cached too, so that a broken world costs its deadline once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="xlacompare_tests_") as folder:
        here = [sys.executable, "-m", "tests.frameworks.torch_ranks", transport, str(size), str(port), work, folder]
        if transport == "mpi":
            commands = [[str(MPIEXEC), "-n", str(size), *here, "-1"]]
        else:
            commands = [[*here, str(rank)] for rank in range(size)]
        problem = _run(commands)
        if problem:
            return problem
        return [json.loads((pathlib.Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _run(commands: list[list[str]]) -> str:
    """Runs the processes; "" when all ended well, else their output."""
    children = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command in commands
    ]
    late = False
    try:
        outputs = [child.communicate(timeout=DEADLINE_S)[0] for child in children]
    except subprocess.TimeoutExpired:
        late = True
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    if late:
        return f"no end within {DEADLINE_S} s: {commands[0]}"
    return "\n".join(outputs)[-6000:] if any(child.returncode for child in children) else ""


def main(transport: str, size: str, port: str, work: str, folder: str, given: str) -> None:
    """One rank."""
    from xlacompare.frameworks import ranks
    from xlacompare.frameworks.on_torch import transports

    rank = _mpi_rank() if transport == "mpi" else int(given)
    place = ranks.Place(rank, int(size), rank, "127.0.0.1", int(port), 1, "cpu", 60.0)
    for key, value in transports.environment(transport, "process", place).items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    from xlacompare.frameworks.on_torch import collectives

    connected = collectives.connect(transport, "process", place)
    module, _, function = work.rpartition(".")
    answer = getattr(importlib.import_module(f"tests.frameworks.{module or 'torch_work'}"), function)(
        connected, rank, int(size)
    )
    (pathlib.Path(folder) / f"{rank}.json").write_text(json.dumps(answer))
    connected.close()
    connected.close()  # twice is fine


def _mpi_rank() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank


if __name__ == "__main__":
    main(*sys.argv[1:])
