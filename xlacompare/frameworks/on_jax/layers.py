"""Layers of the Flax NNX models, and the dtypes of a cell.

Stock layers where they mean what `workloads/spec.py` says; batch norm is our own, because nnx.BatchNorm keeps float32
statistics beside float64 parameters and offers an inexact variance by default (flax 0.12.8).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclasses.dataclass(frozen=True)
class Precision:
    """dtypes of a cell: `parameter` also holds for statistics, softmax and loss; `compute` for everything else."""

    parameter: Any
    compute: Any


PRECISIONS = {
    "float32": Precision(jnp.float32, jnp.float32),
    "float64": Precision(jnp.float64, jnp.float64),
    "bfloat16": Precision(jnp.float32, jnp.bfloat16),
}


def dense(inputs: int, outputs: int, precision: Precision, rngs: nnx.Rngs) -> nnx.Linear:
    """Dense layer with bias, the stock one."""
    return nnx.Linear(inputs, outputs, dtype=precision.compute, param_dtype=precision.parameter, rngs=rngs)


def conv(inputs: int, outputs: int, kernel: int, stride: int, precision: Precision, rngs: nnx.Rngs) -> nnx.Conv:
    """Convolution without bias, padded by kernel // 2 on both sides (SAME pads differently at stride 2)."""
    return nnx.Conv(
        inputs,
        outputs,
        (kernel, kernel),
        strides=(stride, stride),
        padding=((kernel // 2, kernel // 2),) * 2,
        use_bias=False,
        dtype=precision.compute,
        param_dtype=precision.parameter,
        rngs=rngs,
    )


def _alone(statistic: jax.Array) -> jax.Array:
    return statistic


class BatchNorm(nnx.Module):
    """Batch norm in training mode: biased two-pass variance, statistics in the parameters' dtype.

    y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias (Ioffe and Szegedy 2015); running = momentum * running +
    (1 - momentum) * batch, for the mean and the same biased variance.

    Attributes:
      across: Mean of a statistic over the ranks that share a batch, each of which has as many examples.
    """

    def __init__(self, width: int, eps: float, momentum: float, precision: Precision) -> None:
        self.scale = nnx.Param(jnp.ones(width, precision.parameter))
        self.bias = nnx.Param(jnp.zeros(width, precision.parameter))
        self.mean = nnx.BatchStat(jnp.zeros(width, precision.parameter))
        self.var = nnx.BatchStat(jnp.ones(width, precision.parameter))
        self.eps = eps
        self.momentum = momentum
        self.across: Callable[[jax.Array], jax.Array] = _alone

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [batch, height, width, channel], normalised over all but the last axis."""
        axes = tuple(range(x.ndim - 1))
        wide = x.astype(self.scale.dtype)
        mean = self.across(jnp.mean(wide, axes))
        centred = wide - mean
        var = self.across(jnp.mean(jnp.square(centred), axes))
        self._track(self.mean, mean)
        self._track(self.var, var)
        y = centred * (jax.lax.rsqrt(var + self.eps) * self.scale[...]) + self.bias[...]
        return y.astype(x.dtype)

    def _track(self, running: nnx.BatchStat, batch: jax.Array) -> None:
        running[...] = self.momentum * running[...] + (1 - self.momentum) * jax.lax.stop_gradient(batch)


def layer_norm(config: Any, precision: Precision, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """The stock layer, two-pass: its default variance, mean(x^2) - mean(x)^2, cancels."""
    return nnx.LayerNorm(
        config.width,
        epsilon=config.layer_norm_eps,
        use_fast_variance=False,
        dtype=precision.compute,
        param_dtype=precision.parameter,
        rngs=rngs,
    )
