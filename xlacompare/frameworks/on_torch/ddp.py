"""Data parallel: torch's DistributedDataParallel as users write it, or one flat all-reduce after the backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel as nn_parallel

from xlacompare.frameworks.on_torch import compiler, global_batch_norm, models, plans
from xlacompare.workloads import spec

SHIPPED_BUCKET_MB = 25


class LossModule(nn.Module):
    """The model and its loss under one forward, so that DDP's hooks lie round both; the loss may be compiled."""

    def __init__(self, model: nn.Module, loss_function: compiler.Forward) -> None:
        super().__init__()
        self.model = model
        self._loss_function = loss_function

    def forward(self, batch: models.Batch) -> plans.Result:
        return self._loss_function(batch)


class DataParallel(plans.Plan):
    """A whole model on every rank; see `plans.Plan`."""

    def __init__(self, workload: spec.Workload, dtype: str, group: dist.ProcessGroup, compiled: dict | None) -> None:
        """Args:
        workload: What to do.
        dtype: Of the workload.
        group: Of the communication arm.
        compiled: Options of torch.compile; None: eager.
        """
        super().__init__(workload, models.make(workload, dtype, batch_norm=global_batch_norm.over(group)), group)
        self._module: nn.Module = LossModule(self.model, plans.loss_function(self.model, compiled))
        self._flat = False

    def wrap(self, device: torch.device, settings: dict[str, Any]) -> None:
        """DDP, or nothing."""
        self._flat = bool(settings["flat"])
        if self._flat:
            return
        bucket_mb = settings["bucket_mb"]
        self._module = nn_parallel.DistributedDataParallel(
            self._module,
            process_group=self.group,
            # None is torch's own way to 25 MiB: then the first bucket, the last layers' gradients, has 1 MiB.
            bucket_cap_mb=None if bucket_mb == SHIPPED_BUCKET_MB else bucket_mb,
            # Statistics are those of the global batch and equal on all ranks.
            broadcast_buffers=False,
            gradient_as_bucket_view=bool(settings["gradient_as_bucket_view"]),
        )

    def backward(self, batch: models.Batch) -> plans.Result:
        """See `plans.Plan`."""
        loss, statistics = self._module(batch)
        loss.backward()
        if self._flat:
            self._reduce_flat()
        return loss.detach(), statistics

    def _reduce_flat(self) -> None:
        """The division stands before the sum, as in DDP."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(self.group.size())
        dist.all_reduce(flat, group=self.group)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
