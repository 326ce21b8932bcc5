"""A plain loop over JAX's psum on gloo: what a user would write, sharing no code with xlacompare.

    python jax_gloo.py RANK SIZE PORT

One process per rank; says "ready" when all are there. Each reads lines "BYTES N" from standard input, runs N psums of
BYTES (float32) one after the other after a barrier, waits for the last, and answers with the seconds; the end of the
input ends it. Every rank must get the same lines. Lines that are no number ("[Gloo] ...") are the library's.
"""

import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def main(rank: int, size: int, port: int) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    reduce = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    inputs = {}
    print("ready", flush=True)
    for line in sys.stdin:
        nbytes, n = map(int, line.split())
        if nbytes not in inputs:
            here = jax.device_put(jnp.zeros(nbytes // 4, jnp.float32), jax.local_devices()[0])
            inputs[nbytes] = jax.make_array_from_single_device_arrays((size * (nbytes // 4),), sharding, [here])
            reduce(inputs[nbytes]).block_until_ready()
        x = inputs[nbytes]
        multihost_utils.sync_global_devices("loop")
        start = time.perf_counter()
        for _ in range(n):
            out = reduce(x)
        out.block_until_ready()
        print(time.perf_counter() - start, flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
