"""Tensors cut along an axis among all ranks, as `torch.chunk` cuts: equal parts, the last ones smaller or empty."""

from __future__ import annotations

import torch
import torch.distributed as dist


def cut(whole: torch.Tensor, rank: int, size: int, axis: int = 0) -> torch.Tensor:
    """One rank's part; a view."""
    length = -(-whole.shape[axis] // size)
    begin = min(rank * length, whole.shape[axis])
    return whole.narrow(axis, begin, min(length, whole.shape[axis] - begin))


def gather(part: torch.Tensor, length: int, axis: int = 0) -> torch.Tensor:
    """The whole tensor on every rank, over the default group.

    Args:
      part: This rank's.
      length: Of the whole along the axis.
      axis: That was cut.
    """
    size = dist.get_world_size()
    rows = part.movedim(axis, 0)
    padded = rows.new_zeros((-(-length // size), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    whole = padded.new_empty((size * padded.shape[0], *padded.shape[1:]))
    dist.all_gather_into_tensor(whole, padded)
    return whole[:length].movedim(0, axis)
