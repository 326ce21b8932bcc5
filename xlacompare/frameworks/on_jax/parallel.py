"""Training steps over ranks: shard_map with explicit collectives over the mesh of the ranks' devices."""

from __future__ import annotations

from collections.abc import Callable

from xlacompare.core import errors
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks import strategy
from xlacompare.frameworks.on_jax import (
    alone,
    collectives,
    communicate,
    fully_sharded,
    layers,
    mesh_step,
    op_by_op,
    partitioned,
    placement,
    plans,
    strategies,
    tensor_parallel,
)
from xlacompare.parallel import arms, request, shards
from xlacompare.workloads import spec

PLANS: dict[str, Callable[[spec.Workload, layers.Precision, communicate.Communication], plans.Plan]] = {
    "dp": plans.DataParallel,
    "dp_auto": partitioned.Plan,
    "fsdp": fully_sharded.FullySharded,
    "tp": tensor_parallel.TensorParallel,
}


def build(
    ranks: ranks_seam.Ranks,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> strategy.ParallelStep:
    """Places what each rank gets and compiles the step; see `frameworks.strategy`.

    Raises:
      BadInputError: The batch, or what the strategy cuts, does not divide.
      UnsupportedError: JAX cannot do it; the reason is that of `strategies.unsupported`.
    """
    if not isinstance(ranks, collectives.MeshRanks):
        raise errors.UnsupportedError(strategies.NO_MESH)
    reason = strategies.unsupported(asked, ranks.transport, ranks.mode, workload.name)
    if reason:
        raise errors.UnsupportedError(reason)
    where = placement.Placement(ranks.devices, ranks.local)
    eager = asked.compiler == strategies.EAGER
    if asked.communication in arms.WITHOUT_COMPUTE:
        return op_by_op.Alone(where, asked) if eager else alone.Step(where, asked)
    shards.check(workload, asked.num_ranks)
    made: type[mesh_step.Step] = partitioned.Step if asked.strategy == strategies.AUTO else mesh_step.Step
    return (op_by_op.Step if eager else made)(
        where, PLANS[asked.strategy], workload, parameters, buffers, batches, asked
    )
