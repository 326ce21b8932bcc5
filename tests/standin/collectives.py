"""Collectives of the stand-in: everybody's input goes to everybody through rank 0, each computes what it must get.

STANDIN_RANK_FAULT="RANK:FAULT:COLLECTIVE:RUN" plants one fault in one rank, in the given run of the collective (counted
over all its sizes):
  die, stop        SIGKILL or SIGSTOP to itself
  stop_alone       SIGSTOP to itself; the others give up and raise
  raise            a RuntimeError
  never            sleeps in the run, after it sent its own input
  late             sleeps before the next barrier
  wrong            one wrong value, from that run on (index 3)
  slow             50 ms more, in every run from that one on
  compile          counts a compilation in every run
  unsupported      raises UnsupportedError when built
  absent           dies before it meets the others
STANDIN_LOG=empty: the log says that nothing was communicated.
STANDIN_COMPILES=1: building a collective counts as a compilation.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks import interface, ranks


def _fault() -> tuple[int, str, str, int]:
    parts = os.environ.get("STANDIN_RANK_FAULT", "-1:::0").split(":")
    return int(parts[0]), parts[1], parts[2], int(parts[3])


class Star:
    """Rank 0 in the middle."""

    def __init__(self, place: ranks.Place) -> None:
        self.place = place
        self.links: list[socket.socket] = []
        if place.rank == 0:
            with socket.create_server((place.address, place.port)) as server:
                found = {}
                while len(found) < place.size - 1:
                    link, _ = server.accept()
                    found[struct.unpack("i", _take(link, 4))[0]] = link
                self.links = [found[rank] for rank in sorted(found)]
        else:
            self.links = [_dial(place)]
            self.links[0].sendall(struct.pack("i", place.rank))
        for link in self.links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_inputs(self, mine: bytes) -> list[bytes]:
        """Everybody's bytes, all of equal length, by rank."""
        size = len(mine)
        if self.place.rank == 0:
            parts = [mine] + [_take(link, size) for link in self.links]
            for link in self.links:
                link.sendall(b"".join(parts))
            return parts
        self.links[0].sendall(mine)
        together = _take(self.links[0], size * self.place.size)
        return [together[i * size : (i + 1) * size] for i in range(self.place.size)]

    def close(self) -> None:
        for link in self.links:
            link.close()


class Mpi:
    """MPI's all-gather of bytes."""

    def __init__(self, place: ranks.Place) -> None:
        from mpi4py import MPI

        self.place, self._world = place, MPI.COMM_WORLD
        assert (self._world.rank, self._world.size) == (place.rank, place.size)

    def all_inputs(self, mine: bytes) -> list[bytes]:
        return self._world.allgather(mine)

    def close(self) -> None:
        """MPI ends with the process."""


class Alone:
    """One process for all ranks: nothing to send."""

    def __init__(self, place: ranks.Place) -> None:
        self.place = place

    def all_inputs(self, mine: bytes) -> list[bytes]:
        size = len(mine) // self.place.size
        return [mine[i * size : (i + 1) * size] for i in range(self.place.size)]

    def close(self) -> None:
        """Nothing is open."""


def _dial(place: ranks.Place) -> socket.socket:
    for _ in range(400):
        try:
            return socket.create_connection((place.address, place.port))
        except ConnectionRefusedError:
            time.sleep(0.025)
    raise RuntimeError("rank 0 is not there")


def _take(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError("connection closed by peer")
        data += part
    return bytes(data)


class Step:
    """One collective."""

    def __init__(self, owner: Ranks, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> None:
        self._owner, self._request, self._inputs = owner, request, dict(inputs)
        self._buffers = {rank: array.copy() for rank, array in inputs.items()}
        self._outputs: dict[int, np.ndarray] = {}
        self.compile_times = interface.CompileTimes(note="nothing is compiled")

    def run(self, index: int) -> None:
        owner, request = self._owner, self._request
        fault = owner.fault_of_run(request.collective)
        source = self._buffers if request.placement == "in_place" else self._inputs
        if request.reduction and any((source[rank] != given).any() for rank, given in self._inputs.items()):
            raise RuntimeError("the input was not put back")
        mine = b"".join(array.tobytes() for _, array in sorted(source.items()))
        if fault == "never" and owner.place.rank:
            owner.net.links[0].sendall(mine)
            time.sleep(3600)
        parts = [np.frombuffer(part, next(iter(self._inputs.values())).dtype) for part in owner.net.all_inputs(mine)] \
            if self._inputs else (owner.barrier() or [])  # fmt: skip
        self._outputs = {rank: _result(request, rank, parts) for rank in owner.local} if parts else {}
        if fault == "wrong":
            first = self._outputs[owner.local[0]] = self._outputs[owner.local[0]].copy()
            first[min(3, len(first) - 1)] += 1
        if request.placement == "in_place":
            self._buffers = self._outputs

    def synchronize(self) -> None:
        """Everything is done already."""

    def refill(self) -> None:
        self._buffers = {rank: array.copy() for rank, array in self._inputs.items()}

    def copy(self) -> bool:
        return False

    def outputs(self) -> dict[int, np.ndarray]:
        return self._outputs

    def lowered(self) -> dict[str, Any]:
        if os.environ.get("STANDIN_LOG") == "empty":
            return {"source": "c10d", "ops": []}
        return {"source": "none", "ops": [], "note": "the stand-in has no log"}

    def close(self) -> None:
        self._inputs, self._buffers, self._outputs = {}, {}, {}


def _group(request: requests.Request, rank: int) -> list[int]:
    everybody = np.arange(int(np.prod(request.mesh))).reshape(request.mesh)
    if request.axis is None:
        return everybody.ravel().tolist()
    lines = np.moveaxis(everybody, request.axis, -1).reshape(-1, request.mesh[request.axis])
    return next(line.tolist() for line in lines if rank in line)


def _result(request: requests.Request, rank: int, parts: list[np.ndarray]) -> np.ndarray:
    group = _group(request, rank)
    me, given = group.index(rank), [parts[other] for other in group]
    name = request.collective
    if name in ("all_reduce", "reduce_scatter"):
        reduce = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[request.reduction]
        whole = reduce(np.stack(given), axis=0).astype(given[0].dtype)
        return whole if name == "all_reduce" else np.split(whole, len(group))[me]
    if name == "all_gather":
        return np.concatenate(given)
    if name == "all_to_all":
        return np.concatenate([np.split(part, len(group))[me] for part in given])
    source = {b: a for a, b in request.pairs}.get(me)
    return np.zeros_like(given[0]) if source is None else given[source].copy()


class Ranks:
    """The stand-in's ranks."""

    def __init__(self, transport: str, mode: str, place: ranks.Place) -> None:
        self.place = place
        self.local = (place.rank,) if mode == "process" else tuple(range(place.size))
        self._fault, self._runs, self.compiles = _fault(), 0, 0
        if self._here("absent"):
            raise RuntimeError("planted: a rank that never meets the others")
        self.net: Any = {"gloo": Star, "inprocess": Alone, "mpi": Mpi}[transport](place)

    def _here(self, fault: str) -> bool:
        return self._fault[0] in self.local and self._fault[1] == fault

    def fault_of_run(self, collective: str) -> str:
        """The fault that shows in this run; some strike at once."""
        rank, fault, where, when = self._fault
        if collective != where or rank not in self.local:
            return ""
        self._runs += 1
        if fault == "slow" and self._runs >= when:
            time.sleep(0.05)
        if fault == "compile":
            self.compiles += 1
        if fault == "wrong" and self._runs >= when:
            return fault
        if self._runs != when:
            return ""
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop_alone":
            self.net.close()
        if fault in ("stop", "stop_alone"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "raise":
            raise RuntimeError("planted: a rank that raises")
        return fault

    def describe(self) -> dict[str, Any]:
        return {"platform": "cpu", "numpy": np.__version__, "threads": int(os.environ["STANDIN_THREADS"])}

    def build(self, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> Step:
        if self._here("unsupported") and request.collective == self._fault[2]:
            raise errors.UnsupportedError("planted: only one rank cannot build it")
        self.compiles += bool(os.environ.get("STANDIN_COMPILES"))
        return Step(self, request, inputs)

    def barrier(self) -> None:
        if self._here("late") and self._runs >= self._fault[3]:
            time.sleep(3600)
        if not isinstance(self.net, Alone):
            self.net.all_inputs(b".")

    def compile_count(self) -> int:
        return self.compiles

    def close(self) -> None:
        self.net.close()


def connect(transport: str, mode: str, place: ranks.Place) -> Ranks:
    """See `xlacompare.frameworks.ranks`."""
    return Ranks(transport, mode, place)
