"""Transports of PyTorch/XLA, for the parent process: imports no framework. Tried with torch_xla 2.9.0."""

from __future__ import annotations

import os

from xlacompare.collectives import request as requests
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch_xla import arms

# Read by `operations`: "default" calls xm.all_gather as it ships, which is no all-gather (see `operations.all_gather`).
ALL_GATHER_VARIABLE = "XLACOMPARE_TORCH_XLA_ALL_GATHER"

# Threads of the two pools per rank. A collective blocks its thread until the other ranks' come.
_POOL_THREADS = 4

TRANSPORTS: dict[str, ranks.TransportSpec] = {
    "inprocess": ranks.TransportSpec(
        name="inprocess",
        modes=("threads", "spmd"),
        definition="one process with a CPU device per rank; XLA:CPU copies through shared memory. threads: a thread "
        "per device runs the xm.* call and torch_xla.sync() on lazy tensors, rank 0 on the measuring thread; a run is "
        "handed to each of the others through a queue (queueing one costs about 1 us per rank; its share of a "
        "collective's time was not resolved on a busy machine). spmd: one thread traces the collective between "
        "xs.enable_manual_sharding and disable_manual_sharding. all_gather with pin_layout=False (a real all-gather)",
    ),
    "ici": ranks.TransportSpec(
        name="ici",
        modes=("process",),
        definition="a process per TPU chip; xm.* on lazy tensors and torch_xla.sync(). Written, never run: no TPU here",
    ),
}

LACKS: dict[str, str] = {
    "gloo": "torch_xla's CPU client has devices of its own process only; its 'xla' process group goes through XLA, and "
    "the gloo group of torch.distributed carries native CPU tensors, no XLA tensors: use --framework=torch",
    "mpi": "XLA tensors have no memory that MPI can read, and torch_xla's CPU client has no MPI collectives: use "
    "--framework=torch or jax",
    "nccl": "torch_xla 2.9 has no CUDA back end (removed after 2.7): use --framework=torch or jax",
}

# What goes through xm.all_reduce.
_WITH_TOKEN = ("all_reduce", "broadcast")
BFLOAT16_LACK = (
    "xm.all_reduce of bfloat16 fails on the CPU (ValueError: AllReduce for datatype 'bf16' is not supported): it "
    "carries a token as a second operand, and XLA:CPU's promotion to float32 passes over an all-reduce of several "
    "operands (torch_xla 2.9.0)"
)

_PLATFORMS = {"inprocess": "cpu", "ici": "tpu"}
_IN_PLACE = ("all_reduce", "broadcast")

# What does not work under SPMD on the CPU, each with a test that runs the call and goes red when it starts to work.
SPMD_LACKS: dict[str, str] = {
    "all_to_all": "xm.all_to_all under SPMD fails on the CPU: its HLO has no channel id, so XLA takes the devices for "
    "replicas (RET_CHECK 0 <= replica_id && replica_id < replica_count, torch_xla 2.9.0)",
    "ppermute": "xm.collective_permute under SPMD aborts the process on the CPU: its HLO has no channel id (Span::at "
    "failed bounds check, torch_xla 2.9.0)",
    "broadcast": "xm.collective_broadcast is silently wrong under SPMD: it multiplies by (global ordinal == root), the "
    "ordinal is always 0 there, and the xm.all_reduce after it returns its input (world size 1, torch_xla 2.9.0)",
}
DEFAULT_ALL_GATHER_LACK = (
    "xm.all_gather as it ships (pin_layout=True) is pad + all_reduce, padded by ordinal: on the CPU every rank "
    "compiles another program, the ranks wait for each other in different ones, and XLA aborts (torch_xla 2.9.0)"
)


def unsupported(transport: str, mode: str, request: requests.Request, platform: str) -> str | None:
    """Why torch_xla cannot run this request, or None."""
    spec = TRANSPORTS.get(transport)
    if spec is None:
        return LACKS.get(transport, f"torch_xla has no transport {transport!r}")
    if mode not in spec.modes:
        return f"torch_xla runs {transport} in mode {' or '.join(spec.modes)}, not {mode!r}"
    if platform != _PLATFORMS[transport]:
        return f"{transport} joins {_PLATFORMS[transport]} devices, the platform is {platform}"
    if request.reduction == "mean" and request.dtype.startswith("int"):
        return "the mean of integers is no integer"
    if request.collective == "all_gather" and transport == "inprocess" and wants_default_all_gather():
        return DEFAULT_ALL_GATHER_LACK
    if mode == "threads" and request.collective in _WITH_TOKEN and request.dtype == "bfloat16":
        return BFLOAT16_LACK
    if mode == "spmd" and request.collective in SPMD_LACKS:
        return SPMD_LACKS[request.collective]
    return _in_place(mode, request)


def wants_default_all_gather() -> bool:
    """Whether the user asked for xm.all_gather as it ships."""
    return os.environ.get(ALL_GATHER_VARIABLE) == "default"


def _in_place(mode: str, request: requests.Request) -> str | None:
    if request.placement != "in_place":
        return None
    if mode == "spmd":
        return "torch_xla's calls for manual sharding are functional: there is no in-place form"
    if request.collective not in _IN_PLACE:
        return f"xm's {request.collective} is functional; only {' and '.join(_IN_PLACE)} of xm have an in-place form"
    return None


def environment(transport: str, mode: str, place: ranks.Place) -> dict[str, str | None]:
    """Variables of a rank's process, to be set before it imports anything; None removes a variable.

    One process holds all ranks, and each blocks threads of two pools while it waits for the others.
    XLA_THREAD_POOL_SIZE is torch_xla's own pool, which runs programs that XLA finds cheap (a collective of few elements
    is) on the spot: with its default of one thread per core, 4 ranks on 2 cores wait for each other until XLA aborts
    (torch_xla 2.9.0; a test shows it). NPROC is the pool of XLA:CPU itself.
    """
    variables = arms.environment(place.platform, place.num_threads)
    if transport == "inprocess":
        threads = _POOL_THREADS * place.size
        variables["CPU_NUM_DEVICES"] = str(place.size)
        variables["NPROC"] = str(max(threads, place.num_threads))
        variables["XLA_THREAD_POOL_SIZE"] = str(threads)
    # Stale numbers of another launcher would be taken for this process's own.
    return {
        **variables,
        "PJRT_LOCAL_PROCESS_RANK": None,
        "PJRT_LOCAL_PROCESS_COUNT": None,
        "XLA_ALWAYS_ALLREDUCE": None,
    }
