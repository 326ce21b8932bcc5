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
from torch.optim import adamw, sgd

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


def initial_state(optimizer: spec.OptimizerSpec, parameters: Tensors) -> State:
    """Zeros as the state of `update`; the step counts are tensors, so that they are data and never cause a recompile.

    A count has its parameter's dtype: b2 ** count in float32 would leave 1e-5 in a float64 bias correction.
    """
    if optimizer.name == "sgd":
        return {"momentum": [torch.zeros_like(p) for p in parameters]}
    return {
        "first": [torch.zeros_like(p) for p in parameters],
        "second": [torch.zeros_like(p) for p in parameters],
        "steps": [torch.zeros((), dtype=p.dtype, device=p.device) for p in parameters],
    }


def update(optimizer: spec.OptimizerSpec, parameters: Tensors, gradients: Tensors, state: State) -> None:
    """One update in place through torch.optim's functional form, the code that `make`'s optimizers run.

    Only for tracing by torch.compile: there the bias corrections of AdamW come from the count tensors. Multi-tensor
    (foreach) operations are one node each for Dynamo; Inductor takes them apart again on the CPU.
    """
    if optimizer.name == "sgd":
        sgd.sgd(
            parameters,
            gradients,
            state["momentum"],
            foreach=True,
            weight_decay=optimizer.weight_decay,
            momentum=optimizer.momentum,
            lr=optimizer.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        return
    adamw.adamw(
        parameters,
        gradients,
        state["first"],
        state["second"],
        [],
        state["steps"],
        foreach=True,
        # Multi-tensor AdamW takes tensors as counts only when capturable; traced, it does so on the CPU too.
        capturable=True,
        amsgrad=False,
        beta1=optimizer.b1,
        beta2=optimizer.b2,
        lr=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        eps=optimizer.eps,
        maximize=False,
    )
