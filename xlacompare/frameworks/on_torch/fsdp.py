"""Fully sharded data parallel: torch's FSDP2 (`fully_shard`) over every block and over what is left."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh, tensor
from torch.distributed import fsdp as torch_fsdp

from xlacompare.frameworks.on_torch import arrays, global_batch_norm, models, parts, plans
from xlacompare.workloads import spec


class FullySharded(plans.Plan):
    """Of each parameter its rows (first axis); see `plans.Plan`."""

    def __init__(self, workload: spec.Workload, dtype: str, group: dist.ProcessGroup, compiled: dict | None) -> None:
        """Args:
        workload: What to do.
        dtype: Of the workload.
        group: Of the communication arm.
        compiled: None; FSDP2 is run eagerly.
        """
        super().__init__(workload, models.make(workload, dtype, batch_norm=global_batch_norm.over(group)), group)
        # FSDP2's hooks hand every unit copies of the dicts among its arguments, so that what a block of a convnet
        # writes into the model's dict is lost (2.9.1); each batch norm is asked instead.
        self._statistics: models.Statistics = {}
        for module in self.model.modules():
            if isinstance(module, models.BatchNorm):
                module.register_forward_hook(self._keep)

    def wrap(self, device: torch.device, settings: dict[str, Any]) -> None:
        """Cuts the parameters of blocks, then what is left."""
        mesh = device_mesh.DeviceMesh.from_group(self.group, device.type)
        for unit in (*units(self.model), self.model):
            torch_fsdp.fully_shard(unit, mesh=mesh, reshard_after_forward=bool(settings["reshard_after_forward"]))

    def backward(self, batch: models.Batch) -> plans.Result:
        """See `plans.Plan`."""
        logits, _ = self.model(batch)
        loss = models.loss_of(logits, batch["labels"])
        loss.backward()
        return loss.detach(), self._statistics

    def _keep(self, module: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        """Takes a batch norm's statistics: it has just written them into the last argument."""
        _, name, statistics = arguments
        self._statistics[name] = statistics[name]

    def load(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        """Cuts whole arrays; nothing is sent."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for name, whole in arrays.named_tensors(self.workload, parameters, buffers):
                target = own[name]
                if isinstance(target, tensor.DTensor):
                    target.to_local().copy_(parts.cut(whole, self.group.rank(), self.group.size()))
                else:
                    target.copy_(whole)

    def whole(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """See `plans.Plan`."""
        return parts.gather(own.to_local(), own.shape[0]) if isinstance(own, tensor.DTensor) else own


def units(model: nn.Module) -> list[nn.Module]:
    """What is gathered in one call, besides the rest of the model: blocks; of an mlp its layers but the last."""
    blocks = [module for module in model.modules() if isinstance(module, models.Block | models.ResidualBlock)]
    return blocks or [module for name, module in model.named_children() if name != "head"]
