"""Operations in two formulations: the stock kernel, and a composed one for where the stock one is inexact."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

BatchNorm = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def stock_batch_norm(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Torch's own training kernel: outputs [batch, channels, height, width], batch mean and biased variance [channels].

    The kernel returns 1 / sqrt(variance + eps); its own running variance is the unbiased one, hence none is passed.
    """
    outputs, mean, invstd = torch.native_batch_norm(inputs, weight, bias, None, None, True, 0.0, eps)
    return outputs, mean.detach(), (invstd.detach().square().reciprocal() - eps).clamp_min(0.0)


def composed_batch_norm(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same from elementary operations, two-pass, for where the stock lowering is inexact."""
    mean = inputs.mean((0, 2, 3), keepdim=True)
    deviation = inputs - mean
    var = deviation.square().mean((0, 2, 3), keepdim=True)
    scale = weight[:, None, None] * torch.rsqrt(var + eps)
    return deviation * scale + bias[:, None, None], mean.detach().flatten(), var.detach().flatten()


def composed_gelu(inputs: torch.Tensor) -> torch.Tensor:
    """Exact GELU, x * (1 + erf(x / sqrt(2))) / 2, for where the stock one is inexact (torch_xla float64, 1.2e-9)."""
    return inputs * 0.5 * (1.0 + torch.erf(inputs * 0.7071067811865476))


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all labels; logits [..., classes] are widened from bfloat16 to float32."""
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return functional.cross_entropy(wide.flatten(0, -2), labels.flatten())
