"""Worlds of JAX ranks for the tests: started here, run in child processes (`python -m tests.frameworks.jax_ranks`).

A rank reads its work as JSON from the environment and writes one line of JSON: its answers, by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import traceback
from types import TracebackType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = "XLACOMPARE_TEST_WORK"
MARK = "ANSWERS "


def start(
    transport: str, size: int, work: dict[str, Any], deadline_s: float = 100, environment: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Runs a world, and returns the answers of its processes by rank; asserts that every process ends well.

    Args:
      transport: "inprocess", "gloo" or "mpi".
      size: Ranks.
      work: {"do": name of a function of tests.frameworks.jax_work, ...}, handed to it in every process.
      deadline_s: After it all processes are killed.
      environment: Variables beside those of the transport.
    """
    mode = "spmd" if transport == "inprocess" else "process"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = [sys.executable, "-m", "tests.frameworks.jax_ranks", transport, mode, str(size), str(port)]
    if transport == "mpi":
        launcher = pathlib.Path(sys.executable).with_name("mpiexec")
        commands = [[str(launcher), "-n", str(size), *here, "-1"]]
    else:
        commands = [[*here, str(rank)] for rank in range(size if mode == "process" else 1)]
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": str(ROOT), WORK: json.dumps(work)}
    children = [_spawn(command, variables) for command in commands]
    try:
        results = [child.communicate(timeout=deadline_s) for child in children]
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    text = "".join(out + err for out, err in results)
    assert all(child.returncode == 0 for child in children), text[-6000:]
    lines = [line.partition(MARK)[2] for out, _ in results for line in out.splitlines() if MARK in line]
    answers = sorted((json.loads(line) for line in lines), key=lambda answer: answer["rank"])
    assert len(answers) == (size if mode == "process" else 1), text[-6000:]
    return answers


def _spawn(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, env=variables, cwd=ROOT, text=True, start_new_session=True, **pipes)


def main(transport: str, mode: str, size: str, port: str, rank: str) -> None:
    """One process of a world."""
    from xlacompare.frameworks import ranks
    from xlacompare.frameworks.on_jax import arms, transports

    work = json.loads(os.environ[WORK])
    own, threads = int(rank) if int(rank) >= 0 else int(os.environ["PMI_RANK"]), work.get("threads", 1)
    place = ranks.Place(own, int(size), own, "127.0.0.1", int(port), threads, "cpu", work.get("deadline_s", 60.0))
    variables = {**arms.environment("cpu", threads), **transports.environment(transport, mode, place)}
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    from tests.frameworks import jax_work
    from xlacompare.frameworks.on_jax import collectives, process

    if "address" in work:
        process.own_address = lambda address, port: work["address"]
    world = collectives.connect(transport, mode, place)
    answer = getattr(jax_work, work["do"])(world, place, work)
    world.close()
    world.close()  # safe to call twice
    sys.stdout.write(f"\n{MARK}{json.dumps({'rank': place.rank, **answer})}\n")
    sys.stdout.flush()


def _quit(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends at once: JAX's exit would wait for the other ranks, and the test for its error."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.excepthook = _quit
    main(*sys.argv[1:])
