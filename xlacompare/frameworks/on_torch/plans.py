"""What a strategy makes of one rank: its part of the model and of the batch, and the reduction of gradients."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from xlacompare.frameworks.on_torch import arrays, compiler, models, optimizers
from xlacompare.parallel import shards
from xlacompare.workloads import spec

Result = tuple[torch.Tensor, models.Statistics]


class Plan(abc.ABC):
    """One rank. Here: a whole model, and rows of the batch.

    Attributes:
      splits_batch: Whether the examples must divide among the ranks.
      model: This rank's.
      group: Of the communication arm.
    """

    splits_batch = True

    def __init__(self, workload: spec.Workload, model: nn.Module, group: dist.ProcessGroup) -> None:
        """Args:
        workload: What to do.
        model: On the CPU, its tensors empty.
        group: Of the communication arm.
        """
        self.workload, self.model, self.group = workload, model, group

    def place(self, device: torch.device, initial: tuple[spec.Arrays, spec.Arrays], settings: dict[str, Any]) -> None:
        """Puts this rank's part on the device and makes the optimizer.

        Args:
          device: Where.
          initial: Parameters and buffers, whole.
          settings: Those of the strategy, all of them.
        """
        self.load(*initial)
        self.model.to(device)
        self.wrap(device, settings)
        self.updater = optimizers.make(self.workload.optimizer, self.model.parameters())

    @abc.abstractmethod
    def wrap(self, device: torch.device, settings: dict[str, Any]) -> None:
        """Puts the library's own parallelism round the model."""

    @abc.abstractmethod
    def backward(self, batch: models.Batch) -> Result:
        """Leaves the gradients of the global batch where the optimizer reads them; loss of this rank, statistics."""

    def shard(self, batch: spec.Arrays) -> spec.Arrays:
        """This rank's part of a batch."""
        return shards.rows(batch, self.group.rank(), self.group.size())

    def train(self, batch: models.Batch) -> torch.Tensor:
        """One step; the loss of this rank."""
        loss, statistics = self.backward(batch)
        self.updater.step()
        self.updater.zero_grad(set_to_none=True)
        models.update_statistics(self.model, statistics)
        return loss

    def load(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        """Puts a whole state in; the optimizer's is left."""
        arrays.load(self.model, self.workload, parameters, buffers)

    def clear(self) -> None:
        """Empties the optimizer's state."""
        self.updater.state.clear()

    def export(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole."""
        buffers = arrays.export_tensors(dict(self.model.named_buffers()), self.workload.buffers())
        return self._export(dict(self.model.named_parameters())), buffers

    def take_gradients(self) -> spec.Arrays:
        """The gradients, whole, float64; then there are none."""
        own = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        whole = {name: array.astype(np.float64) for name, array in self._export(own).items()}
        self.model.zero_grad(set_to_none=True)
        return whole

    def whole(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape of parameter `name`, as all ranks together have it; past the arm."""
        return own

    def _export(self, own: dict[str, torch.Tensor]) -> spec.Arrays:
        whole = {name: self.whole(name, tensor.detach()) for name, tensor in own.items()}
        return arrays.export_tensors(whole, self.workload.parameters())


def loss_function(model: nn.Module, compiled: dict[str, Any] | None) -> compiler.Forward:
    """Mean loss and statistics of a batch, under torch.compile with these options unless they are None."""
    made = compiler.loss_function(model)
    return made if compiled is None else compiler.inductor(made, compiled)
