"""A collective as a program over a mesh of devices, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import staging

Body = Callable[[jax.Array], jax.Array]

_REDUCE: dict[str, Callable[[jax.Array, str], jax.Array]] = {
    "sum": lax.psum,
    "mean": lax.psum,
    "max": lax.pmax,
    "min": lax.pmin,
}
_AXES = ("rows", "columns")


def body(request: requests.Request, axis: str, platform: str) -> Body:
    """One rank's part: `(count,) -> (output count,)`, for use inside shard_map.

    Args:
      request: Valid and supported (`transports.unsupported`).
      axis: Name of the mesh axis that the group lies along.
      platform: "cpu" or "gpu".
    """
    bodies: dict[str, Body] = {
        "all_reduce": lambda x: _REDUCE[request.reduction](x, axis),
        "all_gather": lambda x: lax.all_gather(x, axis, tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, axis, split_axis=0, concat_axis=0, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, axis, list(request.pairs)),
        "broadcast": lambda x: _broadcast(x, request.root, axis, platform),
        "barrier": lambda x: lax.psum(x, axis),
    }
    chosen = bodies[request.collective]
    if request.reduction != "mean":
        return chosen
    # Sum, then divided: what torch and the reference do (pmean multiplies by a reciprocal).
    n = meshes.group_size(request.mesh, request.axis)
    return lambda x: chosen(x) / n


def _broadcast(x: jax.Array, root: int, axis: str, platform: str) -> jax.Array:
    """pbroadcast (a collective-broadcast) where JAX lowers it.

    On the CPU it does not (jax 0.10.2: "MLIR translation rule for primitive 'pbroadcast' not found"); there the sum of
    the root's buffer and zeros stands in, as in jax.experimental.multihost_utils: the bytes of an all-reduce. The
    select drops NaN and infinity of the other ranks, which a multiplication by 0 would keep.
    """
    if platform != "cpu":
        return lax.pbroadcast(x, (axis,), root)  # a plain name is read letter by letter (jax 0.10.2)
    return lax.psum(jnp.where(lax.axis_index(axis) == root, x, jnp.zeros_like(x)), axis)


def mesh_of(request: requests.Request, devices: list[jax.Device]) -> tuple[Mesh, str]:
    """Mesh of the devices in the order of ranks, and the axis that the collective runs along."""
    if request.axis is None or len(request.mesh) == 1:
        return Mesh(np.array(devices), ("ranks",)), "ranks"
    return Mesh(np.array(devices).reshape(request.mesh), _AXES), _AXES[request.axis]


def sharding_of(mesh: Mesh) -> NamedSharding:
    """Every rank has its own chunk of a 1-D array, rank after rank."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def compile_over(
    one_rank: Body, mesh: Mesh, argument: jax.Array, donate: bool
) -> tuple[jax.stages.Compiled, interface.CompileTimes]:
    """Compiles `one_rank` over all ranks; in and out are sharded as `sharding_of`, so that nothing is moved around it.

    Args:
      one_rank: From `body`.
      mesh: From `mesh_of`.
      argument: Global array on the devices; shape, dtype and sharding are used.
      donate: Whether the output takes the input's memory.
    """
    spec, sharding = PartitionSpec(mesh.axis_names), sharding_of(mesh)
    mapped = jax.shard_map(one_rank, mesh=mesh, in_specs=spec, out_specs=spec)
    donated = (0,) if donate else ()
    jitted = jax.jit(mapped, in_shardings=sharding, out_shardings=sharding, donate_argnums=donated)
    _, executable, times = staging.ahead_of_time(jitted, argument)
    return executable, times
