"""Transports of the stand-in: sockets over the loopback under the name of gloo, and one process for all ranks."""

from __future__ import annotations

from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks

TRANSPORTS: dict[str, ranks.TransportSpec] = {
    "gloo": ranks.TransportSpec("gloo", ("process",), "a star of plain sockets round rank 0, reductions in NumPy"),
    "inprocess": ranks.TransportSpec("inprocess", ("spmd",), "one process holds all ranks, NumPy"),
    "mpi": ranks.TransportSpec("mpi", ("process",), "mpi4py on bytes, reductions in NumPy", ("mpi4py",), "mpi"),
}
LACKS: dict[str, str] = {"nccl": "NumPy has no GPU"}


def unsupported(transport: str, mode: str, request: requests.Request, platform: str) -> str | None:
    """The stand-in knows no broadcast, so that a test sees a reason."""
    return "the stand-in has no broadcast" if request.collective == "broadcast" else None


def environment(transport: str, mode: str, place: ranks.Place) -> dict[str, str | None]:
    """One thread: NumPy alone."""
    return {"STANDIN_THREADS": str(place.num_threads)}
