"""A chain of matrix products beside a step, and the seconds that it takes by itself.

python -m experiments.planted_ranks_torch.products COUNT
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

# No power of two, at which the rows of a matrix share the sets of a cache.
SIZE = 260
ROUNDS, RUNS = 60, 10


def chain(vector: torch.Tensor, seed: torch.Tensor, count: int) -> torch.Tensor:
    """Zero, from `count` products of [SIZE, SIZE], without a gradient."""
    with torch.no_grad():
        matrix = vector[:, None] * (vector + seed)[None, :]
        for _ in range(count):
            matrix = torch.mm(matrix, matrix) * (1.0 / SIZE)
        return matrix.sum() * 0.0


def main() -> None:
    """Prints the median seconds of the products of one step."""
    torch.set_num_threads(1)
    count = int(sys.argv[1])
    vector, seed = torch.linspace(0.0, 1.0, SIZE), torch.zeros(())

    def per_chain(count: int) -> float:
        found = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for _ in range(RUNS):
                chain(vector, seed, count)
            found.append((time.perf_counter() - begin) / RUNS)
        return statistics.median(found)

    per_chain(count)
    sys.stdout.write(f"{per_chain(2 * count) - per_chain(count)}\n")  # the difference: without the sums


if __name__ == "__main__":
    main()
