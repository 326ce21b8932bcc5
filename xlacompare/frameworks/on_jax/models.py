"""Models in Flax NNX; the attribute path of a tensor is its neutral name.

A model is called as `model(batch, tap)`: `tap(name, array)` sees every named activation, and the code that is timed is
the very code that the gate looks at (with a tap that does nothing).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from xlacompare.core import errors
from xlacompare.frameworks.on_jax import layers
from xlacompare.workloads import spec

Batch = Mapping[str, jax.Array]
Tap = Callable[[str, jax.Array], None]


def no_tap(name: str, array: jax.Array) -> None:
    """The tap of a timed step."""


class Mlp(nnx.Module):
    """Dense layers with relu. inputs [batch, in_features], logits [batch, classes]."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.depth = len(config.hidden)
        self.compute = precision.compute
        widths = (config.in_features, *config.hidden)
        for i in range(self.depth):
            setattr(self, f"layer{i}", layers.dense(widths[i], widths[i + 1], precision, rngs))
        self.head = layers.dense(widths[-1], config.classes, precision, rngs)

    def __call__(self, batch: Batch, tap: Tap = no_tap) -> jax.Array:
        """Logits of a batch."""
        x = batch["inputs"].astype(self.compute)
        for i in range(self.depth):
            x = jax.nn.relu(getattr(self, f"layer{i}")(x))
            tap(f"layer{i}", x)
        logits = self.head(x)
        tap("logits", logits)
        return logits


class Block(nnx.Module):
    """Residual block (He et al. 2016): basic (two 3x3) or bottleneck (1x1, 3x3, 1x1 with expansion 4)."""

    def __init__(
        self, inputs: int, width: int, stride: int, config: Any, precision: layers.Precision, rngs: nnx.Rngs
    ) -> None:
        norm = functools.partial(layers.BatchNorm, eps=config.bn_eps, momentum=config.bn_momentum, precision=precision)
        conv = functools.partial(layers.conv, precision=precision, rngs=rngs)
        outputs = width * (4 if config.bottleneck else 1)
        # (kernel, stride, width) of each convolution; the stride sits on the first 3x3.
        plan = [(3, stride, width), (3, 1, width)]
        if config.bottleneck:
            plan = [(1, 1, width), (3, stride, width), (1, 1, outputs)]
        self.depth = len(plan)
        channels = inputs
        for i, (kernel, step, out) in enumerate(plan, start=1):
            setattr(self, f"conv{i}", conv(channels, out, kernel, step))
            setattr(self, f"bn{i}", norm(out))
            channels = out
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.shortcut = Projection(conv(inputs, outputs, 1, stride), norm(outputs))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [batch, height, width, channel]."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.depth:
                y = jax.nn.relu(y)
        return jax.nn.relu(y + (self.shortcut(x) if self.projects else x))


class Projection(nnx.Module):
    """A convolution and its batch norm: the stem, and the shortcut of a block that changes shape."""

    def __init__(self, conv: nnx.Conv, bn: layers.BatchNorm) -> None:
        self.conv = conv
        self.bn = bn

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [batch, height, width, channel]."""
        return self.bn(self.conv(x))


class Stage(nnx.Module):
    """Blocks of one width; the first has the stride."""

    def __init__(self, inputs: int, stage: Any, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.depth = stage.blocks
        outputs = stage.width * (4 if config.bottleneck else 1)
        for j in range(stage.blocks):
            first = j == 0
            block = Block(
                inputs if first else outputs, stage.width, stage.stride if first else 1, config, precision, rngs
            )
            setattr(self, f"block{j}", block)


class Convnet(nnx.Module):
    """ResNet. inputs [batch, height, width, channel], logits [batch, classes]."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.compute = precision.compute
        self.statistic = precision.parameter
        self.depth = len(config.stages)
        self.pooled = config.stem_pool
        width = config.stem_width
        self.stem = Projection(
            layers.conv(config.in_channels, width, config.stem_kernel, config.stem_stride, precision, rngs),
            layers.BatchNorm(width, config.bn_eps, config.bn_momentum, precision),
        )
        for i, stage in enumerate(config.stages):
            setattr(self, f"stage{i}", Stage(width, stage, config, precision, rngs))
            width = stage.width * (4 if config.bottleneck else 1)
        self.head = layers.dense(width, config.classes, precision, rngs)

    def __call__(self, batch: Batch, tap: Tap = no_tap) -> jax.Array:
        """Logits of a batch."""
        x = jax.nn.relu(self.stem(batch["inputs"].astype(self.compute)))
        tap("stem", x)
        if self.pooled:
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for i in range(self.depth):
            stage = getattr(self, f"stage{i}")
            for j in range(stage.depth):
                x = getattr(stage, f"block{j}")(x)
                tap(f"stage{i}.block{j}", x)
        x = jnp.mean(x.astype(self.statistic), axis=(1, 2)).astype(self.compute)
        tap("pool", x)
        logits = self.head(x)
        tap("logits", logits)
        return logits


@functools.cache
def _causal(length: int) -> np.ndarray:
    """bool [length, length], true where a query (row) may look at a key (column); made once, as a torch buffer is."""
    return np.tril(np.ones((length, length), bool))


def _masked(x: jax.Array, batch: Batch, name: str) -> jax.Array:
    """Dropout by the injected mask; a batch without masks has none."""
    mask = batch.get(f"mask.{name}")
    return x if mask is None else x * mask.astype(x.dtype)


class Attention(nnx.Module):
    """Causal self-attention: qkv -> softmax(q k^T / sqrt(head_dim)) * mask -> out (Vaswani et al. 2017)."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.statistic = precision.parameter
        self.qkv = layers.dense(config.width, 3 * config.width, precision, rngs)
        self.out = layers.dense(config.width, config.width, precision, rngs)

    def __call__(self, x: jax.Array, batch: Batch, name: str) -> jax.Array:
        """x [batch, length, width]; `name` is the own neutral name, its mask [batch, heads, length, length]."""
        return self.out(self.mix(self.qkv(x), batch, name))

    def mix(self, qkv: jax.Array, batch: Batch, name: str) -> jax.Array:
        """[batch, length, 3 * width] to [batch, length, width], with the width of the heads that are there."""
        size, length, width = *qkv.shape[:2], qkv.shape[2] // 3
        query, key, value = (
            part.reshape(size, length, self.heads, width // self.heads) for part in jnp.split(qkv, 3, axis=-1)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // self.heads) ** -0.5
        scores = jnp.where(_causal(length), scores.astype(self.statistic), -jnp.inf)
        probabilities = _masked(jax.nn.softmax(scores).astype(qkv.dtype), batch, name)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
        return mixed.reshape(size, length, width)


class Feedforward(nnx.Module):
    """up -> GELU with the exact erf -> down."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.up = layers.dense(config.width, config.mlp_width, precision, rngs)
        self.down = layers.dense(config.mlp_width, config.width, precision, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [batch, length, width]."""
        return self.down(jax.nn.gelu(self.up(x), approximate=False))


class DecoderBlock(nnx.Module):
    """Pre-norm block of GPT-2 (Radford et al. 2019)."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        self.norm1 = layers.layer_norm(config, precision, rngs)
        self.attention = Attention(config, precision, rngs)
        self.norm2 = layers.layer_norm(config, precision, rngs)
        self.mlp = Feedforward(config, precision, rngs)

    def __call__(self, x: jax.Array, name: str, batch: Batch, tap: Tap) -> jax.Array:
        """x [batch, length, width]; `name` is the block's own neutral name."""
        attended = self.attention(self.norm1(x), batch, f"{name}.attention")
        tap(f"{name}.attention", attended)
        x = x + _masked(attended, batch, f"{name}.attention_out")
        fed = self.mlp(self.norm2(x))
        tap(f"{name}.mlp", fed)
        x = x + _masked(fed, batch, f"{name}.mlp")
        tap(name, x)
        return x


class Transformer(nnx.Module):
    """Decoder with tied embeddings. inputs [batch, length] int32, logits [batch, length, vocab]."""

    def __init__(self, config: Any, precision: layers.Precision, rngs: nnx.Rngs) -> None:
        embed = functools.partial(
            nnx.Embed, features=config.width, dtype=precision.compute, param_dtype=precision.parameter, rngs=rngs
        )
        self.token_embedding = embed(config.vocab)
        self.position_embedding = embed(config.length)
        self.depth = config.layers
        for i in range(config.layers):
            setattr(self, f"block{i}", DecoderBlock(config, precision, rngs))
        self.norm = layers.layer_norm(config, precision, rngs)

    def __call__(self, batch: Batch, tap: Tap = no_tap) -> jax.Array:
        """Logits of a batch."""
        tokens = batch["inputs"]
        x = self.token_embedding(tokens) + self.position_embedding(jnp.arange(tokens.shape[1]))
        x = _masked(x, batch, "embedding")
        tap("embedding", x)
        for i in range(self.depth):
            x = getattr(self, f"block{i}")(x, f"block{i}", batch, tap)
        x = self.norm(x)
        tap("norm", x)
        logits = self.token_embedding.attend(x)
        tap("logits", logits)
        return logits


MODELS: dict[str, Callable[..., nnx.Module]] = {"mlp": Mlp, "convnet": Convnet, "transformer": Transformer}

# workload -> operation -> why it is not the stock one; goes into `Evaluation.exceptions`.
COMPOSED: dict[str, dict[str, str]] = {
    "convnet": {"batch norm": "own module: nnx.BatchNorm keeps float32 statistics beside float64 parameters"},
    "transformer": {"layer norm": "stock with use_fast_variance=False: the default E[x^2] - E[x]^2 cancels"},
}


def as_defined(model: nnx.Module) -> nnx.Module:
    """The model, unchanged."""
    return model


def abstract(
    workload: spec.Workload, precision: layers.Precision, adapt: Callable[[Any], Any] = as_defined
) -> nnx.Module:
    """The model with shapes in place of arrays: nothing is initialised, nothing compiles.

    Args:
      workload: Which.
      precision: Its dtypes.
      adapt: Puts a strategy's own modules in the place of the model's; names of tensors stay.

    Raises:
      UnsupportedError: There is no Flax model for this workload.
    """
    if workload.name not in MODELS:
        raise errors.UnsupportedError(f"no Flax model for workload {workload.name!r}; known: {', '.join(MODELS)}")
    return nnx.eval_shape(lambda: adapt(MODELS[workload.name](workload.config, precision, nnx.Rngs(0))))
