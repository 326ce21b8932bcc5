"""The training state on the device that SPMD shows, with its batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from xlacompare.frameworks.on_torch import arrays
from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch_xla import compiler, models, optimizers
from xlacompare.workloads import spec

Saved = tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]


class Replica:
    """Model, optimizer and batches; what is uploaded is on the device after the next launch.

    Args:
      device: Of torch.
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Neutral.
      dtype: Of the workload.
    """

    def __init__(
        self,
        device: torch.device | str,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        dtype: str,
    ) -> None:
        model = models.make(workload, dtype)
        arrays.load(model, workload, *initial)
        self.workload = workload
        self._initial = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
        model.to(device)
        parameters = list(model.parameters())
        self.training = compiler.Training(
            model, parameters, optimizers.make(workload.optimizer, parameters), workload.optimizer
        )
        self.batches: list[Mapping[str, torch.Tensor]] = [
            {name: tensor.to(device) for name, tensor in arrays.batch_to_torch(batch, dtype).items()}
            for batch in batches
        ]

    def batch(self, index: int) -> torch_models.Batch:
        """Batch of a step."""
        return self.batches[index % len(self.batches)]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters and buffers by name."""
        return [*self.training.model.named_parameters(), *self.training.model.named_buffers()]

    def optimizer_state(self) -> list[dict[str, torch.Tensor]]:
        """State of each parameter, in the order of the parameters."""
        return [self.training.optimizer.state[parameter] for parameter in self.training.parameters]

    def reset(self) -> None:
        """Uploads the initial state into the same tensors (a copy on the device would be a program of its own)."""
        with torch.no_grad():
            for (_, tensor), initial in zip(self.tensors(), self._initial, strict=True):
                tensor.copy_(initial)
            optimizers.zero_state(self.training.optimizer)

    def save(self) -> Saved:
        """The state on the host."""
        tensors = [tensor.detach().cpu().clone() for _, tensor in self.tensors()]
        return tensors, [{key: value.cpu().clone() for key, value in state.items()} for state in self.optimizer_state()]

    def restore(self, saved: Saved) -> None:
        """Uploads what `save` gave."""
        tensors, optimizer = saved
        with torch.no_grad():
            for (_, tensor), value in zip(self.tensors(), tensors, strict=True):
                tensor.copy_(value)
            for state, values in zip(self.optimizer_state(), optimizer, strict=True):
                for key, value in values.items():
                    state[key].copy_(value)

    def export(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, neutral (waits)."""
        return arrays.export(self.training.model, self.workload)

    def export_gradients(self) -> spec.Arrays:
        """What stands in the parameters' gradients, float64, neutral (waits)."""
        return arrays.export_gradients(self.training.model, self.workload)

    def values(self) -> list[torch.Tensor]:
        """Parameters, buffers and optimizer state."""
        state = [value for values in self.optimizer_state() for value in values.values()]
        return [*(tensor for _, tensor in self.tensors()), *state]

    def free(self) -> None:
        """Drops what lies on the device."""
        self.training.optimizer.state.clear()
        self.batches = []
        del self.training


def backward(loss: torch.Tensor) -> None:
    """The backward pass on the calling thread.

    Autograd's own thread of the device may hold a gradient for a moment after the pass, and whatever lives at a
    torch_xla.sync() is an output of the program: on busy cores some step would be another program (torch 2.9.1).
    """
    with torch.autograd.set_multithreading_enabled(False):
        loss.backward()
