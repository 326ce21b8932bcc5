"""Batch norm over the batch of all ranks: two means that cross them, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from xlacompare.frameworks.on_torch import operations


class _Mean(torch.autograd.Function):
    """Mean of a tensor over the ranks. Every rank's loss depends on it, so its gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _mean(value, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _mean(gradients[0], ctx.group), None


def _mean(value: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    reduced = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, group=group)
    return reduced.div_(group.size())


def over(group: dist.ProcessGroup) -> operations.BatchNorm:
    """Batch norm as `operations.composed_batch_norm`, its mean and its squared deviations those of all ranks."""

    def batch_norm(
        inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = _Mean.apply(inputs.mean((0, 2, 3), keepdim=True), group)
        deviation = inputs - mean
        var = _Mean.apply(deviation.square().mean((0, 2, 3), keepdim=True), group)
        scale = weight[:, None, None] * torch.rsqrt(var + eps)
        return deviation * scale + bias[:, None, None], mean.detach().flatten(), var.detach().flatten()

    return batch_norm
