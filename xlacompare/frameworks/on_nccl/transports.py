"""The one transport, for the parent process: imports neither NCCL nor CUDA."""

from __future__ import annotations

from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks

TRANSPORTS: dict[str, ranks.TransportSpec] = {
    "nccl": ranks.TransportSpec(
        name="nccl",
        modes=("process",),
        definition="NCCL's own calls on one stream (nccl4py's bindings), CUDA memory, one device per rank; "
        "all_to_all and ppermute are grouped sends and receives, the mean is ncclAvg",
        requires=("nccl", "cuda"),
        extra="cuda12",
    ),
}

_NO = "the framework-free baseline is NCCL itself; it has no other transport"
LACKS: dict[str, str] = dict.fromkeys(("inprocess", "gloo", "mpi", "ici"), _NO)

# In place as NCCL defines it: the smaller buffer is the rank's own part of the larger one.
IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32")


def unsupported(transport: str, mode: str, request: requests.Request, platform: str) -> str | None:
    """Why NCCL cannot run this request, or None."""
    spec = TRANSPORTS.get(transport)
    if spec is None:
        return LACKS.get(transport, f"no transport {transport!r}")
    if mode not in spec.modes:
        return f"one process per device here: no mode {mode!r}"
    if platform != "gpu":
        return "NCCL moves CUDA memory only"
    if request.dtype not in DTYPES:
        return f"no dtype {request.dtype}; known: {', '.join(DTYPES)}"
    if request.reduction == "mean" and request.dtype == "int32":
        return "the mean of integers is no integer"
    if request.placement == "in_place" and request.collective not in IN_PLACE:
        return f"NCCL defines no in-place {request.collective}: it is made of sends and receives"
    return None


def environment(transport: str, mode: str, place: ranks.Place) -> dict[str, str | None]:
    """Nothing: NCCL_* is the user's, and is recorded."""
    return {}
