"""Optimizers through optax, in the meaning of `OptimizerSpec`."""

from __future__ import annotations

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
    """optax.adamw as it is: bias-corrected, eps outside the root, decay decoupled and scaled by the learning rate."""
    return optax.adamw(
        optimizer.learning_rate,
        b1=optimizer.b1,
        b2=optimizer.b2,
        eps=optimizer.eps,
        eps_root=0.0,
        weight_decay=optimizer.weight_decay,
    )


OPTIMIZERS = {"sgd": sgd, "adamw": adamw}


def build(optimizer: spec.OptimizerSpec) -> optax.GradientTransformation:
    """The optax transformation of an OptimizerSpec.

    Raises:
      UnsupportedError: JAX has no rule for this name.
    """
    if optimizer.name not in OPTIMIZERS:
        raise errors.UnsupportedError(f"optimizer {optimizer.name!r} has no optax form; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[optimizer.name](optimizer)
