"""JAX's programs: captured steps of the main job, and collectives that XLA promotes and merges, live."""

from __future__ import annotations

import json

import pytest

from tests import conftest
from tests.frameworks import cases, programs
from xlacompare import frameworks
from xlacompare.core import errors
from xlacompare.graph import client

COLLECTIVES = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))

def text(function, dtype=jnp.float32):
    spec = PartitionSpec(("x", "y"))
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return mapped.lower(jnp.ones((64,), dtype)).compile().as_text()

print(json.dumps([
    text(lambda v: lax.psum(v, ("x", "y")), jnp.bfloat16),
    text(lambda v: lax.psum(v, "x") * 2 + lax.psum(v * v, "x")),
    text(lambda v: lax.fori_loop(0, 5, lambda i, x: lax.psum(x, "y") * 0.5, v)),
    text(lambda v: jnp.tile(lax.psum_scatter(v, "y", tiled=True), 2)),
]))
"""


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("jax")


@pytest.fixture(scope="module")
def reader():
    with client.Client(240.0) as made:
        yield made


@pytest.mark.parametrize("variant", programs.VARIANTS)
def test_captured_step(adapter, reader, variant, tmp_path):
    made = programs.capture(adapter, variant, tmp_path)
    found = programs.check(reader, variant, tmp_path)
    assert {(heavy["dtype"], heavy["precision"]) for heavy in found["heavy"]} == {("f32", "{highest,highest}")}
    optimised = reader.ask("count", str(tmp_path), "optimised")
    assert optimised["flops"] == found["flops"]
    assert optimised["fusions"]
    assert optimised["bytes"] < found["bytes"]
    assert all(item.donated == (item.role != "batch") for item in made.inputs)


def test_eager_has_no_program(adapter):
    step = cases.build(adapter, "mlp", "eager")
    with pytest.raises(errors.UnsupportedError, match="eager"):
        frameworks.capture("jax", step)


def test_what_xla_makes_of_collectives(reader):
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    child = conftest.run_child(["-c", COLLECTIVES], env=env, timeout=120)
    assert child.returncode == 0, child.stderr
    promoted, merged, loop, scattered = reader.collectives(json.loads(child.stdout.splitlines()[-1]))
    assert [(item.dtype, item.promoted_from, item.operand_bytes) for item in promoted] == [("f32", "bf16", 64)]
    assert [(item.operands, item.operand_bytes, item.groups) for item in merged] == [(2, 128, ((0, 2), (1, 3)))]
    assert [(item.trips, item.groups) for item in loop] == [(5, ((0, 1), (2, 3)))]
    assert [(item.opcode, item.result_bytes) for item in scattered] == [("reduce-scatter", 32)]
