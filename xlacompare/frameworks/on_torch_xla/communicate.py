"""Communication arms of lanes: what stands in the place of an xm.* call over all ranks.

XLA:CPU drops optimization barriers before it fuses and orders. Where a collective waits for all of its operands, its
stand-in has their first elements meet in one small sort, and the results take a product of that with zero: the same
waits for the same, and nothing is computed that the collective's users would not read (as `on_jax`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
        with self._alone(tensors, tensors):
            if self.arm in arms.EXACT:
                xla_model.all_reduce(xla_model.REDUCE_SUM, tensors, scale=1.0 / self.size)
            else:
                self._local_mean(tensors)

    def _local_mean(self, tensors: Tensors) -> None:
        """The operand itself, and the multiplication, which is not communication."""
        firsts = [_first(tensor) for tensor in tensors]
        if self.arm == "token":
            firsts = [first.clone() for first in firsts]
            xla_model.all_reduce(xla_model.REDUCE_SUM, firsts, scale=1.0 / self.size)
        else:
            firsts = _met(firsts)
        for tensor, first in zip(tensors, firsts, strict=True):
            tensor.mul_(self._scale).add_(first * self._zero)

    def gather(self, parts: Tensors) -> Tensors:
        """Every rank's part, one after the other: a call for each; [size * length of the part].

        The parts are state, so nothing is computed before it.
        """
        whole: Tensors = []
        with self._alone([], whole):
            whole += [self._gathered(part) for part in parts]
        return whole

    def _gathered(self, part: torch.Tensor) -> torch.Tensor:
        if self.arm in arms.EXACT:
            return xla_model.all_gather(part, dim=0, pin_layout=False)
        if self.arm == "elided":
            return torch.cat([part] * self.size)
        token = _first(xla_model.all_gather(_first(part), dim=0, pin_layout=False))
        return torch.cat([_first(part) + token * self._zero, part[1:], *([part] * (self.size - 1))])

    def scatter_mean(self, wholes: Tensors) -> Tensors:
        """The rank's part of the mean over ranks: a call for each; [length / size]."""
        parts: Tensors = []
        with self._alone(wholes, parts):
            parts += [self._scattered(whole) for whole in wholes]
        return parts

    def _scattered(self, whole: torch.Tensor) -> torch.Tensor:
        if self.arm in arms.EXACT:
            return self._reduce_scatter(whole)
        part = whole[: whole.numel() // self.size] * self._scale
        if self.arm == "elided":
            return part
        return part + self._reduce_scatter(whole[: self.size]) * self._zero

    def _reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        return xla_model.reduce_scatter(xla_model.REDUCE_SUM, whole, 1.0 / self.size, 0, self.size)

    @contextlib.contextmanager
    def _alone(self, before: Tensors, after: Tensors) -> Iterator[None]:
        """Under `serial` nothing is computed beside the collectives inside."""
        if self.arm == "serial" and before:
            before[:] = self._meet(before)
        yield
        if self.arm == "serial":
            after[:] = self._meet(after)

    def _meet(self, tensors: Tensors) -> Tensors:
        """Whatever reads one of the tensors waits for all of them."""
        firsts = _met([_first(tensor) for tensor in tensors])
        return [tensor.add_(first * self._zero) for tensor, first in zip(tensors, firsts, strict=True)]


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[:1]


def _met(firsts: Tensors) -> Tensors:
    """Each of them from one sort of all; [1] each."""
    return list(torch.sort(torch.cat(firsts)).values.split(1))
