"""NumPy optimizers, as `spec.OptimizerSpec` defines them, in the dtype of the parameters."""

from __future__ import annotations

import numpy as np

from xlacompare.workloads import spec


def initial_state(optimizer: spec.OptimizerSpec, parameters: spec.Arrays) -> dict[str, spec.Arrays]:
    """Zero moments: `velocity` for sgd, `first` and `second` for adamw; each by parameter name."""
    moments = {"sgd": ("velocity",), "adamw": ("first", "second")}[optimizer.name]
    return {moment: {name: 0 * value for name, value in parameters.items()} for moment in moments}


def update(
    optimizer: spec.OptimizerSpec,
    step: int,
    parameters: spec.Arrays,
    gradients: spec.Arrays,
    state: dict[str, spec.Arrays],
) -> tuple[spec.Arrays, dict[str, spec.Arrays]]:
    """One update.

    Args:
      optimizer: Its kind and numbers.
      step: Updates done so far, 0 at the first.
      parameters: By name.
      gradients: By name, same shapes.
      state: Of the update before, or `initial_state`.

    Returns:
      New parameters and new state.
    """
    return _UPDATES[optimizer.name](optimizer, step, parameters, gradients, state)


def _sgd(
    optimizer: spec.OptimizerSpec,
    step: int,
    parameters: spec.Arrays,
    gradients: spec.Arrays,
    state: dict[str, spec.Arrays],
) -> tuple[spec.Arrays, dict[str, spec.Arrays]]:
    """v = momentum * v + (g + weight_decay * p); p = p - learning_rate * v (Sutskever et al. 2013, torch's form)."""
    velocity = {
        name: optimizer.momentum * state["velocity"][name] + (gradients[name] + optimizer.weight_decay * p)
        for name, p in parameters.items()
    }
    return {name: p - optimizer.learning_rate * velocity[name] for name, p in parameters.items()}, {
        "velocity": velocity
    }


def _adamw(
    optimizer: spec.OptimizerSpec,
    step: int,
    parameters: spec.Arrays,
    gradients: spec.Arrays,
    state: dict[str, spec.Arrays],
) -> tuple[spec.Arrays, dict[str, spec.Arrays]]:
    """Adam with decoupled decay (Loshchilov and Hutter 2019); eps is added to the corrected root."""
    b1, b2, rate = optimizer.b1, optimizer.b2, optimizer.learning_rate
    first = {name: b1 * state["first"][name] + (1 - b1) * g for name, g in gradients.items()}
    second = {name: b2 * state["second"][name] + (1 - b2) * g * g for name, g in gradients.items()}
    updated = {}
    for name, p in parameters.items():
        m = first[name] / (1 - b1 ** (step + 1))
        v = second[name] / (1 - b2 ** (step + 1))
        updated[name] = p - rate * (m / (v**0.5 + optimizer.eps) + optimizer.weight_decay * p)
    return updated, {"first": first, "second": second}


_UPDATES = {"sgd": _sgd, "adamw": _adamw}


def wrong_first_updates(optimizer: spec.OptimizerSpec, p: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    """What common mistakes add to a parameter `p` of gradient `g` at the first update, by the mistake's name."""
    rate, decay = optimizer.learning_rate, optimizer.weight_decay
    if optimizer.name == "sgd":
        return {
            "momentum sense: velocity averages, v = m * v + (1 - m) * g": -rate
            * (1 - optimizer.momentum)
            * (g + decay * p),
            "Nesterov momentum": -rate * (1 + optimizer.momentum) * (g + decay * p),
            "weight decay left out": -rate * g,
            "weight decay not multiplied by the learning rate": -rate * g - decay * p,
            "sign of the update": rate * (g + decay * p),
        }
    eps, root = optimizer.eps, abs(g)
    coupled = g + decay * p
    return {
        "weight decay coupled (added to the gradient) instead of decoupled": -rate * coupled / (abs(coupled) + eps),
        "weight decay left out": -rate * g / (root + eps),
        "weight decay not multiplied by the learning rate": -rate * g / (root + eps) - decay * p,
        "bias correction left out": -rate
        * ((1 - optimizer.b1) * g / ((1 - optimizer.b2) ** 0.5 * root + eps) + decay * p),
        "eps inside the square root": -rate * (g / (g * g + eps) ** 0.5 + decay * p),
        "eps added before the bias correction": -rate * (g / (root + eps / (1 - optimizer.b2) ** 0.5) + decay * p),
        "sign of the update": rate * (g / (root + eps) + decay * p),
    }
