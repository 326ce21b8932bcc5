"""Ranks of JAX over MPI: mpi4jax operations inside jax.jit, a JAX of one device per process.

Tried with mpi4jax 0.9.1.post2, mpi4py 4.1.2 and MPICH 5.0.2.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpi4jax
from jax.sharding import SingleDeviceSharding
from mpi4py import MPI

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.core import census, errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import counters, programs, staging, steps, transports

_OPERATIONS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
# mpi4jax's call targets in the compiled program -> names of the census.
_OPCODES = {
    "mpi_allreduce_ffi": "all-reduce",
    "mpi_allgather_ffi": "all-gather",
    "mpi_alltoall_ffi": "all-to-all",
    "mpi_bcast_ffi": "collective-broadcast",
    "mpi_sendrecv_ffi": "send-recv",
    "mpi_send_ffi": "send-recv",
    "mpi_recv_ffi": "send-recv",
    "mpi_barrier_ffi": "barrier",
}
_CALL = re.compile(r'^.*? = (?P<results>.*?) custom-call\(.*?custom_call_target="(?P<target>mpi_\w+_ffi)"(?P<rest>.*)$')
_SHAPE = re.compile(r"\b(pred|[fsu]\d+)\[([\d,]*)\]")
_BITS = re.compile(r"\d+$")


class MpiRanks:
    """This process's rank; see `ranks.Ranks`."""

    def __init__(self, place: ranks.Place) -> None:
        """Joins MPI's world.

        Raises:
          UnsupportedError: The process was not started by an MPI launcher with as many ranks, or MPI's library allows
            no calls from XLA's threads.
        """
        world = MPI.COMM_WORLD
        if (world.Get_size(), world.Get_rank()) != (place.size, place.rank):
            raise errors.UnsupportedError(
                f"rank {place.rank} of {place.size} is rank {world.Get_rank()} of {world.Get_size()} to MPI: start the "
                f"ranks with the mpiexec that belongs to mpi4py's library"
            )
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            raise errors.UnsupportedError("XLA calls MPI from its own threads: MPI_THREAD_MULTIPLE is needed")
        self.local: tuple[int, ...] = (place.rank,)
        self._place = place
        self._counters = counters.install()
        self._device = jax.local_devices()[0]
        self._meeting = world.Clone()
        self._groups: dict[tuple[tuple[int, ...], int | None], MPI.Comm] = {}

    def describe(self) -> dict[str, Any]:
        """The environment keys."""
        library = MPI.Get_library_version().splitlines()[0].partition(",")[0].replace("Version:", " ")
        return {
            **steps.versions("mpi4jax", "mpi4py"),
            "platform": self._device.platform,
            "device_kind": self._device.device_kind,
            "device_count": self._place.size,
            "runtime": getattr(self._device.client, "platform_version", ""),
            "transport": f"mpi4jax {importlib.metadata.version('mpi4jax')} over {' '.join(library.split())}",
        }

    def build(self, request: requests.Request, inputs: steps.Inputs) -> steps.Step:
        """Places the input and compiles this rank's program (a permutation's differs from rank to rank).

        Raises:
          BadInputError: The request has no meaning (an indivisible count).
          UnsupportedError: mpi4jax cannot do it; the reason is that of `transports.unsupported`.
        """
        reason = transports.unsupported("mpi", "process", request, self._place.platform)
        if reason:
            raise errors.UnsupportedError(reason)
        table.validate(request)
        buffers = steps.Buffers(request, {self._place.rank: self._device}, SingleDeviceSharding(self._device))
        group = self._group(request)
        with jax.enable_x64(request.dtype == "float64"):
            jitted = jax.jit(body(request, group))
            _, executable, times = staging.ahead_of_time(jitted, buffers.place(inputs))

        def lowered() -> dict[str, Any]:
            found = operations(executable.as_text() or "", meshes.groups(request.mesh, request.axis))
            return {"source": "mpi", "ops": [operation.to_dict() for operation in found]}

        # Not the executable: from its second call on jax 0.10.2 forgets the token that keeps MPI calls in order
        # ("Execution supplied 1 arguments but compiled program expected 2"). The jitted function finds the same
        # executable in its cache and compiles nothing.
        call = _with_x64(jitted) if request.dtype == "float64" else jitted
        return steps.Step(call, times, buffers, inputs, lowered)

    def _group(self, request: requests.Request) -> MPI.Comm:
        """Communicator of this rank's group; made once, by all ranks together."""
        key = (request.mesh, request.axis)
        if key not in self._groups:
            groups = meshes.groups(*key)
            color = next(i for i, group in enumerate(groups) if self._place.rank in group)
            self._groups[key] = MPI.COMM_WORLD.Split(color, self._place.rank)
        return self._groups[key]

    def barrier(self) -> None:
        """MPI's own, outside of XLA."""
        self._meeting.Barrier()

    def compile_count(self) -> int:
        """Programs that the backend was asked for."""
        return self._counters.snapshot().requests

    def close(self) -> None:
        """Frees the communicators. MPI itself ends with the process (mpi4py's exit handler)."""
        for group in self._groups.values():
            group.Free()
        self._groups = {}


def _with_x64(jitted: programs.Body) -> programs.Body:
    """The jitted function looks its program up by the current configuration."""

    def call(x: jax.Array) -> jax.Array:
        with jax.enable_x64(True):
            return jitted(x)

    return call


def body(request: requests.Request, group: MPI.Comm) -> programs.Body:
    """This rank's program. mpi4jax wants a leading axis of ranks where chunks are told apart; reshaping is free."""
    n = group.Get_size()

    def all_reduce(x: jax.Array) -> jax.Array:
        total = mpi4jax.allreduce(x, _OPERATIONS[request.reduction], comm=group)
        return total / n if request.reduction == "mean" else total

    def barrier(x: jax.Array) -> jax.Array:
        mpi4jax.barrier(comm=group)
        return x  # becomes ready with the program's other output, the token

    bodies: dict[str, Callable[[jax.Array], jax.Array]] = {
        "all_reduce": all_reduce,
        "all_gather": lambda x: mpi4jax.allgather(x, comm=group).reshape(-1),
        "all_to_all": lambda x: mpi4jax.alltoall(x.reshape(n, -1), comm=group).reshape(-1),
        "ppermute": lambda x: _permute(x, dict(request.pairs), group),
        "broadcast": lambda x: mpi4jax.bcast(x, request.root, comm=group),
        "barrier": barrier,
    }
    return bodies[request.collective]


def _permute(x: jax.Array, destinations: dict[int, int], group: MPI.Comm) -> jax.Array:
    """A send, a receive, both in one, or neither. Who has no source gets zeros; to itself a rank copies."""
    place = group.Get_rank()
    to = destinations.get(place)
    source = next((a for a, b in destinations.items() if b == place), None)
    if to == place:
        return jnp.copy(x)
    if to is not None and source is not None:
        return mpi4jax.sendrecv(x, x, source, to, comm=group)
    if to is not None:
        mpi4jax.send(x, to, comm=group)
    return jnp.zeros_like(x) if source is None else mpi4jax.recv(x, source, comm=group)


def operations(text: str, groups: tuple[tuple[int, ...], ...]) -> list[census.LoweredCollective]:
    """MPI calls of an optimised program.

    Args:
      text: HLO.
      groups: Ranks of the communicators (the program has only the handle of one).
    """
    handles = {str(MPI.SUM.handle): "sum", str(MPI.MAX.handle): "max", str(MPI.MIN.handle): "min"}
    found = []
    for line in text.splitlines():
        match = _CALL.match(line)
        if not match:
            continue
        rest = match["rest"]
        operands = _SHAPE.findall(rest.partition("operand_layout_constraints={")[2].partition("custom_call_has")[0])
        results = _SHAPE.findall(match["results"])
        operation = re.search(r"\bop = (-?\d+)", rest)
        found.append(
            census.LoweredCollective(
                opcode=_OPCODES.get(match["target"], match["target"]),
                dtype=(operands or results or [("", "")])[0][0],
                operand_bytes=_bytes(operands),
                result_bytes=_bytes(results),
                operands=max(1, len(operands)),
                groups=groups,
                reduction=handles.get(operation[1], "") if operation else "",
                computation="main",
                source=match["target"],
            )
        )
    return found


def _bytes(shapes: list[tuple[str, str]]) -> int:
    total = 0
    for dtype, extents in shapes:
        bits = _BITS.search(dtype)
        size = int(bits[0]) // 8 if bits else 1
        for extent in filter(None, extents.split(",")):
            size *= int(extent)
        total += size
    return total
