"""The models of `on_torch`, with the operations exchanged whose torch_xla lowering is inexact."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from xlacompare.frameworks.on_torch import models, operations
from xlacompare.workloads import spec

# operation -> why another formulation stands in for it; float64 only, measured on XLA:CPU with torch_xla 2.9.0
EXCEPTIONS: dict[str, dict[str, str]] = {
    "transformer": {
        "gelu": "functional.gelu is off by 1.2e-9 on torch_xla in float64 (a float32 constant 1/sqrt(2) in its "
        "lowering); composed as 0.5 * x * (1 + erf(x / sqrt(2))), off by less than 1e-15; float32 and bfloat16 use stock"
    }
}


def exceptions(workload: spec.Workload, dtype: str) -> dict[str, str]:
    """Operations that the model of this dtype composes itself, with the measured error of the stock ones."""
    return dict(EXCEPTIONS.get(workload.name, {})) if dtype == "float64" else {}


def make(workload: spec.Workload, dtype: str) -> nn.Module:
    """The workload's model with uninitialised parameters, on the CPU."""
    gelu = operations.composed_gelu if dtype == "float64" else functional.gelu
    return models.make(workload, dtype, gelu=gelu)
