"""One builder per compiler arm: each makes a function that launches one whole training step and returns its loss.

Nothing but the training state and the loss may be alive when a lazy graph is launched: every live tensor becomes an
output of the program. Hence the small functions, and gradients that are dropped before the launch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

import torch
import torch_xla
from torch import nn
from torch_xla.core import xla_model

from xlacompare.core import errors
from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch import optimizers as torch_optimizers
from xlacompare.frameworks.on_torch_xla import arms, counters, models, optimizers
from xlacompare.workloads import spec

Launch = Callable[[torch_models.Batch], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Training:
    """What a step works on; everything lies on the device.

    Attributes:
      model: Its parameters and buffers are updated in place.
      parameters: The model's parameters.
      optimizer: With all its state made.
      spec: What the optimizer was made from.
    """

    model: nn.Module
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    spec: spec.OptimizerSpec

    def forward(self, batch: torch_models.Batch) -> tuple[torch.Tensor, torch_models.Statistics]:
        """Mean loss and batch statistics."""
        logits, statistics = self.model(batch)
        return torch_models.loss_of(logits, batch["labels"]), statistics

    def update(self, statistics: torch_models.Statistics) -> None:
        """Optimizer and running statistics, from the gradients that the backward pass left."""
        self.optimizer.step()
        torch_models.update_statistics(self.model, statistics)

    def step(self, batch: torch_models.Batch) -> torch.Tensor:
        """One training step as any torch user writes it; traced, or executed, according to the mode."""
        loss, statistics = self.forward(batch)
        loss.backward()
        self.update(statistics)
        self.drop_gradients()
        return loss.detach()

    def drop_gradients(self) -> None:
        """As `zero_grad(set_to_none=True)`, without its bookkeeping."""
        for parameter in self.parameters:
            parameter.grad = None


def eager(training: Training) -> Launch:
    """Operation by operation; the mode is on only inside the step, other arms may share the process."""

    def launch(batch: torch_models.Batch) -> torch.Tensor:
        counters.set_eager(True)
        try:
            return training.step(batch)
        finally:
            counters.set_eager(False)

    return launch


def lazy(training: Training) -> Launch:
    """Traces the step and launches it as one program."""

    def launch(batch: torch_models.Batch) -> torch.Tensor:
        loss = training.step(batch)
        torch_xla.sync()
        return loss

    return launch


def openxla(training: Training) -> Launch:
    """Dynamo captures forward and backward (through AOTAutograd) and the update; no tracing after the first steps.

    The gradient of the loss is given: made by `backward` itself it is a lazy tensor, for which the backend launches a
    fourth program and waits in the middle of every step (counter `DynamoSyncInputExecuteTime`; 0.7 of 11 ms, torch_xla
    2.9.0). The update is torch.optim's functional form on the same state, since `Optimizer.step` breaks the graph.
    """
    models.widen_causal_masks(training.model)
    forward = torch.compile(training.forward, backend="openxla", fullgraph=True, dynamic=False)
    update = torch.compile(_functional_update(training), backend="openxla", fullgraph=True, dynamic=False)
    parameter = training.parameters[0]
    seed = torch.ones((), dtype=parameter.dtype).to(parameter.device)

    def launch(batch: torch_models.Batch) -> torch.Tensor:
        loss, statistics = forward(batch)
        loss.backward(seed)
        update([parameter.grad for parameter in training.parameters], statistics)
        training.drop_gradients()
        return loss.detach()

    return launch


def _functional_update(training: Training) -> Callable[[list[torch.Tensor], torch_models.Statistics], None]:
    """`Training.update` as a function of the gradients, which Dynamo can capture whole."""
    state = optimizers.functional_state(training.spec, training.optimizer, training.parameters)
    parameters = [parameter.detach() for parameter in training.parameters]

    def update(gradients: list[torch.Tensor], statistics: torch_models.Statistics) -> None:
        torch_optimizers.update(training.spec, parameters, gradients, state)
        torch_models.update_statistics(training.model, statistics)

    return torch.no_grad()(update)


BUILDERS: dict[str, Callable[[Training], Launch]] = {
    "eager": eager,
    "compiled": lazy,
    "openxla": openxla,
    "nofusion": lazy,
    "opt0": lazy,
}


def build(arm: str, training: Training, environment: Mapping[str, str] = os.environ) -> Launch:
    """The arm's launch function.

    Raises:
      UnsupportedError: torch_xla lacks the arm, or the arm's flags are not in force in this process.
    """
    if arm not in BUILDERS:
        raise errors.UnsupportedError(f"torch_xla has no arm {arm!r}: {arms.LACKS.get(arm, 'unknown name')}")
    for variable, value in arms.ARMS[arm].environment.items():
        if value not in environment.get(variable, "").split():
            raise errors.UnsupportedError(
                f"arm {arm!r} of torch_xla needs a process that was started with {variable}={value}"
            )
    return BUILDERS[arm](training)


def fence() -> None:
    """Launches what is pending and waits until the device is idle.

    `torch_xla.sync(wait=True)` does not wait for the execution: it returned after 1 ms where the work took 77 ms (CPU,
    torch_xla 2.9.0), hence the second call.
    """
    torch_xla.sync()
    wait()


def wait() -> None:
    """Waits for what was launched. A `torch_xla.sync()` before it costs up to 1 ms even where nothing is pending."""
    xla_model.wait_device_ops()


def unsafe_fence() -> None:
    """What looks like a fence and is none; only for the tests of the fence self-test."""
    torch_xla.sync(wait=True)
