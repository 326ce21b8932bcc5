"""One builder per arm: each makes a `Program`, a training step over the tensors of one model, updated in place."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import func, nn

from xlacompare.core import errors
from xlacompare.frameworks.on_torch import arms, counters, models, optimizers
from xlacompare.workloads import spec

Forward = Callable[[models.Batch], tuple[torch.Tensor, models.Statistics]]


@dataclasses.dataclass(frozen=True)
class Program:
    """A step and the way to empty the optimizer's state in place.

    Attributes:
      step: One training step on a batch; the mean loss, a scalar without history.
      clear: Empties the optimizer's state.
    """

    step: Callable[[models.Batch], torch.Tensor]
    clear: Callable[[], None]


Builder = Callable[[nn.Module, spec.OptimizerSpec, dict[str, Any]], Program]


def build(arm: str, model: nn.Module, optimizer: spec.OptimizerSpec, inductor_options: dict[str, Any]) -> Program:
    """Builds the step of an arm; torch compiles it when it first runs.

    Args:
      arm: A key of `arms.ARMS`.
      model: Loaded, on its device; the step updates its tensors in place.
      optimizer: The optimizer.
      inductor_options: Options of torch.compile for the arms that use Inductor.

    Raises:
      UnsupportedError: torch lacks this arm.
    """
    if arm not in _BUILDERS:
        raise errors.UnsupportedError(f"torch has no arm {arm!r}: {arms.LACKS.get(arm, 'no such arm')}")
    return _BUILDERS[arm](model, optimizer, inductor_options)


def inductor_options(cpp_wrapper: bool) -> dict[str, Any]:
    """Options of torch.compile(backend="inductor").

    With `cpp_wrapper` the CPU kernels of a graph are compiled as one C++ file (otherwise one file each, 1.5 s of one
    core apiece, 42 for the tiny convnet), and the host code is a file of its own at -O1.
    """
    if not cpp_wrapper:
        return {}
    return {
        "cpp_wrapper": True,
        "cpp_wrapper_build_separate": True,
        # Precompiled headers lie in the user's temporary folder, not in TORCHINDUCTOR_CACHE_DIR, so that "cold" would
        # depend on earlier runs; with two files to compile they do not pay.
        "cpp_cache_precompile_headers": False,
    }


def _eager(model: nn.Module, optimizer: spec.OptimizerSpec, options: dict[str, Any]) -> Program:
    return _stepwise(loss_function(model), model, optimizer)


def _captured(model: nn.Module, optimizer: spec.OptimizerSpec, options: dict[str, Any]) -> Program:
    # The optimizer stays eager: AOTAutograd makes it functional, and nothing puts it back in place. The transformer's
    # whole step would run 2760 aten operations instead of 1738, and take 1.8 times as long as eager.
    captured = torch.compile(
        loss_function(model), backend=counters.same_kernels_backend(), fullgraph=True, dynamic=False
    )
    return _stepwise(captured, model, optimizer)


def _inductor_model(model: nn.Module, optimizer: spec.OptimizerSpec, options: dict[str, Any]) -> Program:
    def forward(batch: models.Batch) -> tuple[torch.Tensor, models.Statistics]:
        return model(batch)

    return _stepwise(loss_function(inductor(forward, options)), model, optimizer)


def inductor(function: types.FunctionType, options: dict[str, Any]) -> Any:
    """A function under torch.compile, one graph; `options` are those of `inductor_options`."""
    counters.load_inductor()
    return torch.compile(_own_code(function), backend="inductor", fullgraph=True, dynamic=False, options=options)


def loss_function(forward: Forward) -> Forward:
    """Mean loss and batch statistics of a batch."""

    def loss_and_statistics(batch: models.Batch) -> tuple[torch.Tensor, models.Statistics]:
        logits, statistics = forward(batch)
        return models.loss_of(logits, batch["labels"]), statistics

    return _own_code(loss_and_statistics)


def _stepwise(loss_function: Forward, model: nn.Module, optimizer: spec.OptimizerSpec) -> Program:
    """Backward and torch.optim as any user writes them, round a forward pass that may be compiled."""
    updater = optimizers.make(optimizer, model.parameters())

    def step(batch: models.Batch) -> torch.Tensor:
        loss, statistics = loss_function(batch)
        loss.backward()
        updater.step()
        updater.zero_grad(set_to_none=True)
        models.update_statistics(model, statistics)
        return loss.detach()

    return Program(step, updater.state.clear)


def _compiled(model: nn.Module, optimizer: spec.OptimizerSpec, options: dict[str, Any]) -> Program:
    """The whole step as one function for one torch.compile.

    Dynamo cannot trace `loss.backward()` (2.9.1), but it traces `torch.func.grad_and_value`: the gradient is then part
    of the one graph, and AOTAutograd sees an inference graph that updates its inputs.
    """
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    state = optimizers.initial_state(optimizer, list(parameters.values()))

    def step(parameters: dict[str, torch.Tensor], state: optimizers.State, batch: models.Batch) -> torch.Tensor:
        def loss_and_statistics(values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, models.Statistics]:
            logits, statistics = func.functional_call(model, values, (batch,))
            return models.loss_of(logits, batch["labels"]), statistics

        gradients, (loss, statistics) = func.grad_and_value(loss_and_statistics, has_aux=True)(parameters)
        optimizers.update(optimizer, list(parameters.values()), list(gradients.values()), state)
        models.update_statistics(model, statistics)
        return loss

    compiled = inductor(step, options)

    def clear() -> None:
        for tensors in state.values():
            for tensor in tensors:
                tensor.zero_()

    return Program(lambda batch: compiled(parameters, state, batch), clear)


def _own_code(function: types.FunctionType) -> types.FunctionType:
    """A copy of a function with a code object of its own.

    Dynamo keeps its compiled versions by code object: two builds of one closure would share the list, each step would
    try the guards of the other, and the ninth build would raise FailOnRecompileLimitHit.
    """
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_BUILDERS: dict[str, Builder] = {
    "eager": _eager,
    "captured": _captured,
    "compiled": _compiled,
    "inductor_model": _inductor_model,
}
