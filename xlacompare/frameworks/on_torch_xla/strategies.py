"""Strategies of PyTorch/XLA, for the parent process: imports no framework. Tried with torch_xla 2.9.0."""

from __future__ import annotations

from xlacompare.frameworks import strategy
from xlacompare.frameworks.on_torch_xla import transports
from xlacompare.parallel import request, table

_MODES: dict[str, tuple[str, ...]] = {"inprocess": ("threads", "spmd")}
_COMPILERS = {
    "compiled": "lazy tensors: the step of a rank (threads) or of all ranks (spmd) is traced in Python every time, and "
    "torch_xla.sync() at its end launches one XLA program",
}
_COMMUNICATION = {
    "real": "threads: xm calls in the traced step. spmd: what the partitioner puts in",
    "elided": "the local operation in the place of the xm call; the first elements of its operands, where it has "
    "several, meet in one small sort: what follows waits for all of them, as for the collective",
    "token": "the xm call on the first element of each operand; its result times zero is added to the local one",
    "serial": "as real; operands before each collective, and results after it, are tied together through their first "
    "elements in a small sort, because XLA:CPU drops optimization barriers",
    "alone": "a program of the schedule's collectives, one after the other by xm's token",
    "alone_token": "as alone, on one element per operand",
}

PARTITIONED = (
    "under SPMD the program has no collective before XLA partitions it, so there is none to replace: only the arm "
    "`real` exists; use mode threads"
)
BATCH_NORM = (
    "batch norm over the global batch needs an all_reduce inside the forward and the backward pass, which torch_xla "
    "has no layer for (torch.nn.SyncBatchNorm is for CUDA): its statistics would be those of a rank; use mode spmd"
)

STRATEGIES: dict[str, strategy.StrategySpec] = {
    "dp": strategy.StrategySpec(
        name="dp",
        definition="threads: a model and an optimizer per device, xm.all_reduce of all gradients in one call with the "
        "scale 1/ranks, as xm.optimizer_step does. spmd: batch and activations marked with xs.mark_sharding, "
        "parameters replicated; XLA puts an all-reduce where a gradient is summed",
        modes=_MODES,
        compilers=_COMPILERS,
        communication=_COMMUNICATION,
    ),
    "fsdp": strategy.StrategySpec(
        name="fsdp",
        definition="threads: every parameter flat, in equal parts (padded where it does not divide); xm.all_gather "
        "(pin_layout=False) of each before the forward pass, kept for the backward pass, xm.reduce_scatter of each "
        "gradient, torch.optim on the parts. spmd: batch, activations and parameters (first axis that divides) marked "
        "with xs.mark_sharding; XLA:CPU reduces a gradient by an all-reduce and a slice, not by a reduce-scatter",
        modes=_MODES,
        compilers=_COMPILERS,
        communication=_COMMUNICATION,
    ),
    "tp": strategy.StrategySpec(
        name="tp",
        definition="spmd: kernels marked with xs.mark_sharding, attention by heads, other blocks by columns, then rows "
        "(mlp: layers in pairs, one left over is whole); activations between them marked as whole",
        modes={"inprocess": ("spmd",)},
        compilers=_COMPILERS,
        communication={"real": _COMMUNICATION["real"]},
    ),
}

LACKS: dict[str, str] = {}


def unsupported(asked: request.Request, transport: str, mode: str, workload: str) -> str | None:
    """Why torch_xla cannot run this, or None where it can.

    Args:
      asked: The step.
      transport: Name of a transport.
      mode: "threads", "spmd" or "process".
      workload: Name of a workload.
    """
    chosen = STRATEGIES.get(asked.strategy)
    if chosen is None:
        return LACKS.get(asked.strategy, f"torch_xla has no strategy {asked.strategy!r}")
    if mode not in chosen.modes.get(transport, ()):
        return transports.LACKS.get(
            transport,
            f"torch_xla runs {asked.strategy} over {', '.join(chosen.modes)}, not over {transport} in {mode!r}",
        )
    if asked.compiler not in chosen.compilers:
        return f"torch_xla has no compiler arm {asked.compiler!r} for {asked.strategy}"
    if mode == "spmd" and asked.communication != "real":
        return PARTITIONED
    if mode == "threads" and workload == "convnet":
        return BATCH_NORM
    return table.unsupported(asked.strategy, asked.communication, workload)
