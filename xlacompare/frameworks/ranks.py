"""The seam for collectives: what `transports.py` and `collectives.py` of a framework's folder hold.

`transports.py` is read by the parent and imports no framework: TRANSPORTS (name -> TransportSpec), LACKS (transport ->
why this framework has none), unsupported(transport, mode, request, platform) -> reason or None, and
environment(transport, mode, place) -> variables to be set before the start. `collectives.py` is imported in a rank's
process and has connect(transport, mode, place) -> Ranks.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from xlacompare.collectives import request as requests
from xlacompare.frameworks import interface


@dataclasses.dataclass(frozen=True)
class TransportSpec:
    """A transport as one framework has it.

    Attributes:
      name: "inprocess", "gloo", "mpi", "nccl" or "ici".
      modes: Ways to run it, the default first: "process" (a process per rank), "spmd" or "threads" (one process, a
        device per rank).
      definition: One sentence: what carries the bytes, and through which of the framework's calls.
      requires: Importable names beyond the framework's own.
      extra: The extra of setup.cfg that installs them.
      install: What the extra leaves to be done, in a few words; empty where it installs everything.
    """

    name: str
    modes: tuple[str, ...]
    definition: str
    requires: tuple[str, ...] = ()
    extra: str = ""
    install: str = ""

    def missing(self) -> str | None:
        """What is not installed and how to get it, or None; imports nothing."""
        absent = [package for package in self.requires if importlib.util.find_spec(package) is None]
        if not absent:
            return None
        rest = f"; {self.install}" if self.install else ""
        return f"{', '.join(absent)} not installed here; install with: pip install -e '.[{self.extra}]'{rest}"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process stands among the ranks.

    Attributes:
      rank: Rank of this process; 0 in a one-process mode.
      size: Ranks in all (devices, in a one-process mode).
      local_rank: Rank among the processes of this machine (picks the GPU).
      address, port: Where ranks meet ("process" mode; free for this world alone). MPI does not use them.
      num_threads: Threads of this process's CPU pools.
      platform: "cpu", "gpu" or "tpu".
      deadline_s: Seconds after which the transport itself should give up waiting for the others.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    num_threads: int
    platform: str = "cpu"
    deadline_s: float = 60.0


class CollectiveStep(Protocol):
    """A built collective over buffers that lie on the device. Every rank calls the same methods in the same order.

    `run` and `synchronize` are those of `core.timing.Runnable`: `run` may return before the work is done, `synchronize`
    returns when all of it is. Out of place, every `run` reads the same input, so that the result never changes; where
    the library only works in place, the copy belongs to `run` and `copy` does that copy alone.
    In place, results feed the next run: `refill` puts the input back.
    """

    compile_times: interface.CompileTimes

    def run(self, index: int) -> None:
        """Dispatches the collective once."""
        ...

    def synchronize(self) -> None:
        """Waits for all dispatched work of this process."""
        ...

    def refill(self) -> None:
        """Puts the input back and waits; nothing to do where the input is never overwritten."""
        ...

    def copy(self) -> bool:
        """Does once, and waits for, the copy that `run` contains; False where it contains none."""
        ...

    def outputs(self) -> dict[int, np.ndarray]:
        """Output of the last `run` by global rank, of the ranks in this process; waits.

        bfloat16 comes as ml_dtypes' type, or widened to float32.
        """
        ...

    def lowered(self) -> dict[str, Any]:
        """What ran: {"source": "hlo", "text": optimised HLO, or HLO before the compiler with "optimised": False}, or
        {"source": "c10d" | "mpi" | "nccl", "ops": [LoweredCollective.to_dict(), ...]} from the library's own log.

        Called once, after the timing, on the program that was timed.
        """
        ...

    def close(self) -> None:
        """Frees the buffers and the program."""
        ...


class Ranks(Protocol):
    """The ranks of this process, connected to the others."""

    local: tuple[int, ...]  # global ranks in this process

    def describe(self) -> dict[str, Any]:
        """Versions, platform, transport as the framework names it (with the library's version), devices, threads."""
        ...

    def build(self, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> CollectiveStep:
        """Puts the inputs (by global rank, those of `local`) on the device and compiles.

        Raises:
          UnsupportedError: With the reason.
        """
        ...

    def barrier(self) -> None:
        """Returns when every rank is here; as cheap and as exact as the transport allows."""
        ...

    def compile_count(self) -> int:
        """Compilations since the process began."""
        ...

    def close(self) -> None:
        """Leaves the others and frees ports and memory; safe to call twice."""
        ...
