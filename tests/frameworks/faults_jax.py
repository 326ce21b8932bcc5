"""Faults in the JAX adapter's own code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax
import pytest
from flax import nnx

from xlacompare.frameworks.on_jax import compiler, layers, models, optimizers


def _gelu_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Any, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x), approximate=True))

    monkeypatch.setattr(models.Feedforward, "__call__", call)


def _padding_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def conv(inputs: int, outputs: int, kernel: int, stride: int, precision: layers.Precision, rngs: nnx.Rngs) -> Any:
        return nnx.Conv(
            inputs,
            outputs,
            (kernel, kernel),
            strides=(stride, stride),
            padding="SAME",
            use_bias=False,
            dtype=precision.compute,
            param_dtype=precision.parameter,
            rngs=rngs,
        )

    monkeypatch.setattr(layers, "conv", conv)


def _summed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compiler.Network.loss

    @functools.wraps(right)
    def loss(self: Any, parameters: Any, buffers: Any, batch: Any, tap: Any = models.no_tap) -> Any:
        mean, updated = right(self, parameters, buffers, batch, tap)
        return mean * batch["labels"].size, updated

    monkeypatch.setattr(compiler.Network, "loss", loss)


def _velocity_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    def sgd(optimizer: Any) -> optax.GradientTransformation:
        """v = m * v + (1 - m) * g."""
        return optax.chain(
            optax.add_decayed_weights(optimizer.weight_decay),
            optax.ema(optimizer.momentum, debias=False),
            optax.scale(-optimizer.learning_rate),
        )

    monkeypatch.setitem(optimizers.OPTIMIZERS, "sgd", sgd)


def _coupled_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    def adam(optimizer: Any) -> optax.GradientTransformation:
        """The decay joins the gradient."""
        return optax.chain(
            optax.add_decayed_weights(optimizer.weight_decay),
            optax.adam(optimizer.learning_rate, optimizer.b1, optimizer.b2, optimizer.eps),
        )

    monkeypatch.setitem(optimizers.OPTIMIZERS, "adamw", adam)


def _eps_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def adamw(optimizer: Any) -> optax.GradientTransformation:
        """m / sqrt(v + eps)."""
        return optax.adamw(
            optimizer.learning_rate,
            optimizer.b1,
            optimizer.b2,
            eps=0.0,
            eps_root=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    monkeypatch.setitem(optimizers.OPTIMIZERS, "adamw", adamw)


def _unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layers.BatchNorm.__call__

    def call(self: Any, x: jax.Array) -> jax.Array:
        before = self.var[...]
        y = right(self, x)
        batch = (self.var[...] - self.momentum * before) / (1 - self.momentum)
        count = x.size // x.shape[-1]
        self.var[...] = self.momentum * before + (1 - self.momentum) * batch * count / (count - 1)
        return y

    monkeypatch.setattr(layers.BatchNorm, "__call__", call)


PATCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "GELU tanh": _gelu_tanh,
    "padding SAME": _padding_same,
    "summed loss": _summed_loss,
    "velocity averages": _velocity_averages,
    "coupled decay": _coupled_decay,
    "eps inside the root": _eps_inside,
    "unbiased running variance": _unbiased,
}


def _extra_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more product in layer1, by the turned kernel since an equal one is merged; no value or gradient changes."""
    right = nnx.Linear.__call__

    def call(self: Any, x: jax.Array) -> jax.Array:
        y = right(self, x)
        kernel = self.kernel[...]
        if kernel.shape[0] != kernel.shape[1]:
            return y
        return y + 0.0 * (jax.lax.stop_gradient(x) @ jax.lax.stop_gradient(kernel).T)

    monkeypatch.setattr(nnx.Linear, "__call__", call)


def _layer_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """layer1 gives back what it is given."""
    right = nnx.Linear.__call__

    def call(self: Any, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        return right(self, x) if kernel.shape[0] != kernel.shape[1] else x + 0.0 * kernel[0] + 0.0 * self.bias[...]

    monkeypatch.setattr(nnx.Linear, "__call__", call)


WORK_PATCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "extra product": _extra_product,
    "layer left out": _layer_left_out,
}
