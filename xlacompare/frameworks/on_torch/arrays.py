"""NumPy arrays in and out of the torch models, by the layout rules of `workloads.layout`; shared with torch_xla."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn

from xlacompare.frameworks.on_torch import models
from xlacompare.workloads import layout, spec

_LAST_PARTS = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def torch_name(name: str) -> str:
    """Torch's name of a neutral name: `stem.bn.mean` -> `stem.bn.running_mean`."""
    path, _, last = name.rpartition(".")
    return f"{path}.{_LAST_PARTS[last]}"


def load(model: nn.Module, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
    """Copies neutral arrays into the model's own tensors, cast to their dtype, on whatever device they are.

    Raises:
      KeyError: The workload declares a tensor that the model or the arrays lack.
      ValueError: The model has parameters that the workload does not declare.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    undeclared = set(dict(model.named_parameters())) - {torch_name(s.name) for s in workload.parameters()}
    if undeclared:
        raise ValueError(f"parameters that the workload does not declare: {sorted(undeclared)}")
    with torch.no_grad():
        for name, whole in named_tensors(workload, parameters, buffers):
            target = tensors[name]
            if whole.shape != target.shape:
                raise ValueError(f"{name}: {tuple(whole.shape)} does not fit the model's {tuple(target.shape)}")
            target.copy_(whole)


def named_tensors(
    workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays
) -> Iterable[tuple[str, torch.Tensor]]:
    """Every tensor that the workload declares: torch's name, and the array in torch's layout.

    Raises:
      KeyError: The arrays lack one.
    """
    for tensor_specs, arrays in ((workload.parameters(), parameters), (workload.buffers(), buffers)):
        for tensor_spec in tensor_specs:
            array = layout.to_framework(arrays[tensor_spec.name], tensor_spec.kind, "torch")
            yield torch_name(tensor_spec.name), torch.from_numpy(array)


def export(model: nn.Module, workload: spec.Workload) -> tuple[spec.Arrays, spec.Arrays]:
    """Parameters and buffers as NumPy in the neutral layout and their own dtype (waits for the device)."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return export_tensors(tensors, workload.parameters()), export_tensors(tensors, workload.buffers())


def export_gradients(model: nn.Module, workload: spec.Workload) -> spec.Arrays:
    """Gradients as float64 NumPy in the neutral layout, in program order."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {k: v.astype(np.float64) for k, v in export_tensors(gradients, workload.parameters()).items()}


def export_tensors(tensors: Mapping[str, torch.Tensor], specs: Iterable[spec.TensorSpec]) -> spec.Arrays:
    """Tensors by torch's names as NumPy by neutral name and layout (waits for the device)."""
    return {
        s.name: layout.from_framework(tensors[torch_name(s.name)].detach().cpu().numpy(), s.kind, "torch")
        for s in specs
    }


def batch_to_torch(batch: spec.Arrays, dtype: str) -> dict[str, torch.Tensor]:
    """A batch as CPU tensors: images to [batch, channel, height, width], floats to the parameters' dtype, labels int64.

    Labels widen because `cross_entropy` takes no int32.
    """
    tensors = {}
    for name, array in batch.items():
        kind = "image" if name == "inputs" and array.ndim == 4 else "vector"
        tensor = torch.from_numpy(layout.to_framework(array, kind, "torch"))
        if tensor.is_floating_point():
            tensor = tensor.to(models.PARAMETER_DTYPES[dtype])
        tensors[name] = tensor.long() if name == "labels" else tensor
    return tensors


def forward_backward(
    model: nn.Module, batch: models.Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor], models.Statistics]:
    """Loss, tapped activations by name and batch statistics as tensors; gradients are left in `.grad`."""
    activations: dict[str, torch.Tensor] = {}

    def tap(name: str, value: torch.Tensor) -> None:
        activations[name] = value.detach()

    model.zero_grad(set_to_none=True)
    logits, statistics = model(batch, tap)
    loss = models.loss_of(logits, batch["labels"])
    loss.backward()
    return loss.detach(), activations, statistics


def activations_to_neutral(activations: Mapping[str, torch.Tensor]) -> spec.Arrays:
    """Tapped activations as float64 NumPy; feature maps [batch, channel, height, width] to channel last.

    Only feature maps have four axes among what the models tap.
    """
    arrays = {name: value.double().cpu().numpy() for name, value in activations.items()}
    return {n: layout.from_framework(a, "image" if a.ndim == 4 else "vector", "torch") for n, a in arrays.items()}
