"""Communication arms of lanes: what stands in the place of an xm.* call over all ranks.

XLA:CPU drops optimization barriers before it fuses and orders. Where a collective waits for all of its operands, its
stand-in has their first elements meet in one small sort, and the results take a product of that with zero: the same
waits for the same, and nothing is computed that the collective's users would not read (as `on_jax`).
"""

from __future__ import annotations

import torch
from torch_xla.core import xla_model

from xlacompare.parallel import arms

Tensors = list[torch.Tensor]


class Communication:
    """The collectives of one lane under one arm.

    Args:
      arm: Name in `parallel.arms`.
      size: Ranks.
      like: A tensor of the lane's device and of the dtype that is sent.
    """

    def __init__(self, arm: str, size: int, like: torch.Tensor) -> None:
        self.arm, self.size = arm, size
        # Uploaded: a number of Python would be a constant, and x * 0 or x * 1 of constants may be folded.
        self._scale, self._zero = (torch.tensor(value, dtype=like.dtype).to(like.device) for value in (1.0 / size, 0.0))

    def mean(self, tensors: Tensors) -> None:
        """Mean over ranks, in place: one call for all, as xm.reduce_gradients makes it."""
        if self.arm == "serial":
            self._meet(tensors)
        if self.arm in arms.EXACT:
            xla_model.all_reduce(xla_model.REDUCE_SUM, tensors, scale=1.0 / self.size)
        else:
            self._local_mean(tensors)
        if self.arm == "serial":
            self._meet(tensors)

    def _local_mean(self, tensors: Tensors) -> None:
        """`elided` and `token`: the operand itself, and the multiplication, which is not communication."""
        firsts = [_first(tensor) for tensor in tensors]
        if self.arm == "token":
            firsts = [first.clone() for first in firsts]
            xla_model.all_reduce(xla_model.REDUCE_SUM, firsts, scale=1.0 / self.size)
        else:
            firsts = _met(firsts)
        for tensor, first in zip(tensors, firsts, strict=True):
            tensor.mul_(self._scale).add_(first * self._zero)

    def _meet(self, tensors: Tensors) -> None:
        """Whatever reads one of the tensors waits for all of them."""
        for tensor, first in zip(tensors, _met([_first(tensor) for tensor in tensors]), strict=True):
            tensor.add_(first * self._zero)


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[:1]


def _met(firsts: Tensors) -> Tensors:
    """Each of them from one sort of all; [1] each."""
    return list(torch.sort(torch.cat(firsts)).values.split(1))
