"""A chain of matrix products that no compiler can drop, and the seconds that it takes by itself.

python -m experiments.planted_ranks_jax.products COUNT
"""

from __future__ import annotations

import statistics
import sys
import time

import jax
import jax.numpy as jnp

# No power of two, at which the rows of a matrix share the sets of a cache.
SIZE = 260
ROUNDS, RUNS = 60, 10


def chain(vector: jax.Array, seed: jax.Array, count: int) -> jax.Array:
    """Zero, from `count` products of [SIZE, SIZE]: 0 * x is not 0 where x is not finite, so XLA must compute x."""
    matrix = vector[:, None] * (vector + seed)[None, :]
    for _ in range(count):
        matrix = jnp.dot(matrix, matrix) * (1.0 / SIZE)
    return matrix.sum() * 0.0


def main() -> None:
    """Prints the median seconds of the products of one step."""
    count = int(sys.argv[1])
    vector, seed = jnp.linspace(0.0, 1.0, SIZE), jnp.zeros(())

    def per_chain(count: int) -> float:
        function = jax.jit(lambda v, s: chain(v, s, count))
        function(vector, seed).block_until_ready()
        found = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for _ in range(RUNS):
                last = function(vector, seed)
            last.block_until_ready()
            found.append((time.perf_counter() - begin) / RUNS)
        return statistics.median(found)

    sys.stdout.write(f"{per_chain(2 * count) - per_chain(count)}\n")  # the difference: without dispatch and sums


if __name__ == "__main__":
    main()
