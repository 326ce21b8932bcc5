"""The programs behind test_jax_collectives_facts.py: run in a world's process, two virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxlib.mlir import ir

from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import programs

AXIS = "ranks"
Function = Callable[[Any], Any]

TEXTS: dict[str, Function] = {
    "sum of a constant": lambda x: x + lax.psum(jnp.ones(8, x.dtype), AXIS),
    "sum of one": lambda x: x + lax.psum(1, AXIS),
    "unused": lambda x: (lax.psum(x, AXIS), x + 1)[1],
    "equal": lambda x: lax.psum(x, AXIS) + lax.psum(x, AXIS),
    "different": lambda x: jnp.where(lax.psum(x, AXIS) > 3, lax.psum(x * 2, AXIS), 0),
    "slice of a sum": lambda x: lax.psum(x, AXIS)[:4],
}
BY_DTYPE: dict[str, Function] = {
    "psum": lambda x: lax.psum(x, AXIS),
    "all_gather": lambda x: lax.all_gather(x, AXIS, tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x, AXIS, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, AXIS, [(0, 1)]),
}


def _consumed(x: jax.Array) -> jax.Array:
    pairs = zip([0, 1], [1, 0], strict=True)
    list(pairs)
    return lax.ppermute(x, AXIS, pairs)


def _multiplied(x: jax.Array) -> jax.Array:
    return lax.psum(x * (lax.axis_index(AXIS) == 0), AXIS)


def collect(world: ranks.Ranks) -> dict[str, Any]:
    """Texts, values, shapes and errors."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    texts = {name: _text(function, mesh, np.float32) for name, function in TEXTS.items()}
    for dtype in (jnp.bfloat16, np.float16):
        for name, function in BY_DTYPE.items():
            texts[f"{name} of {jnp.dtype(dtype)}"] = _text(function, mesh, dtype)
    texts["donated psum"] = _text(BY_DTYPE["psum"], mesh, np.float32, donate=True)
    texts["broadcast for a GPU"] = _for_gpu(mesh)
    return {"texts": texts, "values": _values(mesh), "shapes": _shapes(mesh), "errors": _errors(mesh, world)}


def _text(function: Function, mesh: Mesh, dtype: Any, donate: bool = False) -> str:
    argument = jax.device_put(np.arange(16).astype(dtype), programs.sharding_of(mesh))
    return programs.compile_over(function, mesh, argument, donate)[0].as_text()


def _for_gpu(mesh: Mesh) -> str:
    """StableHLO of a broadcast on GPUs; lowering needs none."""
    request = requests.Request("broadcast", "float32", 2, (2,), root=1)
    mapped = _mapped(programs.body(request, AXIS, "gpu"), mesh)
    return mapped.trace(np.zeros(4, np.float32)).lower(lowering_platforms=("cuda",)).as_text()


def _mapped(function: Function, mesh: Mesh) -> Any:
    spec = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


def _values(mesh: Mesh) -> dict[str, list[list[Any]]]:
    one, nan = np.array([1, 2, 3, 4], np.float32), np.array([1, 2, np.nan, np.inf], np.float32)
    request = requests.Request("broadcast", "float32", 2, (2,), root=0)
    cases: dict[str, tuple[Function, np.ndarray]] = {
        "open chain": (lambda x: lax.ppermute(x, AXIS, [(0, 1)]), one),
        "self edge": (lambda x: lax.ppermute(x, AXIS, [(1, 1)]), one),
        "consumed zip": (_consumed, one),
        "pmean": (lambda x: lax.pmean(x, AXIS), one),
        "sum over n": (lambda x: lax.psum(x, AXIS) / 2, one),
        "broadcast over NaN": (programs.body(request, AXIS, "cpu"), nan),
        "multiplied over NaN": (_multiplied, nan),
    }
    found = {}
    for name, (function, argument) in cases.items():
        output = np.asarray(_mapped(function, mesh)(argument)).reshape(2, -1)
        found[name] = [["nan" if np.isnan(value) else float(value) for value in row] for row in output]
    return found


def _shapes(mesh: Mesh) -> dict[str, list[int]]:
    """Of one rank's output."""
    cases: dict[str, Function] = {
        "tiled": lambda x: lax.all_gather(x, AXIS, tiled=True),
        "untiled": lambda x: lax.all_gather(x, AXIS),
        "negative axis of all_gather": lambda x: lax.all_gather(x, AXIS, axis=-1, tiled=True),
    }
    found = {}
    for name, function in cases.items():
        rows, *rest = _mapped(function, mesh)(np.zeros((4, 4), np.float32)).shape
        found[name] = [rows // 2, *rest]
    return found


def _errors(mesh: Mesh, world: ranks.Ranks) -> dict[str, str]:
    nine, cube = np.zeros(18, np.float32), np.zeros((4, 2, 4), np.float32)
    cases: dict[str, Callable[[], Any]] = {
        "psum_scatter of 9": lambda: _mapped(BY_DTYPE["psum_scatter"], mesh)(nine),
        "all_to_all of 9": lambda: _mapped(lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True), mesh)(nine),
        "negative axis of psum_scatter": lambda: _mapped(
            lambda x: lax.psum_scatter(x, AXIS, scatter_dimension=-1, tiled=True), mesh
        )(cube),
        "negative axis of all_to_all": lambda: _mapped(lambda x: lax.all_to_all(x, AXIS, -1, -1, tiled=True), mesh)(
            cube
        ),
        "pbroadcast": lambda: _mapped(lambda x: lax.pbroadcast(x, (AXIS,), 0), mesh)(nine),
        "pbroadcast along a name": lambda: _mapped(lambda x: lax.pbroadcast(x, AXIS, 0), mesh)(nine),
        "request for 9": lambda: world.build(requests.Request("all_to_all", "float32", 9, (2,)), {}),
    }
    return {name: _error(case) for name, case in cases.items()}


def _error(case: Callable[[], Any]) -> str:
    try:
        case()
    except (ValueError, RuntimeError, NotImplementedError, NameError, errors.BadInputError, ir.MLIRError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def collect_mpi() -> dict[str, Any]:
    """What mpi4jax and JAX do in an MPI world of one."""
    import mpi4jax
    from mpi4py import MPI

    def total(x: jax.Array) -> jax.Array:
        return mpi4jax.allreduce(x, MPI.SUM)

    x = jnp.arange(8, dtype=jnp.float32)
    compiled = jax.jit(total).lower(x).compile()
    compiled(x).block_until_ready()
    donated = jax.jit(total, donate_argnums=(0,)).lower(x).compile().as_text()
    found = {name: _error(lambda t=t: jax.jit(total)(x.astype(t))) for name, t in _HALVES.items()}
    found["second call"] = _error(lambda: compiled(x).block_until_ready())
    return {"names": dir(mpi4jax), "errors": found, "donated": donated}


_HALVES = {"float16": jnp.float16, "bfloat16": jnp.bfloat16}
