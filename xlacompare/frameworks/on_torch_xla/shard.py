"""A rank's part of the training state: every parameter flat, in equal parts, the last one padded with zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from xlacompare.frameworks.on_torch import arrays
from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch_xla import communicate, replica
from xlacompare.workloads import layout, spec


class Shard(replica.Replica):
    """Gathers every parameter before the forward pass, scatters every gradient after the backward pass.

    What was gathered is kept for the backward pass: a second gather of the same part would be the same value, and XLA
    merges the two.
    """

    def _place(self, model: nn.Module, device: torch.device | str) -> list[nn.Parameter]:
        """The model's parameters are empty between steps; its buffers are whole on every rank."""
        parts = [self._part(parameter.detach()) for parameter in model.parameters()]
        self._initial = [*parts, *(buffer.clone() for buffer in model.buffers())]
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype)
        model.to(device)
        self._nothing = torch.empty(0, dtype=parts[0].dtype).to(device)
        return [nn.Parameter(part.to(device)) for part in parts]

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        return self._padded(whole).chunk(self._num_ranks)[self._rank].clone()

    def _padded(self, whole: torch.Tensor) -> torch.Tensor:
        flat, missing = whole.reshape(-1), -whole.numel() % self._num_ranks
        return functional.pad(flat, (0, missing)) if missing else flat

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Parts of parameters, and buffers, by name."""
        return [*zip(self._shapes, self.training.parameters, strict=True), *self.training.model.named_buffers()]

    def backward(self, index: int, communication: communicate.Communication) -> replica.Result:
        """Leaves the rank's part of the mean over ranks in the gradients."""
        batch, model = self.batch(index), self.training.model
        gathered = communication.gather([parameter.detach() for parameter in self.training.parameters])
        for (_, leaf), shape, flat in zip(model.named_parameters(), self._shapes.values(), gathered, strict=True):
            leaf.data = flat[: math.prod(shape)].reshape(shape)
        logits, statistics = model(batch)
        loss = torch_models.loss_of(logits, batch["labels"])
        replica.backward(loss)
        parts = communication.scatter_mean([self._padded(leaf.grad) for leaf in model.parameters()])
        self._forget(model)
        for parameter, part in zip(self.training.parameters, parts, strict=True):
            parameter.grad = part
        return loss, statistics

    def _forget(self, model: nn.Module) -> None:
        """Lets go of what was gathered, and of its gradients: what lives at a launch is an output of the program."""
        for leaf in model.parameters():
            leaf.grad = None
            leaf.data = self._nothing

    @staticmethod
    def state_of(ranks: Sequence[replica.Replica]) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters put together from the ranks' parts; buffers are whole on every rank."""
        parts = [dict(rank.tensors()) for rank in ranks]
        buffers = [_neutral(dict(rank.training.model.named_buffers()), rank.workload.buffers()) for rank in ranks]
        return _whole(ranks[0].workload, parts), replica.farthest(buffers)

    @staticmethod
    def gradients_of(ranks: Sequence[replica.Replica]) -> spec.Arrays:
        """Put together from the ranks' parts."""
        parts = [{name: tensor.grad for name, tensor in rank.tensors() if tensor.grad is not None} for rank in ranks]
        return {name: array.astype(np.float64) for name, array in _whole(ranks[0].workload, parts).items()}


def _whole(workload: spec.Workload, parts: Sequence[Mapping[str, torch.Tensor]]) -> spec.Arrays:
    tensors = {}
    for tensor in workload.parameters():
        name = arrays.torch_name(tensor.name)
        flat = torch.cat([part[name].detach().cpu() for part in parts])
        shape = layout.to_framework(np.empty(tensor.shape, np.int8), tensor.kind, "torch").shape
        tensors[name] = flat[: math.prod(shape)].reshape(shape)
    return _neutral(tensors, workload.parameters())


def _neutral(tensors: Mapping[str, torch.Tensor], specs: Sequence[spec.TensorSpec]) -> spec.Arrays:
    return {
        s.name: layout.from_framework(tensors[arrays.torch_name(s.name)].detach().cpu().numpy(), s.kind, "torch")
        for s in specs
    }
