"""What every rank must get, from the inputs' formula and in NumPy, without the other ranks' buffers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from xlacompare.collectives import inputs, table
from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests


def expected(request: requests.Request, rank: int, seed: int) -> NDArray:
    """Output of a rank.

    Args:
      request: The collective.
      rank: Global rank.
      seed: The seed that `inputs.values` took.

    Returns:
      (output count,) in the dtype; bfloat16's values as float32. Empty for a barrier.
    """
    out = np.empty(table.output_count(request), inputs.numpy_dtype(request.dtype))
    for start, piece in pieces(request, rank, seed):
        out[start : start + len(piece)] = piece
    return out


def pieces(request: requests.Request, rank: int, seed: int) -> Iterator[tuple[int, NDArray]]:
    """`expected` piece by piece, in order: (index in the output, values in the dtype)."""
    group, place = meshes.group_of(request.mesh, request.axis, rank)
    count = request.count
    chunk = count // len(group)
    at = 0
    for source, start, stop in _parts(request, group, place, count, chunk):
        for index, piece in _part(request, source, start, stop, group, seed):
            yield at + index - start, piece
        at += stop - start


def _parts(
    request: requests.Request, group: tuple[int, ...], place: int, count: int, chunk: int
) -> Iterator[tuple[int | None, int, int]]:
    """(whose input, first element, one past the last) of each part of the output.

    Whose: a global rank, -1 for the reduction over the group, None for zeros.
    """
    match request.collective:
        case "all_reduce":
            yield -1, 0, count
        case "reduce_scatter":
            yield -1, place * chunk, (place + 1) * chunk
        case "all_gather":
            yield from ((source, 0, count) for source in group)
        case "all_to_all":
            yield from ((source, place * chunk, (place + 1) * chunk) for source in group)
        case "broadcast":
            yield group[request.root], 0, count
        case "ppermute":
            sources = {b: group[a] for a, b in request.pairs}
            yield sources.get(place), 0, count


def _part(
    request: requests.Request, source: int | None, start: int, stop: int, group: tuple[int, ...], seed: int
) -> Iterator[tuple[int, NDArray]]:
    dtype = inputs.numpy_dtype(request.dtype)
    if source is None:
        for first in range(start, stop, inputs.BLOCK):
            yield first, np.zeros(min(inputs.BLOCK, stop - first), dtype)
        return
    if source == -1:
        values = inputs.reduced_table(request, group, seed)
    else:
        values = inputs.rank_table(request, source, seed)
    rounded = inputs.round_bfloat16(values) if request.dtype == "bfloat16" else values.astype(dtype)
    yield from inputs.pieces(request, rounded, start, stop, seed)
