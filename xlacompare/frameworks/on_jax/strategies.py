"""Strategies of JAX, for the parent process: imports no framework. Tried with jax 0.10.2."""

from __future__ import annotations

from xlacompare.frameworks import strategy
from xlacompare.parallel import request, table

NO_MESH = (
    "JAX's strategies are programs over one mesh of all ranks' devices, which mpi4jax's separate JAX processes do not "
    "form: choose the transport gloo, inprocess or nccl"
)

NOT_SERIAL = (
    "the means of batch norm stand inside the backward pass, where XLA may run gradients of kernels beside them: no "
    "order is forced here, so this would not be serial"
)

_MODES: dict[str, tuple[str, ...]] = {"gloo": ("process",), "inprocess": ("spmd",), "nccl": ("process", "spmd")}
EAGER = "eager"
AUTO = "dp_auto"
NO_EAGER = (
    "JAX has no usable op by op over the devices of one process: jax.disable_jit round a shard_map step took 6-7 s, "
    "the jitted step 10 ms (jax 0.10.2); eager runs in mode process, where each rank dispatches its own compute"
)

_COMPILERS = {
    "compiled": "one jax.jit over the whole step of all ranks (forward, backward, collectives, optimizer), compiled "
    "ahead of time; XLA combines and schedules the collectives",
    "nofusion": "as compiled, with xla_disable_hlo_passes=fusion for this compilation",
    "opt0": "as compiled, with xla_backend_optimization_level=0 for this compilation",
    EAGER: "in mode process: a rank's own compute op by op on its own device, as in the eager arm of one device; each "
    "collective is a jitted program of its own, of one operand",
}
_COMMUNICATION = {
    "real": "lax collectives inside shard_map",
    "elided": "the local operation in the collective's place; first elements of the results meet in one small sort, so "
    "that what follows waits for all of them, as for a combined collective",
    "token": "the lax collective on the first element of each operand (of each part, where the operand is cut into one "
    "per rank), its result written into the local operation's result",
    "serial": "as real; operands before the collectives, and results after them, are tied together through their first "
    "elements in a small sort, because XLA:CPU drops optimization barriers",
    "alone": "a program of the schedule's collectives, each fed one element of the result before",
    "alone_token": "as alone, on one element per operand (per part, where the operand is cut)",
}

_DEFINITIONS = {
    "dp": "shard_map over the ranks: each differentiates the mean loss of its rows; one lax.psum per gradient, the "
    "division, the optax update; batch norm over the global batch",
    AUTO: "jax.jit of the whole step over arrays with a NamedSharding, the batch split by examples, the state whole; "
    "XLA's partitioner puts the collectives in",
    "fsdp": "shard_map over the ranks: each tensor is kept flat and cut into equal parts (padded where it does not "
    "divide); a lax.all_gather per parameter, kept until its gradient is there; a lax.psum_scatter per gradient; optax "
    "on the parts; batch norm over the global batch",
    "tp": "shard_map over the ranks: attention cut by heads, other blocks by columns, then rows; a lax.psum of "
    "activations per half block forward, of their cotangents backward; embeddings, norms and output layer are whole "
    "on every rank (mlp: layers in pairs, one left over is whole)",
}

STRATEGIES: dict[str, strategy.StrategySpec] = {
    name: strategy.StrategySpec(
        name,
        definition,
        _MODES,
        {arm: text for arm, text in _COMPILERS.items() if name != AUTO or arm != EAGER},
        {arm: text for arm, text in _COMMUNICATION.items() if arm not in table.get(name).refused},
    )
    for name, definition in _DEFINITIONS.items()
}

LACKS: dict[str, str] = {}


def unsupported(asked: request.Request, transport: str, mode: str, workload: str) -> str | None:
    """Why JAX cannot run this, or None where it can.

    Args:
      asked: The step.
      transport: Name of a transport.
      mode: "process" or "spmd".
      workload: Name of a workload.
    """
    chosen = STRATEGIES.get(asked.strategy)
    if chosen is None:
        return LACKS.get(asked.strategy, f"JAX has no strategy {asked.strategy!r}")
    if transport == "mpi":
        return NO_MESH
    if mode not in chosen.modes.get(transport, ()):
        return f"JAX runs {asked.strategy} over {', '.join(chosen.modes)}, not over {transport} in mode {mode!r}"
    if asked.compiler not in chosen.compilers:
        return f"JAX has no compiler arm {asked.compiler!r} for {asked.strategy}"
    if asked.compiler == EAGER and mode != "process":
        return NO_EAGER
    if workload == "convnet" and asked.communication == "serial":
        return NOT_SERIAL
    return table.unsupported(asked.strategy, asked.communication, workload)
