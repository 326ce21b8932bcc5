"""Which axis of which tensor is split among the devices of one SPMD program, by strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

from xlacompare.core import errors
from xlacompare.frameworks.on_torch import models
from xlacompare.workloads import spec


class Placement(Protocol):
    """Axes; None: the tensor is whole on every device."""

    def prepare(self, model: nn.Module) -> None:
        """Changes the model's operations."""
        ...

    def laid_out(self, arrays: spec.Arrays) -> spec.Arrays:
        """Parameters or gradients, neutral, as the prepared model has them."""
        ...

    def neutral(self, arrays: spec.Arrays) -> spec.Arrays:
        """Inverse of `laid_out`."""
        ...

    def parameter(self, name: str, shape: Sequence[int]) -> int | None:
        """Of a parameter, by torch's name; its gradient and optimizer state lie as it does."""
        ...

    def batch(self, name: str) -> int | None:
        """Of an array of the batch."""
        ...

    def activation(self, name: str) -> int | None:
        """Of what the model taps; -1 is the last."""
        ...


class DataParallel:
    """Rows of the batch."""

    def __init__(self, workload: spec.Workload, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def prepare(self, model: nn.Module) -> None:
        """Nothing."""

    def laid_out(self, arrays: spec.Arrays) -> spec.Arrays:
        """As they are."""
        return arrays

    def neutral(self, arrays: spec.Arrays) -> spec.Arrays:
        """As they are."""
        return arrays

    def parameter(self, name: str, shape: Sequence[int]) -> int | None:
        """Whole."""
        return None

    def batch(self, name: str) -> int | None:
        """By examples."""
        return 0

    def activation(self, name: str) -> int | None:
        """By examples: else the partitioner may split products by the parameters' axis and gather the batch."""
        return 0


class FullySharded(DataParallel):
    """Rows of the batch, and every parameter along the first axis that divides."""

    def parameter(self, name: str, shape: Sequence[int]) -> int | None:
        """None where no axis divides."""
        return next((axis for axis, length in enumerate(shape) if length % self._num_ranks == 0), None)


class TensorParallel:
    """Products in pairs: the first by columns, the second by rows; embeddings, norms and output layer are whole.

    Raises:
      BadInputError: Heads, or a layer's width, do not divide.
    """

    def __init__(self, workload: spec.Workload, num_ranks: int) -> None:
        config = workload.config
        self._heads = getattr(config, "heads", 1)
        self._columns, self._rows = ["attention.qkv", "mlp.up"], ["attention.out", "mlp.down"]
        cut = {}
        if workload.name == "mlp":
            layers = [*(f"layer{i}" for i in range(len(config.hidden))), "head"]
            pairs = list(zip(layers[::2], layers[1::2], strict=False))  # one left over is whole
            self._columns, self._rows = [first for first, _ in pairs], [second for _, second in pairs]
            cut = dict(zip(self._columns, config.hidden[::2], strict=False))
        else:
            cut = {"heads": config.heads, "mlp_width": config.mlp_width}
        for name, length in cut.items():
            if length % num_ranks:
                raise errors.BadInputError(
                    f"{name}={length} of {workload.name} does not divide among {num_ranks} ranks of tp"
                )

    def prepare(self, model: nn.Module) -> None:
        """Puts the heads before q, k, v: cut in equal parts, three matrices side by side are not cut by heads."""
        for module in model.modules():
            if isinstance(module, models.Attention):
                module.__class__ = HeadsFirst  # the same parameters and buffers

    def laid_out(self, arrays: spec.Arrays) -> spec.Arrays:
        """[..., 3 * heads * features] of qkv to [..., heads * 3 * features]."""
        return self._swapped(arrays, 3, self._heads)

    def neutral(self, arrays: spec.Arrays) -> spec.Arrays:
        """Back."""
        return self._swapped(arrays, self._heads, 3)

    def _swapped(self, arrays: spec.Arrays, outer: int, inner: int) -> spec.Arrays:
        def swap(array: np.ndarray) -> np.ndarray:
            return array.reshape(*array.shape[:-1], outer, inner, -1).swapaxes(-3, -2).reshape(array.shape)

        return {name: swap(array) if ".qkv." in name else array for name, array in arrays.items()}

    def parameter(self, name: str, shape: Sequence[int]) -> int | None:
        """Weights are [out, in]."""
        path = name.rpartition(".")[0]
        if any(path.endswith(end) for end in self._columns):
            return 0
        return 1 if len(shape) == 2 and any(path.endswith(end) for end in self._rows) else None

    def batch(self, name: str) -> int | None:
        """Whole, but for masks of attention [batch, heads, ...]."""
        return 1 if name.startswith("mask.") and name.endswith(".attention") else None

    def activation(self, name: str) -> int | None:
        """Whole; the mlp taps what its first products give, by columns."""
        return -1 if name in self._columns else None


class HeadsFirst(models.Attention):
    """Attention whose q, k, v lie [heads, 3, features] in memory; else the same."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, self.heads, 3, width // self.heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)).to(self.out.weight.dtype) * (width // self.heads) ** -0.5
        weights = torch.softmax(scores.masked_fill(self.future[:length, :length], float("-inf")), -1).to(x.dtype)
        if mask is not None:
            weights = weights * mask.to(x.dtype)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


PLACEMENTS: dict[str, type[DataParallel] | type[TensorParallel]] = {
    "dp": DataParallel,
    "fsdp": FullySharded,
    "tp": TensorParallel,
}
