"""The optimizers of `on_torch`, with their whole state on the device from the first step on.

State that appears at the first step (SGD's first momentum is a copy of the gradient, AdamW starts from constant zeros)
makes the second step another graph and hence a second compilation: zeros are put on the device beforehand. AdamW's bias
corrections as Python numbers would be uploaded anew at every step, and become constants of another graph where they
happen to be 0 or 1: with `capturable` the step count lies on the device instead.
"""

from __future__ import annotations

import torch

from xlacompare.frameworks.on_torch import optimizers
from xlacompare.workloads import spec


def make(optimizer: spec.OptimizerSpec, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The stock optimizer over parameters that already lie on the device, with zeros as state.

    SGD's momentum of zero means the same as none: v = momentum * 0 + g.

    Raises:
      UnsupportedError: torch has no optimizer of this name.
    """
    options = {"capturable": True} if optimizer.name == "adamw" else {}
    made = optimizers.make(optimizer, parameters, **options)
    for parameter in parameters:
        made.state[parameter] = _initial_state(optimizer.name, parameter)
    return made


def _initial_state(name: str, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    if name == "sgd":
        return {"momentum_buffer": _uploaded(parameter.shape, parameter)}
    # The count has the parameters' dtype: b2 ** count in float32 would leave 1e-5 in a float64 bias correction.
    return {
        "step": _uploaded((), parameter),
        "exp_avg": _uploaded(parameter.shape, parameter),
        "exp_avg_sq": _uploaded(parameter.shape, parameter),
    }


def _uploaded(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Zeros by upload; zeros made on the device would be constants of the next graph until they are launched."""
    return torch.zeros(shape, dtype=like.dtype).to(like.device)


def zero_state(made: torch.optim.Optimizer) -> None:
    """Back to the state of `make`, by upload: nothing is compiled and no buffer is shared."""
    for state in made.state.values():
        for tensor in state.values():
            tensor.copy_(torch.zeros(tensor.shape, dtype=tensor.dtype))


def functional_state(
    optimizer: spec.OptimizerSpec, made: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
) -> optimizers.State:
    """The very tensors of `made`'s state, as `on_torch.optimizers.update` takes them."""
    keys = {"momentum": "momentum_buffer"}
    if optimizer.name == "adamw":
        keys = {"first": "exp_avg", "second": "exp_avg_sq", "steps": "step"}
    return {name: [made.state[parameter][key] for parameter in parameters] for name, key in keys.items()}
