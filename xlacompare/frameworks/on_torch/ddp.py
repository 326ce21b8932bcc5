"""Data parallel: torch's DistributedDataParallel as users write it, or one flat all-reduce after the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel as nn_parallel

from xlacompare.frameworks.on_torch import arrays, compiler, global_batch_norm, models, optimizers
from xlacompare.parallel import shards
from xlacompare.workloads import spec

SHIPPED_BUCKET_MB = 25

Result = tuple[torch.Tensor, models.Statistics]


class LossModule(nn.Module):
    """The model and its loss under one forward, so that DDP's hooks lie round both; the loss may be compiled."""

    def __init__(self, model: nn.Module, loss_function: Callable[[models.Batch], Result]) -> None:
        super().__init__()
        self.model = model
        self._loss_function = loss_function

    def forward(self, batch: models.Batch) -> Result:
        return self._loss_function(batch)


class DataParallel:
    """One rank's model, whole; see `parallel.Plan`."""

    def __init__(self, workload: spec.Workload, dtype: str, group: dist.ProcessGroup, compiled: dict | None) -> None:
        """Args:
        workload: What to do.
        dtype: Of the workload.
        group: Of the communication arm.
        compiled: Options of torch.compile; None: eager.
        """
        self.model = models.make(workload, dtype, batch_norm=global_batch_norm.over(group))
        self._workload, self._group = workload, group
        loss_function = compiler.loss_function(self.model)
        if compiled is not None:
            loss_function = compiler.inductor(loss_function, compiled)
        self._module: nn.Module = LossModule(self.model, loss_function)
        self._updater = optimizers.make(workload.optimizer, self.model.parameters())

    def place(self, device: torch.device, initial: tuple[spec.Arrays, spec.Arrays], settings: dict[str, Any]) -> None:
        """Puts the model on the device and wraps it.

        Args:
          device: Where.
          initial: Parameters and buffers.
          settings: Those of the strategy, all of them.
        """
        arrays.load(self.model, self._workload, *initial)
        self.model.to(device)
        self._flat = bool(settings["flat"])
        if self._flat:
            return
        bucket_mb = settings["bucket_mb"]
        self._module = nn_parallel.DistributedDataParallel(
            self._module,
            process_group=self._group,
            # None is torch's own way to 25 MiB: then the first bucket, the last layers' gradients, has 1 MiB.
            bucket_cap_mb=None if bucket_mb == SHIPPED_BUCKET_MB else bucket_mb,
            # Statistics are those of the global batch and equal on all ranks.
            broadcast_buffers=False,
            gradient_as_bucket_view=bool(settings["gradient_as_bucket_view"]),
        )

    def shard(self, batch: spec.Arrays) -> spec.Arrays:
        """This rank's rows."""
        return shards.rows(batch, self._group.rank(), self._group.size())

    def backward(self, batch: models.Batch) -> Result:
        """Leaves the mean gradients in `.grad`."""
        loss, statistics = self._module(batch)
        loss.backward()
        if self._flat:
            self._reduce_flat()
        return loss.detach(), statistics

    def train(self, batch: models.Batch) -> torch.Tensor:
        """One step; the loss of this rank's rows."""
        loss, statistics = self.backward(batch)
        self._updater.step()
        self._updater.zero_grad(set_to_none=True)
        models.update_statistics(self.model, statistics)
        return loss

    def _reduce_flat(self) -> None:
        """The division stands before the sum, as in DDP."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.view(-1) for gradient in gradients]).div_(self._group.size())
        dist.all_reduce(flat, group=self._group)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def load(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        """Puts a state in; the optimizer's is left."""
        arrays.load(self.model, self._workload, parameters, buffers)

    def clear(self) -> None:
        """Empties the optimizer's state."""
        self._updater.state.clear()

    def export(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole."""
        return arrays.export(self.model, self._workload)

    def take_gradients(self) -> spec.Arrays:
        """Those in `.grad`, whole, float64; then there are none."""
        found = arrays.export_gradients(self.model, self._workload)
        self.model.zero_grad(set_to_none=True)
        return found
