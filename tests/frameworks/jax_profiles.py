"""A step of known compute and known collectives under the profiler, in the process of a JAX rank."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xlacompare.collectives import inputs
from xlacompare.collectives import request as requests
from xlacompare.core import timeline
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import profiling

STEPS, TRIPS, PRODUCTS = 12, 3, 4
SIDE, COUNT, LOOPED = 256, 1 << 20, 1 << 10  # float32 elements on each rank


class Step:
    """Products beside a sum of COUNT elements and, in a loop, TRIPS sums of LOOPED."""

    def __init__(self) -> None:
        size = len(jax.devices())
        mesh = jax.make_mesh((size,), ("rank",))
        spec = PartitionSpec("rank")
        sharded = jax.shard_map(_one_rank, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 3, check_vma=False)

        def place(*shape: int) -> jax.Array:
            whole = np.full(shape, 1e-3, np.float32)
            return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: whole[index])

        self.arguments = place(SIDE * size, SIDE), place(COUNT * size), place(LOOPED * size)
        self.executable = jax.jit(sharded).lower(*self.arguments).compile()
        self.last: Any = None

    def run(self, index: int) -> None:
        self.last = self.executable(*self.arguments)

    def synchronize(self) -> None:
        jax.block_until_ready(self.last)

    def communications(self) -> dict[str, Any]:
        return {"source": "hlo", "text": self.executable.as_text()}


class Alike(Step):
    """Another program of the same name, without its text: `jit__one_rank` beside that of `Step`."""

    def communications(self) -> dict[str, Any]:
        return {"source": "c10d", "ops": []}


def _one_rank(x: jax.Array, g: jax.Array, small: jax.Array) -> tuple[jax.Array, ...]:
    y = x
    for _ in range(PRODUCTS):
        y = jnp.tanh(y @ x)
    looped = jax.lax.fori_loop(0, TRIPS, lambda _, value: jax.lax.psum(jnp.sin(value), "rank"), small)
    return y, jax.lax.psum(g, "rank"), looped


def collect(world: ranks.Ranks, place: ranks.Place, folder: pathlib.Path) -> dict[str, Any]:
    """Totals of the traced steps, what was in them, and how long the collective takes alone."""
    step = Step()
    for index in range(3):
        step.run(index)
        step.synchronize()
    world.barrier()
    own = folder / f"rank{place.rank}"
    trace = profiling.profiled(world, step, STEPS, own)
    world.barrier()
    alike = profiling.profiled(world, Alike(), 1, folder / f"alike{place.rank}")
    return {
        "totals": [found.to_dict() for found in timeline.totals(trace)],
        "alike": [found.to_dict() for found in timeline.totals(alike)],
        "names": sorted({(span.kind, span.operation, span.name) for span in trace.spans}),
        "files": trace.files,
        "text": step.executable.as_text(),
        "alone_s": _alone_s(world, place),
    }


def _alone_s(world: ranks.Ranks, place: ranks.Place) -> list[float]:
    """Seconds of each of some sums of COUNT elements without compute."""
    request = requests.Request("all_reduce", "float32", COUNT, (place.size,), reduction="sum")
    step = world.build(request, {rank: inputs.values(request, rank, 1) for rank in world.local})
    for index in range(3):
        step.run(index)
        step.synchronize()
    world.barrier()
    found = []
    for index in range(STEPS):
        begin = time.perf_counter()
        step.run(index)
        step.synchronize()
        found.append(time.perf_counter() - begin)
    return found
