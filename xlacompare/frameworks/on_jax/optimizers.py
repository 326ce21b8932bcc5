"""Optimizers through optax, in the meaning of `OptimizerSpec`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax

from xlacompare.core import errors
from xlacompare.workloads import spec


def sgd(optimizer: spec.OptimizerSpec) -> optax.GradientTransformation:
    """v = momentum * v + (g + weight_decay * p); p = p - learning_rate * v.

    Composed by hand because optax.sgd has no weight decay. Decay comes before the momentum: it is coupled.
    """
    return optax.chain(
        optax.add_decayed_weights(optimizer.weight_decay),
        optax.trace(decay=optimizer.momentum, nesterov=False),
        optax.scale(-optimizer.learning_rate),
    )


def adamw(optimizer: spec.OptimizerSpec) -> optax.GradientTransformation:
    """Adam with exact bias correction, then decoupled decay, both times the learning rate."""
    return optax.chain(
        _scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps),
        optax.add_decayed_weights(optimizer.weight_decay),
        optax.scale(-optimizer.learning_rate),
    )


def _scale_by_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """optax.scale_by_adam with 1 - b**t as -expm1(t log b).

    In float32, optax's 1 - b2**t of b2 = 0.999 is off by 6e-5 at the first step (optax 0.2.8), and with it every update
    by half as much; torch computes the correction in double precision on the host.
    """
    stock = optax.scale_by_adam(b1, b2, eps)

    def update(
        gradients: optax.Updates, state: optax.ScaleByAdamState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        del parameters
        count = optax.safe_increment(state.count)
        mean = optax.tree.update_moment(gradients, state.mu, b1, 1)
        square = optax.tree.update_moment_per_elem_norm(gradients, state.nu, b2, 2)
        first, second = (-jnp.expm1(count * math.log(decay)) for decay in (b1, b2))
        updates = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mean, square)
        return updates, optax.ScaleByAdamState(count=count, mu=mean, nu=square)

    return optax.GradientTransformation(stock.init, update)


OPTIMIZERS = {"sgd": sgd, "adamw": adamw}

# optimizer -> operation -> why it is not the stock one; goes into `Evaluation.exceptions`.
COMPOSED: dict[str, dict[str, str]] = {
    "adamw": {"bias correction": "as -expm1(t log b): optax's 1 - b**t errs by 6e-5 in float32 at the first step"},
}


def build(optimizer: spec.OptimizerSpec) -> optax.GradientTransformation:
    """The optax transformation of an OptimizerSpec.

    Raises:
      UnsupportedError: JAX has no rule for this name.
    """
    if optimizer.name not in OPTIMIZERS:
        raise errors.UnsupportedError(f"optimizer {optimizer.name!r} has no optax form; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[optimizer.name](optimizer)
