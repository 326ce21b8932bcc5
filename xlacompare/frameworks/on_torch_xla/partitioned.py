"""One program over all devices: tensors are marked with their sharding, XLA's partitioner puts the collectives in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_model
from torch_xla.distributed import spmd as xs

from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch_xla import compiler, placement, replica
from xlacompare.parallel import request
from xlacompare.workloads import spec

_AXIS = "ranks"


@dataclasses.dataclass(frozen=True)
class _Training(compiler.Training):
    """A step whose activations, and their gradients, are marked too."""

    tap: torch_models.Tap

    def forward(self, batch: torch_models.Batch) -> tuple[torch.Tensor, torch_models.Statistics]:
        logits, statistics = self.model(batch, self.tap)
        return torch_models.loss_of(logits, batch["labels"]), statistics

    def step(self, batch: torch_models.Batch) -> torch.Tensor:
        """With the backward pass on the calling thread, see `replica.backward`."""
        with torch.autograd.set_multithreading_enabled(False):
            return super().step(batch)


class Partitioned:
    """A training step over the global batch; gradients and optimizer state lie as their parameters do.

    Args:
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Of the whole mesh.
      asked: The step.
    """

    def __init__(
        self,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        size = asked.num_ranks
        self._placement = placement.PLACEMENTS[asked.strategy](workload, size)
        self._mesh = xs.Mesh(np.arange(size), (size,), (_AXIS,))
        parameters, buffers = initial
        laid_out = self._placement.laid_out(parameters), buffers
        self._replica = replica.Replica(torch_xla.device(), workload, laid_out, batches, asked.dtype)
        made = self._replica.training
        self._placement.prepare(made.model)
        self._training = _Training(made.model, made.parameters, made.optimizer, made.spec, self._tap)
        self._loss = torch.zeros(())
        self._place()
        compiler.fence()

    def _place(self) -> None:
        """What is whole is marked too, else the partitioner chooses how it comes out."""
        training = self._training
        for name, tensor in training.model.named_parameters():
            axis = self._placement.parameter(name, tensor.shape)
            self._mark(tensor, axis)
            for value in training.optimizer.state[tensor].values():
                self._mark(value, axis if value.shape == tensor.shape else None)
        for tensor in training.model.buffers():
            self._mark(tensor, None)
        for batch in self._replica.batches:
            for name, tensor in batch.items():
                self._mark(tensor, self._placement.batch(name))

    def _tap(self, name: str, value: torch.Tensor) -> torch.Tensor:
        axis = self._placement.activation(name)
        split = None if axis is None else axis % value.dim()
        return xs.mark_sharding_with_gradients(value, self._mesh, _spec(value, split))

    def _mark(self, tensor: torch.Tensor, axis: int | None) -> None:
        xs.mark_sharding(tensor, self._mesh, _spec(tensor, axis))

    def launch(self, index: int) -> None:
        """Traces and launches the one program."""
        self._loss = self._training.step(self._replica.batch(index))
        torch_xla.sync()

    def wait(self) -> None:
        """Waits for the devices."""
        xla_model.wait_device_ops()

    def loss(self) -> float:
        """The mean over the global batch, as the program has it."""
        return float(self._loss.item())

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, gathered by the runtime."""
        parameters, buffers = self._replica.export()
        return self._placement.neutral(parameters), buffers

    def gradients(self) -> spec.Arrays:
        """Of batch 0 at the initial state."""
        self.wait()
        saved = self._replica.save()
        self.reset()
        replica.backward(self._training.forward(self._replica.batch(0))[0])
        compiler.fence()
        found = self._placement.neutral(self._replica.export_gradients())
        self._training.drop_gradients()
        self._replica.restore(saved)
        compiler.fence()
        return found

    def reset(self) -> None:
        """Uploads the initial state."""
        self._replica.reset()
        compiler.fence()

    def traced(self, read: Callable[[list[torch.Tensor]], None]) -> None:
        """Runs one step from the initial state, and gives its results to `read` before it is launched."""
        self.reset()
        self._loss = self._training.step(self._replica.batch(0))
        read([self._loss, *self._replica.values()])
        compiler.fence()
        self.reset()

    def free(self) -> None:
        """Drops what lies on the devices."""
        self._replica.free()
        del self._training
        self._loss = torch.zeros(())


def _spec(tensor: torch.Tensor, axis: int | None) -> tuple[str | None, ...]:
    return tuple(_AXIS if i == axis else None for i in range(tensor.dim()))
