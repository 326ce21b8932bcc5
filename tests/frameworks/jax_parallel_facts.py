"""Why JAX's strategies are made as they are: programs and times, in a world's process with two virtual devices."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

AXIS = "ranks"
LAYERS = 10


def collect() -> dict[str, Any]:
    """Optimised HLO texts, and seconds of a step with and without jit."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    texts = {
        "barrier": _text(mesh, lambda w, x: (lax.optimization_barrier(w * 2) * x[0],)),
        "checked": _text(mesh, _gradient, check_vma=True),
        "unchecked": _text(mesh, _gradient, check_vma=False),
        "sort by position": _text(mesh, _sorted),
        "sort of one": _text(mesh, _sorted_alone),
    }
    return {"texts": texts, **_seconds(mesh)}


def _gradient(w: jax.Array, x: jax.Array) -> tuple[jax.Array]:
    """Of a parameter that all ranks share, by the rank's own loss; nobody asks for a collective."""
    return (jax.grad(lambda w: jnp.tanh(x @ w).sum())(w),)


def _sorted(w: jax.Array, x: jax.Array) -> tuple[jax.Array]:
    return (lax.sort((lax.iota(jnp.int32, 2), w[0, :2]), num_keys=1, is_stable=False)[1],)


def _sorted_alone(w: jax.Array, x: jax.Array) -> tuple[jax.Array]:
    return (lax.sort((lax.iota(jnp.int32, 1), w[0, :1]), num_keys=1, is_stable=False)[1],)


def _mapped(mesh: Mesh, body: Any, check_vma: bool = False) -> Any:
    given = (PartitionSpec(), PartitionSpec(AXIS))
    return jax.shard_map(body, mesh=mesh, in_specs=given, out_specs=PartitionSpec(), check_vma=check_vma)


def _arguments() -> tuple[jax.Array, jax.Array]:
    return jnp.ones((8, 8)), jnp.ones((4, 8))


def _text(mesh: Mesh, body: Any, check_vma: bool = False) -> str:
    return jax.jit(_mapped(mesh, body, check_vma)).lower(*_arguments()).compile().as_text()


def _seconds(mesh: Mesh) -> dict[str, float]:
    """Of the second call each, so that nothing compiles."""

    def step(w: jax.Array, x: jax.Array) -> Any:
        for _ in range(LAYERS):
            x = jnp.tanh(x @ w)
        return lax.psum(x.sum(), AXIS)

    mapped, given = _mapped(mesh, step), _arguments()
    jitted = jax.jit(mapped)
    found = {}
    for name, call, off in (("jitted_s", jitted, False), ("op_by_op_s", mapped, True)):
        with jax.disable_jit(off):
            jax.block_until_ready(call(*given))
            begin = time.perf_counter()
            jax.block_until_ready(call(*given))
            found[name] = time.perf_counter() - begin
    return found
