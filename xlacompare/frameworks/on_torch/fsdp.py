"""Fully sharded data parallel: torch's FSDP2 (`fully_shard`) over every block and over what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh, tensor
from torch.distributed import fsdp as torch_fsdp

from xlacompare.frameworks.on_torch import arrays, global_batch_norm, models, optimizers, parts
from xlacompare.parallel import shards
from xlacompare.workloads import layout, spec


class FullySharded:
    """One rank's parts of the model: of each parameter its rows; see `parallel.Plan`."""

    def __init__(self, workload: spec.Workload, dtype: str, group: dist.ProcessGroup, compiled: dict | None) -> None:
        """Args:
        workload: What to do.
        dtype: Of the workload.
        group: Of the communication arm.
        compiled: None; FSDP2 is run eagerly.
        """
        self.model = models.make(workload, dtype, batch_norm=global_batch_norm.over(group))
        self._workload, self._group = workload, group

    def place(self, device: torch.device, initial: tuple[spec.Arrays, spec.Arrays], settings: dict[str, Any]) -> None:
        """Puts this rank's parts on the device.

        Args:
          device: Where.
          initial: Parameters and buffers, whole.
          settings: Those of the strategy, all of them.
        """
        arrays.load(self.model, self._workload, *initial)
        self.model.to(device)
        mesh = device_mesh.DeviceMesh.from_group(self._group, device.type)
        for unit in (*units(self.model), self.model):
            torch_fsdp.fully_shard(unit, mesh=mesh, reshard_after_forward=bool(settings["reshard_after_forward"]))
        self._updater = optimizers.make(self._workload.optimizer, self.model.parameters())

    def shard(self, batch: spec.Arrays) -> spec.Arrays:
        """This rank's rows."""
        return shards.rows(batch, self._group.rank(), self._group.size())

    def backward(self, batch: models.Batch) -> tuple[torch.Tensor, models.Statistics]:
        """Leaves this rank's parts of the mean gradients in `.grad`."""
        logits, statistics = self.model(batch)
        loss = models.loss_of(logits, batch["labels"])
        loss.backward()
        return loss.detach(), statistics

    def train(self, batch: models.Batch) -> torch.Tensor:
        """One step; the loss of this rank's rows."""
        loss, statistics = self.backward(batch)
        self._updater.step()
        self._updater.zero_grad(set_to_none=True)
        models.update_statistics(self.model, statistics)
        return loss

    def load(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        """Cuts whole arrays; nothing is sent."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for tensor_spec, given in arrays.declared(self._workload, parameters, buffers):
                target = own[arrays.torch_name(tensor_spec.name)]
                whole = torch.from_numpy(layout.to_framework(given[tensor_spec.name], tensor_spec.kind, "torch"))
                if isinstance(target, tensor.DTensor):
                    part = parts.cut(whole, self._group.rank(), self._group.size())
                    target.to_local().copy_(part)
                else:
                    target.copy_(whole)

    def clear(self) -> None:
        """Empties the optimizer's state."""
        self._updater.state.clear()

    def export(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole: gathered over all ranks, past the arm."""
        own = self._gathered(dict(self.model.named_parameters())) | dict(self.model.named_buffers())
        return (
            arrays.export_tensors(own, self._workload.parameters()),
            arrays.export_tensors(own, self._workload.buffers()),
        )

    def take_gradients(self) -> spec.Arrays:
        """Those in `.grad`, gathered past the arm, float64; then there are none."""
        found = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        whole = arrays.export_tensors(self._gathered(found), self._workload.parameters())
        self.model.zero_grad(set_to_none=True)
        return {name: array.astype("float64") for name, array in whole.items()}

    def _gathered(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        whole = {}
        for name, value in own.items():
            assert isinstance(value, tensor.DTensor)
            whole[name] = parts.gather(value.to_local().detach(), value.shape[0])
        return whole


def units(model: nn.Module) -> list[nn.Module]:
    """What is gathered in one call, besides the rest of the model: blocks; of an mlp its layers but the last."""
    blocks = [module for module in model.modules() if isinstance(module, models.Block | models.ResidualBlock)]
    if blocks:
        return blocks
    return [module for name, module in model.named_children() if name != "head"]
