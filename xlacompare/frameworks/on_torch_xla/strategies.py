"""Strategies of PyTorch/XLA, for the parent process: imports no framework. Tried with torch_xla 2.9.0."""

from __future__ import annotations

from xlacompare.frameworks import strategy
from xlacompare.frameworks.on_torch_xla import transports
from xlacompare.parallel import request, table

_MODES: dict[str, tuple[str, ...]] = {"inprocess": ("spmd",)}
_COMPILERS = {
    "compiled": "lazy tensors: the step of all ranks is traced in Python every time, and torch_xla.sync() at its end "
    "launches one XLA program",
}
_COMMUNICATION = {"real": "what the partitioner puts in"}

PARTITIONED = (
    "under SPMD the program has no collective before XLA partitions it, so there is none to replace: only the arm "
    "`real` exists"
)
THREADS = (
    "training with a thread per device was tried and taken back: launches of programs that donate their inputs block, "
    "and in most runs two devices ended up waiting for each other in an all-reduce, which XLA:CPU aborts after 10 s "
    "(torch_xla 2.9.0; the cause was not found); use mode spmd"
)

STRATEGIES: dict[str, strategy.StrategySpec] = {
    "dp": strategy.StrategySpec(
        name="dp",
        definition="batch and activations marked with xs.mark_sharding, parameters replicated; XLA puts an all-reduce "
        "where a gradient is summed",
        modes=_MODES,
        compilers=_COMPILERS,
        communication=_COMMUNICATION,
    ),
    "fsdp": strategy.StrategySpec(
        name="fsdp",
        definition="batch, activations and parameters (first axis that divides) marked with xs.mark_sharding; XLA:CPU "
        "reduces a gradient by an all-reduce and a slice, not by a reduce-scatter",
        modes=_MODES,
        compilers=_COMPILERS,
        communication=_COMMUNICATION,
    ),
    "tp": strategy.StrategySpec(
        name="tp",
        definition="kernels marked with xs.mark_sharding, attention by heads, other blocks by columns, then rows "
        "(mlp: layers in pairs, one left over is whole); activations between them marked as whole",
        modes=_MODES,
        compilers=_COMPILERS,
        communication=_COMMUNICATION,
    ),
}

LACKS: dict[str, str] = {
    "dp_auto": "dp is this here: XLA partitions a marked program",
}


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
    if mode == "threads":
        return THREADS
    if mode not in chosen.modes.get(transport, ()):
        return transports.LACKS.get(
            transport,
            f"torch_xla runs {asked.strategy} over {', '.join(chosen.modes)}, not over {transport} in {mode!r}",
        )
    if asked.compiler not in chosen.compilers:
        return f"torch_xla has no compiler arm {asked.compiler!r} for {asked.strategy}"
    if asked.communication != "real":
        return PARTITIONED
    return table.unsupported(asked.strategy, asked.communication, workload)
