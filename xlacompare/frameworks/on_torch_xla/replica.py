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

Saved = tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]


class Replica:
    """Model, optimizer and batches; what is uploaded is on the device after the next launch.

    Args:
      device: Of torch.
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Those of this rank, neutral.
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
        self._initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self._workload = workload
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

    def optimizer_state(self) -> list[dict[str, torch.Tensor]]:
        """State of each parameter, in the order of the parameters."""
        return [self.training.optimizer.state[parameter] for parameter in self.training.parameters]

    def reset(self) -> None:
        """Uploads the initial state into the same tensors (a copy on the device would be a program of its own)."""
        with torch.no_grad():
            for name, tensor in self.training.model.state_dict().items():
                tensor.copy_(self._initial[name])
            optimizers.zero_state(self.training.optimizer)

    def save(self) -> Saved:
        """The state on the host."""
        model = {name: tensor.cpu().clone() for name, tensor in self.training.model.state_dict().items()}
        return model, [{key: value.cpu().clone() for key, value in state.items()} for state in self.optimizer_state()]

    def restore(self, saved: Saved) -> None:
        """Uploads what `save` gave."""
        model, optimizer = saved
        with torch.no_grad():
            for name, tensor in self.training.model.state_dict().items():
                tensor.copy_(model[name])
            for state, values in zip(self.optimizer_state(), optimizer, strict=True):
                for key, value in values.items():
                    state[key].copy_(value)

    def export(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, neutral (waits)."""
        return arrays.export(self.training.model, self._workload)

    def export_gradients(self) -> spec.Arrays:
        """What stands in the parameters' gradients, float64, neutral (waits)."""
        return arrays.export_gradients(self.training.model, self._workload)

    def named(self) -> list[tuple[tuple[str, str], torch.Tensor]]:
        """Parameters, buffers and optimizer state with name and role."""
        model: nn.Module = self.training.model
        found: list[tuple[tuple[str, str], torch.Tensor]] = []
        found += [((name, "parameter"), tensor) for name, tensor in model.named_parameters()]
        found += [((name, "buffer"), tensor) for name, tensor in model.named_buffers()]
        for (name, _), state in zip(model.named_parameters(), self.optimizer_state(), strict=True):
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
