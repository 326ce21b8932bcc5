"""What a rank gets of a global batch. Every rank is given all of it and takes its part."""

from __future__ import annotations

import numpy as np

from xlacompare.core import errors
from xlacompare.workloads import spec


def check(workload: spec.Workload, num_ranks: int) -> None:
    """Equal shards only: the mean over ranks of their mean losses is then the loss of the global batch.

    Raises:
      BadInputError: The batch does not divide.
    """
    if workload.batch_size % num_ranks:
        raise errors.BadInputError(
            f"--batch_size={workload.batch_size} does not divide among {num_ranks} ranks: the mean loss would weigh "
            f"examples unequally; choose a multiple of {num_ranks}"
        )


def rows(batch: spec.Arrays, rank: int, num_ranks: int) -> spec.Arrays:
    """Rows of one rank: inputs, labels and dropout masks all have the examples first.

    Args:
      batch: Of the whole mesh, each array [examples, ...].
      rank: Whose.
      num_ranks: Among how many; they divide the examples (`check`).
    """
    return {name: _rows(array, rank, num_ranks) for name, array in batch.items()}


def _rows(array: np.ndarray, rank: int, num_ranks: int) -> np.ndarray:
    size = array.shape[0] // num_ranks
    return array[rank * size : (rank + 1) * size]
