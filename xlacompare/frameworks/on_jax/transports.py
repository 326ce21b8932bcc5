"""Transports of JAX, for the parent process: imports no framework. Tried with jax 0.10.2 and mpi4jax 0.9.1.post2."""

from __future__ import annotations

import math
import os

from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks

_LAX = "jax.lax collectives inside jax.shard_map, compiled ahead of time"

TRANSPORTS: dict[str, ranks.TransportSpec] = {
    "inprocess": ranks.TransportSpec(
        name="inprocess",
        modes=("spmd",),
        definition=f"one process with a virtual CPU device per rank; XLA:CPU copies through shared memory; {_LAX}",
    ),
    "gloo": ranks.TransportSpec(
        name="gloo",
        modes=("process",),
        definition=f"a process per rank, joined by jax.distributed; XLA:CPU's collectives over gloo (TCP); {_LAX}",
    ),
    "mpi": ranks.TransportSpec(
        name="mpi",
        modes=("process",),
        definition="a process per rank under mpiexec, each with a JAX of one device; mpi4jax operations in jax.jit "
        "(JAX's own MPI collectives need MPIwrapper's library in MPITRAMPOLINE_LIB, which no package index has)",
        requires=("mpi4jax", "mpi4py"),
        extra="mpi",
        install="mpi4jax is source only, built against this environment's mpicc: `make test` does it, or by hand as in "
        "BUILD_NOTES.md, section MPI",
    ),
    "nccl": ranks.TransportSpec(
        name="nccl",
        modes=("process", "spmd"),
        definition=f"a process per GPU joined by jax.distributed, or one process with all; XLA:GPU over NCCL; {_LAX}",
    ),
}

LACKS: dict[str, str] = {
    "ici": "collectives of JAX on a TPU are not written yet: there was no TPU to try them on",
}

_PLATFORMS = {"inprocess": "cpu", "gloo": "cpu", "mpi": "cpu", "nccl": "gpu"}
_RESIZING = ("all_gather", "reduce_scatter")
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_MPI_LACKS_DTYPES = ("float16", "bfloat16")


def unsupported(transport: str, mode: str, request: requests.Request, platform: str) -> str | None:
    """Why JAX cannot run this, or None where it can.

    Args:
      transport: "inprocess", "gloo", "mpi" or "nccl"; others are answered from LACKS.
      mode: "spmd" or "process".
      request: The collective.
      platform: "cpu" or "gpu".
    """
    spec = TRANSPORTS.get(transport)
    if spec is None:
        return LACKS.get(transport, f"JAX has no transport {transport!r}")
    if mode not in spec.modes:
        return f"JAX runs {transport} in mode {' or '.join(spec.modes)}, not {mode!r}"
    if platform != _PLATFORMS[transport]:
        return f"{transport} carries {_PLATFORMS[transport]} buffers, the platform is {platform}"
    if request.reduction == "mean" and request.dtype not in _FLOATS:
        return f"a mean of {request.dtype} has no agreed rounding: ask for the sum"
    own = _mpi(request) if transport == "mpi" else _lax(request)
    return own or _in_place(transport, request)


def _in_place(transport: str, request: requests.Request) -> str | None:
    """Why a donated input cannot become the output."""
    if request.placement != "in_place":
        return None
    if request.collective in _RESIZING:
        return f"XLA aliases whole buffers only, and input and output of {request.collective} differ in size"
    if request.collective == "barrier":
        return "a barrier has no buffer"
    if transport == "mpi":
        return (
            "mpi4jax's FFI calls write into buffers of their own (no output_operand_aliases, mpi4jax 0.9.1): a donated "
            "input would be overwritten by a copy afterwards"
        )
    return None


def _lax(request: requests.Request) -> str | None:
    """What jax.lax lacks."""
    if request.collective == "reduce_scatter" and request.reduction in ("max", "min"):
        return f"jax.lax scatters sums only (psum_scatter): there is no reduce_scatter with {request.reduction}"
    return None


def _mpi(request: requests.Request) -> str | None:
    """What mpi4jax lacks."""
    if request.collective == "reduce_scatter":
        return (
            "mpi4jax 0.9.1 has no reduce_scatter (it has allgather, allreduce, alltoall, barrier, bcast, gather, recv, "
            "reduce, scan, scatter, send and sendrecv)"
        )
    if request.dtype in _MPI_LACKS_DTYPES and request.collective != "barrier":
        return f"mpi4jax 0.9.1 has no MPI type for {request.dtype} (RuntimeError: Unknown MPI type for dtype)"
    return None


def environment(transport: str, mode: str, place: ranks.Place) -> dict[str, str | None]:
    """Variables of a rank's process on top of `arms.environment`; None removes a variable.

    XLA's flags are appended to the user's, and those that the user sets are left as they are, the number of devices
    excepted.
    """
    variables: dict[str, str | None] = {
        # The number of devices is ours alone (JAX refuses two sources of it).
        "JAX_NUM_CPU_DEVICES": None,
        # A launcher's guess of the cluster must not replace the place that this rank was given.
        "JAX_COORDINATOR_ADDRESS": None,
        "JAX_LOCAL_DEVICE_IDS": None,
    }
    if transport in ("inprocess", "gloo"):
        variables["XLA_FLAGS"] = _xla_flags(place, place.size if mode == "spmd" else 1)
    if transport == "gloo":
        variables["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    return variables


def _xla_flags(place: ranks.Place, devices: int) -> str:
    """Flags of XLA:CPU.

    XLA:CPU aborts the process 40 s after the first rank of a rendezvous came (the in-process one), and gloo raises
    after 30 s (xla_cpu_collective_timeout_seconds): both get the deadline of the run. reduce-scatter over gloo ignores
    it and always gives up after 30 s (jax-ml/jax#40831).
    """
    deadline = str(max(1, math.ceil(place.deadline_s)))
    wanted = {
        "xla_cpu_collective_timeout_seconds": deadline,
        "xla_cpu_collective_call_terminate_timeout_seconds": deadline,
    }
    user = os.environ.get("XLA_FLAGS", "")
    # The last one wins, so that a user's device count does not survive.
    count = f"--xla_force_host_platform_device_count={devices}"
    return " ".join(filter(None, [user, *(f"--{k}={v}" for k, v in wanted.items() if k not in user), count]))
