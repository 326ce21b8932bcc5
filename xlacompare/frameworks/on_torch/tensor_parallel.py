"""Tensor parallel in the way of Megatron-LM (Shoeybi et al. 2019), by calls of torch.distributed in the model.

torch's own `parallelize_module` has styles for nn.Linear and nn.Embedding alone, and our layers, which cast at use, are
neither.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from xlacompare.core import errors
from xlacompare.frameworks.on_torch import arrays, models, parts, plans
from xlacompare.workloads import spec


class _Enter(torch.autograd.Function):
    """The identity; on the way back the sum over the ranks, each of which has the gradient through its columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Leave(torch.autograd.Function):
    """The sum over the ranks; on the way back the identity: every rank has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def _sum(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class Columns(models.Dense):
    """A dense layer of which this rank has some outputs; x is whole.

    Attributes:
      matrices: That lie side by side and are cut each for itself.
    """

    def __init__(self, fan_in: int, fan_out: int, group: dist.ProcessGroup, matrices: int = 1) -> None:
        super().__init__(fan_in, fan_out // group.size())
        self.matrices, self._group = matrices, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_Enter.apply(x, self._group))

    def cut(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the layer's weight or bias."""
        matrices = whole.unflatten(0, (self.matrices, -1))
        return parts.cut(matrices, self._group.rank(), self._group.size(), 1).flatten(0, 1)

    def gather(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """The whole of a weight or bias, past the arm."""
        matrices = own.unflatten(0, (self.matrices, -1))
        return parts.gather(matrices, matrices.shape[1] * self._group.size(), 1).flatten(0, 1)


class Rows(models.Dense):
    """A dense layer of which this rank has some inputs; the outputs are summed, then the bias is added once."""

    def __init__(self, fan_in: int, fan_out: int, group: dist.ProcessGroup) -> None:
        super().__init__(fan_in // group.size(), fan_out)
        self._group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        partial = functional.linear(x, self.weight.to(x.dtype))
        return _Leave.apply(partial, self._group) + self.bias.to(x.dtype)

    def cut(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the weight; the whole bias."""
        return whole if name == "bias" else parts.cut(whole, self._group.rank(), self._group.size(), 1)

    def gather(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """The whole of a weight or bias, past the arm."""
        return own if name == "bias" else parts.gather(own, own.shape[1] * self._group.size(), 1)


class TensorParallel(plans.Plan):
    """Columns, then rows of every half block. The batch and all else are whole on every rank, and so the gradients of
    what is whole come out equal on all ranks without communication; see `plans.Plan`.
    """

    splits_batch = False

    def __init__(self, workload: spec.Workload, dtype: str, group: dist.ProcessGroup, compiled: dict | None) -> None:
        """Args:
        workload: mlp or transformer.
        dtype: Of the workload.
        group: Of the communication arm.
        compiled: None; run eagerly.

        Raises:
          BadInputError: Heads, or a layer's width, do not divide among the ranks.
        """
        _check(workload, group.size())
        super().__init__(workload, models.make(workload, dtype), group)
        {"mlp": _split_mlp, "transformer": _split_transformer}[workload.name](self.model, group)
        self.model.to(models.PARAMETER_DTYPES[dtype])

    def wrap(self, device: torch.device, settings: dict[str, Any]) -> None:
        """Nothing: the layers communicate."""

    def shard(self, batch: spec.Arrays) -> spec.Arrays:
        """The whole batch; of the masks of attention [batch, heads, ...] those of this rank's heads."""
        rank, size = self.group.rank(), self.group.size()

        def part(name: str) -> bool:
            return name.startswith("mask.") and name.endswith(".attention")

        return {
            name: array.reshape(array.shape[0], size, -1, *array.shape[2:])[:, rank] if part(name) else array
            for name, array in batch.items()
        }

    def backward(self, batch: models.Batch) -> plans.Result:
        """See `plans.Plan`."""
        logits, statistics = self.model(batch)
        loss = models.loss_of(logits, batch["labels"])
        loss.backward()
        return loss.detach(), statistics

    def load(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        """Cuts whole arrays; nothing is sent."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, whole in arrays.named_tensors(self.workload, parameters, buffers):
                layer, last = self._layer(name)
                own[name].copy_(whole if layer is None else layer.cut(last, whole))

    def whole(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """See `plans.Plan`."""
        layer, last = self._layer(name)
        return own if layer is None else layer.gather(last, own)

    def _layer(self, name: str) -> tuple[Columns | Rows | None, str]:
        path, _, last = name.rpartition(".")
        module = self.model.get_submodule(path)
        return (module if isinstance(module, Columns | Rows) else None), last


def _check(workload: spec.Workload, size: int) -> None:
    config: Any = workload.config
    if workload.name == "transformer":
        cut = {"heads": config.heads, "mlp_width": config.mlp_width}
    else:
        cut = {f"layer{i}": width for i, width in enumerate(config.hidden) if i % 2 == 0}
    for name, number in cut.items():
        if number % size:
            raise errors.BadInputError(
                f"tp cuts {workload.name}'s {name}: {number} do not divide among {size} ranks; choose a number of "
                f"ranks that divides {number}"
            )


def _split_mlp(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Layers in pairs; one that is left over is whole."""
    names = [name for name, _ in model.named_children()]
    for first, second in zip(names[::2], names[1::2]):
        _split_pair(model, first, second, group)


def _split_transformer(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Attention by heads, the other half of a block by columns and rows."""
    for block in (module for module in model.modules() if isinstance(module, models.Block)):
        _split_pair(block.attention, "qkv", "out", group, matrices=3)
        block.attention.heads //= group.size()
        _split_pair(block.mlp, "up", "down", group)


def _split_pair(parent: nn.Module, first: str, second: str, group: dist.ProcessGroup, matrices: int = 1) -> None:
    shapes = [getattr(parent, name).weight.shape for name in (first, second)]
    setattr(parent, first, Columns(shapes[0][1], shapes[0][0], group, matrices))
    setattr(parent, second, Rows(shapes[1][1], shapes[1][0], group))
