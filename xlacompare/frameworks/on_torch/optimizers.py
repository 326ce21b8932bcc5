"""`spec.OptimizerSpec` in torch.optim's terms; shared with torch_xla.

Both of torch's own optimizers already have the neutral meaning:
  SGD: v = momentum * v + (g + weight_decay * p), v = g + weight_decay * p at the first step; p -= lr * v.
  AdamW: p *= 1 - lr * weight_decay, then p -= lr * (m / bias1) / (sqrt(v / bias2) + eps)  (decoupled; eps outside the
  root and after the bias correction). The decay is applied to p before the update, which is the same real number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from xlacompare.core import errors
from xlacompare.workloads import spec

Tensors = list[torch.Tensor]
State = dict[str, Tensors]


def make(
    optimizer: spec.OptimizerSpec, parameters: Iterable[torch.nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """The stock optimizer; `options` are torch's implementation choices (foreach, fused, capturable).

    Raises:
      UnsupportedError: No optimizer has this name.
    """
    if optimizer.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=optimizer.learning_rate,
            momentum=optimizer.momentum,
            weight_decay=optimizer.weight_decay,
            **options,
        )
    if optimizer.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=optimizer.learning_rate,
            betas=(optimizer.b1, optimizer.b2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            **options,
        )
    raise errors.UnsupportedError(f"torch has no optimizer {optimizer.name!r}; known: adamw, sgd")
