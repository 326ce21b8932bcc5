"""The models of `on_torch`; in float64 with the operations exchanged whose torch_xla lowering is inexact.

Float32 and bfloat16, that is everything that is timed, use the stock operations.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from xlacompare.frameworks.on_torch import models, operations
from xlacompare.workloads import spec

# workload -> operation -> why another formulation stands in for it; measured on XLA:CPU with torch_xla 2.9.0
EXCEPTIONS: dict[str, dict[str, str]] = {
    "transformer": {
        "gelu": "functional.gelu errs by 1.6e-9, its gradient by 3.8e-9, in float64 on torch_xla (erf by 1e-16); "
        "composed as 0.5 * x * (1 + erf(x / sqrt(2))), which errs by 1.4e-16",
        "layer_norm": "functional.layer_norm keeps eps as float32 (attribute of an XLA instruction): 1e-5 is off by "
        "2.5e-8, which is 4e-10 in the logits where the variance is small; composed from mean, square and rsqrt",
    }
}


def exceptions(workload: spec.Workload, dtype: str) -> dict[str, str]:
    """Operations that the model of this dtype composes itself, with the measured error of the stock ones."""
    return dict(EXCEPTIONS.get(workload.name, {})) if dtype == "float64" else {}


class ComposedLayerNorm(models.LayerNorm):
    """Two-pass layer norm from elementary operations, so that eps keeps its digits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + self.eps)
        return deviation * scale * self.weight + self.bias


def make(workload: spec.Workload, dtype: str) -> nn.Module:
    """The workload's model with uninitialised parameters, on the CPU."""
    if dtype != "float64":
        return models.make(workload, dtype, gelu=functional.gelu)
    model = models.make(workload, dtype, gelu=operations.composed_gelu)
    for name, module in list(model.named_modules()):
        if isinstance(module, models.LayerNorm):
            model.set_submodule(name, ComposedLayerNorm(module.weight.numel(), module.eps).to(module.weight.dtype))
    return model


def widen_causal_masks(model: nn.Module) -> None:
    """Gives every causal mask one more row and column, so that cutting it to the batch's length is not a no-op.

    torch_xla's Dynamo bridge loses an output that is a no-op view of an input (here the mask, kept for the backward
    pass): IndexError in `Deduper.recover`, torch_xla 2.9.0. The values that are used stay the same.
    """
    for module in model.modules():
        if isinstance(module, models.Attention):
            length = module.future.shape[0] + 1
            module.future = torch.ones(length, length, dtype=torch.bool).triu(1).to(module.future.device)
