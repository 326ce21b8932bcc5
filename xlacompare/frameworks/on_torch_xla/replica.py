"""A copy of the training state on one device, with the batches of whoever works on it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch_xla
from torch import nn

from xlacompare.frameworks.on_torch import arrays
from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch_xla import compiler, models, optimizers
from xlacompare.workloads import spec

Saved = tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]
Result = tuple[torch.Tensor, torch_models.Statistics]  # loss, batch statistics


class Replica:
    """Model, optimizer and batches; what is uploaded is on the device after the next launch.

    Args:
      device: Of torch.
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Those of this rank, neutral.
      dtype: Of the workload.
      rank: Whose; what is whole on every rank does not depend on it.
      num_ranks: Among how many.
    """

    def __init__(
        self,
        device: torch.device | str,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        dtype: str,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        model = models.make(workload, dtype)
        arrays.load(model, workload, *initial)
        self.workload = workload
        parameters = self._place(model, device)
        self.training = compiler.Training(
            model, parameters, optimizers.make(workload.optimizer, parameters), workload.optimizer
        )
        self.batches: list[Mapping[str, torch.Tensor]] = [
            {name: tensor.to(device) for name, tensor in arrays.batch_to_torch(batch, dtype).items()}
            for batch in batches
        ]

    def _place(self, model: nn.Module, device: torch.device | str) -> list[nn.Parameter]:
        """Uploads what the rank has of the model, and keeps it on the host for `reset`."""
        self._initial = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
        model.to(device)
        return list(model.parameters())

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

    def named(self) -> list[tuple[tuple[str, str], torch.Tensor]]:
        """Parameters, buffers and optimizer state with name and role."""
        parameters = {id(parameter) for parameter in self.training.parameters}
        found = [
            ((name, "parameter" if id(tensor) in parameters else "buffer"), tensor) for name, tensor in self.tensors()
        ]
        for ((name, _), _), state in zip(found, self.optimizer_state(), strict=False):  # parameters come first
            found += [((f"{key} of {name}", "optimizer"), tensor) for key, tensor in state.items()]
        return found

    def names(self) -> dict[int, tuple[str, str]]:
        """Id of a tensor in torch_xla -> name and role; of the state and of batch 0."""
        batch = [((name, "batch"), tensor) for name, tensor in self.batches[0].items()]
        return {int(torch_xla._XLAC._xla_get_tensor_id(t)): meaning for meaning, t in [*self.named(), *batch]}

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
