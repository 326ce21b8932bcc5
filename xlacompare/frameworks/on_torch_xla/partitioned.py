"""One program over all devices: tensors are marked with their sharding, XLA's partitioner puts the collectives in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_model
from torch_xla.distributed import spmd as xs

from xlacompare.frameworks.on_torch_xla import compiler, replica
from xlacompare.parallel import request
from xlacompare.workloads import spec

_AXIS = "ranks"
Split = Callable[[str, tuple[int, ...], int], "int | None"]


def _whole(name: str, shape: tuple[int, ...], size: int) -> int | None:
    return None


def _first_that_divides(name: str, shape: tuple[int, ...], size: int) -> int | None:
    return next((axis for axis, length in enumerate(shape) if length % size == 0), None)


# strategy -> which axis of a parameter is split; None: it is whole on every rank.
SPLITS: dict[str, Split] = {"dp": _whole, "fsdp": _first_that_divides}
# Strategies whose batch is split.
BY_ROWS = ("dp", "fsdp")


class Partitioned:
    """A training step over the global batch; gradients and optimizer state lie as their parameters do.

    Args:
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Of the whole mesh.
      asked: The step.
    """

    per_rank = False

    def __init__(
        self,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        self._size, self._split = asked.num_ranks, SPLITS[asked.strategy]
        self._mesh = xs.Mesh(np.arange(self._size), (self._size,), (_AXIS,))
        self._replica = replica.Replica(torch_xla.device(), workload, initial, batches, asked.dtype)
        self._loss = torch.zeros(())
        self._place_state()
        for batch in self._replica.batches:
            self._place_batch(batch, asked.strategy in BY_ROWS)
        compiler.fence()

    def _place_state(self) -> None:
        training = self._replica.training
        for name, tensor in training.model.named_parameters():
            axis = self._split(name, tuple(tensor.shape), self._size)
            self._mark(tensor, axis)
            for value in training.optimizer.state[tensor].values():
                self._mark(value, axis if value.shape == tensor.shape else None)
        for tensor in training.model.buffers():
            self._mark(tensor, None)

    def _place_batch(self, batch: Mapping[str, torch.Tensor], by_rows: bool) -> None:
        for tensor in batch.values():
            self._mark(tensor, 0 if by_rows else None)

    def _mark(self, tensor: torch.Tensor, axis: int | None) -> None:
        """Splits one axis among the ranks; what is whole is marked too, else the partitioner chooses how it comes out."""
        xs.mark_sharding(tensor, self._mesh, tuple(_AXIS if i == axis else None for i in range(tensor.dim())))

    def launch(self, index: int) -> None:
        """Traces and launches the one program."""
        self._loss = self._replica.training.step(self._replica.batch(index))
        torch_xla.sync()

    def first(self, index: int) -> None:
        """One thread, one program: nothing to put in order."""
        self.launch(index)

    def wait(self) -> None:
        """Waits for the devices."""
        xla_model.wait_device_ops()

    def losses(self) -> list[float]:
        """The mean over the global batch, as the program has it."""
        return [self._loss.item()]

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, gathered by the runtime."""
        return self._replica.export()

    def gradients(self) -> spec.Arrays:
        """Of batch 0 at the initial state."""
        self.wait()
        saved = self._replica.save()
        self.reset()
        training = self._replica.training
        training.forward(self._replica.batch(0))[0].backward()
        compiler.fence()
        found = self._replica.export_gradients()
        training.drop_gradients()
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
        self._loss = self._replica.training.step(self._replica.batch(0))
        read([self._loss, *(tensor for _, tensor in self._replica.named())])
        compiler.fence()
        self.reset()

    def names(self) -> dict[int, tuple[str, str]]:
        """Tensor of torch_xla -> name and role of what a step reads."""
        return self._replica.names()

    def free(self) -> None:
        """Drops what lies on the devices."""
        self._replica.free()
        self._loss = torch.zeros(())
