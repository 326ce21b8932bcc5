"""Strategies of native torch, for the parent process: imports no framework. Tried with torch 2.9.1."""

from __future__ import annotations

from xlacompare.frameworks import strategy
from xlacompare.parallel import request, table

_MODES: dict[str, tuple[str, ...]] = {"gloo": ("process",), "nccl": ("process",)}

_COMMUNICATION = {
    "real": "the calls of torch.distributed on the default group, unchanged",
    "elided": "a process group in Python in the default one's place, whose calls do the local operation and return "
    "done work; copies into buckets, divisions and waits stay, they are the library's",
    "token": "as elided; the default group then does the call on the first element (of each part, where the operand "
    "is cut into one per rank), asynchronously where the library asks for that",
    "serial": "as real, but each call waits inside for its end: the backward pass stands still behind every collective",
    "alone": "the calls of the schedule on buffers of their own, each waited for before the next",
    "alone_token": "as alone, on one element (of each part, where the operand is cut)",
}

STRATEGIES: dict[str, strategy.StrategySpec] = {
    "dp": strategy.StrategySpec(
        name="dp",
        definition="torch.nn.parallel.DistributedDataParallel over model and loss (broadcast_buffers=False: batch norm "
        "over the global batch leaves equal statistics on all ranks), eager torch.optim; with flat=True no DDP: one "
        "all_reduce of all gradients, concatenated, after the backward pass",
        modes=_MODES,
        compilers={
            "eager": "nothing: autograd and torch.optim, one kernel per operation",
            "compiled": "model and loss, forward and backward, by torch.compile(backend='inductor') under DDP, whose "
            "DDPOptimizer cuts the graph at the buckets, so that they can be sent during the backward pass; DDP's "
            "copies and torch.optim stay eager",
        },
        communication=_COMMUNICATION,
        settings={"bucket_mb": 25, "gradient_as_bucket_view": False, "flat": False},
    ),
    "fsdp": strategy.StrategySpec(
        name="fsdp",
        definition="torch.distributed.fsdp.fully_shard (FSDP2) of every block (mlp: of every layer) and of the rest; "
        "eager torch.optim on the parts, which are DTensors; batch norm over the global batch. Its overlap is that of "
        "CUDA streams: on the CPU every call blocks. gloo runs its reduce_scatter as an all_reduce",
        modes=_MODES,
        compilers={"eager": "nothing: autograd and torch.optim, one kernel per operation"},
        communication=_COMMUNICATION,
        # torch's default is True: gathered again in the backward pass. Kept, as the other frameworks' programs do.
        settings={"reshard_after_forward": False},
    ),
    "tp": strategy.StrategySpec(
        name="tp",
        definition="layers cut as in Megatron-LM, with blocking torch.distributed.all_reduce of activations at the end "
        "of each half block and of their gradients at its start (torch's parallelize_module knows nn.Linear and "
        "nn.Embedding alone); embeddings, norms and output layer are whole on every rank (mlp: layers in pairs, one "
        "left over is whole); eager torch.optim",
        modes=_MODES,
        compilers={"eager": "nothing: autograd and torch.optim, one kernel per operation"},
        communication=_COMMUNICATION,
    ),
}

LACKS: dict[str, str] = {
    "dp_auto": "torch has no compiler that puts collectives into a program of sharded arrays",
}

NO_COMPILED_NORM = "torch.compile(fullgraph=True) takes the all_reduce of batch norm's statistics into no graph"


def unsupported(asked: request.Request, transport: str, mode: str, workload: str) -> str | None:
    """Why torch cannot run this, or None where it can.

    Args:
      asked: The step.
      transport: Name of a transport.
      mode: "process".
      workload: Name of a workload.
    """
    chosen = STRATEGIES.get(asked.strategy)
    if chosen is None:
        return LACKS.get(asked.strategy, f"torch has no strategy {asked.strategy!r}")
    if mode not in chosen.modes.get(transport, ()):
        return f"torch runs {asked.strategy} over {', '.join(chosen.modes)}, not over {transport} in mode {mode!r}"
    if asked.compiler not in chosen.compilers:
        return f"torch has no compiler arm {asked.compiler!r} for {asked.strategy}"
    if workload == "convnet" and asked.compiler != "eager":
        return NO_COMPILED_NORM
    return table.unsupported(asked.strategy, asked.communication, workload)
