"""The models as torch.nn modules: one definition that serves native torch and torch_xla.

A module's attribute path is the neutral name without its last part; `arrays.py` renames the last part and moves
arrays in and out. A forward pass changes nothing: it returns the logits and the batch statistics of each batch norm,
and `update_statistics` folds these into the running ones. That lets `torch.func` transform the very same code.

Numerics (all frameworks alike): with dtype "bfloat16" the parameters stay float32 and are cast at use; normalisation,
softmax, the average pool's sum and the loss are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from xlacompare.frameworks.on_torch import operations
from xlacompare.workloads import spec

Tap = Callable[[str, torch.Tensor], torch.Tensor | None]
Batch = Mapping[str, torch.Tensor]
Statistics = dict[
    str, tuple[torch.Tensor, torch.Tensor]
]  # module path -> batch mean, biased batch variance, each [channels]

PARAMETER_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
COMPUTE_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def _tapped(tap: Tap | None, name: str, value: torch.Tensor) -> torch.Tensor:
    replacement = None if tap is None else tap(name, value)
    return value if replacement is None else replacement


class Dense(nn.Module):
    """x @ weight.T + bias; weight [out, in]."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))
        self.bias = nn.Parameter(torch.empty(fan_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Conv(nn.Module):
    """Convolution without bias, padded by size // 2 on both sides; weight [out, in, size, size]."""

    def __init__(self, fan_in: int, fan_out: int, size: int, stride: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in, size, size))
        self.stride, self.padding = stride, size // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, self.weight.to(x.dtype), None, self.stride, self.padding)


class Embedding(nn.Module):
    """A table [rows, features]."""

    def __init__(self, rows: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, features))


class LayerNorm(nn.Module):
    """Over the last axis, in the parameters' dtype."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(self.weight.dtype)
        return functional.layer_norm(wide, self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)


class BatchNorm(nn.Module):
    """Training-mode batch norm, in the parameters' dtype; running = momentum * running + (1 - momentum) * batch."""

    def __init__(self, channels: int, eps: float, momentum: float, operation: operations.BatchNorm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))
        self.eps, self.momentum, self.operation = eps, momentum, operation

    def forward(self, x: torch.Tensor, name: str, statistics: Statistics) -> torch.Tensor:
        y, mean, var = self.operation(x.to(self.weight.dtype), self.weight, self.bias, self.eps)
        statistics[name] = (mean, var)
        return y.to(x.dtype)


class Mlp(nn.Module):
    """relu(dense) layers and a head."""

    def __init__(
        self, config: Any, compute_dtype: torch.dtype, gelu: Callable, batch_norm: operations.BatchNorm
    ) -> None:
        super().__init__()
        widths = (config.in_features, *config.hidden)
        self.num_layers, self.compute_dtype = len(config.hidden), compute_dtype
        for i in range(self.num_layers):
            self.add_module(f"layer{i}", Dense(widths[i], widths[i + 1]))
        self.head = Dense(widths[-1], config.classes)

    def forward(self, batch: Batch, tap: Tap | None = None) -> tuple[torch.Tensor, Statistics]:
        x = batch["inputs"].to(self.compute_dtype)
        for i in range(self.num_layers):
            x = _tapped(tap, f"layer{i}", functional.relu(getattr(self, f"layer{i}")(x)))
        return _tapped(tap, "logits", self.head(x)), {}


class ConvNorm(nn.Module):
    """A convolution and its batch norm, as in the stem and in shortcuts."""

    def __init__(self, fan_in: int, fan_out: int, size: int, stride: int, norm: Callable[[int], BatchNorm]) -> None:
        super().__init__()
        self.conv, self.bn = Conv(fan_in, fan_out, size, stride), norm(fan_out)

    def forward(self, x: torch.Tensor, name: str, statistics: Statistics) -> torch.Tensor:
        return self.bn(self.conv(x), f"{name}.bn", statistics)


class ResidualBlock(nn.Module):
    """He et al. 2016: 3x3, 3x3 (basic), or 1x1, 3x3, 1x1 with expansion 4 (bottleneck); stride on the first 3x3."""

    def __init__(
        self, fan_in: int, width: int, stride: int, bottleneck: bool, norm: Callable[[int], BatchNorm]
    ) -> None:
        super().__init__()
        layers = ((width, 3, stride), (width, 3, 1))
        if bottleneck:
            layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1))
        self.num_layers, channels = len(layers), fan_in
        for i, (out, size, layer_stride) in enumerate(layers, start=1):
            self.add_module(f"conv{i}", Conv(channels, out, size, layer_stride))
            self.add_module(f"bn{i}", norm(out))
            channels = out
        self.shortcut = ConvNorm(fan_in, channels, 1, stride, norm) if stride != 1 or fan_in != channels else None
        self.channels = channels

    def forward(self, x: torch.Tensor, name: str, statistics: Statistics) -> torch.Tensor:
        y = x
        for i in range(1, self.num_layers + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y), f"{name}.bn{i}", statistics)
            y = functional.relu(y) if i < self.num_layers else y
        if self.shortcut is not None:
            x = self.shortcut(x, f"{name}.shortcut", statistics)
        return functional.relu(y + x)


class Convnet(nn.Module):
    """Residual network on [batch, channels, height, width]."""

    def __init__(
        self, config: Any, compute_dtype: torch.dtype, gelu: Callable, batch_norm: operations.BatchNorm
    ) -> None:
        super().__init__()
        self.compute_dtype, self.stem_pool = compute_dtype, config.stem_pool

        def norm(channels: int) -> BatchNorm:
            return BatchNorm(channels, config.bn_eps, config.bn_momentum, batch_norm)

        channels = config.stem_width
        self.stem, self.blocks = (
            ConvNorm(config.in_channels, channels, config.stem_kernel, config.stem_stride, norm),
            [],
        )
        for i, stage in enumerate(config.stages):
            module = nn.Module()
            for j in range(stage.blocks):
                block = ResidualBlock(channels, stage.width, stage.stride if j == 0 else 1, config.bottleneck, norm)
                module.add_module(f"block{j}", block)
                self.blocks.append((f"stage{i}", f"block{j}"))
                channels = block.channels
            self.add_module(f"stage{i}", module)
        self.head = Dense(channels, config.classes)

    def forward(self, batch: Batch, tap: Tap | None = None) -> tuple[torch.Tensor, Statistics]:
        statistics: Statistics = {}
        x = functional.relu(self.stem(batch["inputs"].to(self.compute_dtype), "stem", statistics))
        x = _tapped(tap, "stem", x)
        if self.stem_pool:
            x = functional.max_pool2d(x, 3, 2, 1)
        for stage, block in self.blocks:
            name = f"{stage}.{block}"
            x = _tapped(tap, name, getattr(getattr(self, stage), block)(x, name, statistics))
        x = _tapped(tap, "pool", x.mean((2, 3), dtype=self.head.weight.dtype).to(x.dtype))
        return _tapped(tap, "logits", self.head(x)), statistics


class Attention(nn.Module):
    """Causal self-attention with an injected dropout mask [batch, heads, length, length]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.width // config.heads  # a rank may have some of the heads
        self.qkv, self.out = Dense(config.width, 3 * config.width), Dense(config.width, config.width)
        future = torch.ones(config.length, config.length, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, self.head_width)
        # Unpacking without `unbind` is three selections for Dynamo, whose gradients are three zero-padded copies.
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)).to(self.out.weight.dtype) * self.head_width**-0.5
        probabilities = torch.softmax(scores.masked_fill(self.future[:length, :length], float("-inf")), -1).to(x.dtype)
        if mask is not None:
            probabilities = probabilities * mask.to(x.dtype)
        return self.out((probabilities @ v).transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self, config: Any, gelu: Callable) -> None:
        super().__init__()
        self.up, self.down = Dense(config.width, config.mlp_width), Dense(config.mlp_width, config.width)
        self.gelu = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gelu(self.up(x)))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: Any, gelu: Callable) -> None:
        super().__init__()
        self.norm1 = LayerNorm(config.width, config.layer_norm_eps)
        self.norm2 = LayerNorm(config.width, config.layer_norm_eps)
        self.attention, self.mlp = Attention(config), Feedforward(config, gelu)

    def forward(self, x: torch.Tensor, batch: Batch, name: str, tap: Tap | None) -> torch.Tensor:
        out = self.attention(self.norm1(x), batch.get(f"mask.{name}.attention"))
        x = x + _masked(_tapped(tap, f"{name}.attention", out), batch, f"{name}.attention_out")
        out = self.mlp(self.norm2(x))
        return x + _masked(_tapped(tap, f"{name}.mlp", out), batch, f"{name}.mlp")


class Transformer(nn.Module):
    """GPT-2-style decoder with tied embeddings; logits [batch, length, vocab]."""

    def __init__(
        self, config: Any, compute_dtype: torch.dtype, gelu: Callable, batch_norm: operations.BatchNorm
    ) -> None:
        super().__init__()
        self.num_blocks, self.compute_dtype = config.layers, compute_dtype
        self.token_embedding = Embedding(config.vocab, config.width)
        self.position_embedding = Embedding(config.length, config.width)
        for i in range(config.layers):
            self.add_module(f"block{i}", Block(config, gelu))
        self.norm = LayerNorm(config.width, config.layer_norm_eps)

    def forward(self, batch: Batch, tap: Tap | None = None) -> tuple[torch.Tensor, Statistics]:
        tokens, table = batch["inputs"], self.token_embedding.weight
        # Gathering first and casting then gives the same values as casting the table, and sums its gradient in float32.
        x = functional.embedding(tokens, table).to(self.compute_dtype)
        x = x + self.position_embedding.weight[: tokens.shape[1]].to(self.compute_dtype)
        x = _tapped(tap, "embedding", _masked(x, batch, "embedding"))
        for i in range(self.num_blocks):
            x = _tapped(tap, f"block{i}", getattr(self, f"block{i}")(x, batch, f"block{i}", tap))
        x = _tapped(tap, "norm", self.norm(x))
        return _tapped(tap, "logits", functional.linear(x, table.to(x.dtype))), {}


def _masked(x: torch.Tensor, batch: Batch, name: str) -> torch.Tensor:
    return x if f"mask.{name}" not in batch else x * batch[f"mask.{name}"].to(x.dtype)


loss_of = operations.loss_of
MODELS: dict[str, type[nn.Module]] = {"mlp": Mlp, "convnet": Convnet, "transformer": Transformer}


def make(
    workload: spec.Workload,
    dtype: str,
    gelu: Callable[[torch.Tensor], torch.Tensor] = functional.gelu,
    batch_norm: operations.BatchNorm = operations.stock_batch_norm,
) -> nn.Module:
    """The workload's model with uninitialised parameters of the dtype's parameter type, on the CPU."""
    model = MODELS[workload.name](workload.config, COMPUTE_DTYPES[dtype], gelu, batch_norm)
    return model.to(PARAMETER_DTYPES[dtype])


def update_statistics(model: nn.Module, statistics: Statistics) -> None:
    """running = momentum * running + (1 - momentum) * batch, in place, for every batch norm."""
    for name, (mean, var) in statistics.items():
        module = model.get_submodule(name)
        module.running_mean.lerp_(mean, 1.0 - module.momentum)
        module.running_var.lerp_(var, 1.0 - module.momentum)
