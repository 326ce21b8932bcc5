"""Decoder-only transformer (GPT-2's shape: pre-norm, tied embeddings, Radford et al. 2019) on bytes of English text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from xlacompare import workloads
from xlacompare.core import products
from xlacompare.workloads import data, spec, tape, tape_node
from xlacompare.workloads import products as made


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes, dropout rate and layer-norm epsilon. Without dropout (rate 0) a batch has no masks."""

    vocab: int = 256
    length: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    mlp_width: int = 256
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5


PRESETS: dict[str, tuple[TransformerConfig, int]] = {
    "tiny": (TransformerConfig(), 8),
    "small": (TransformerConfig(length=128, width=256, layers=4, heads=8, mlp_width=1024), 8),
    # Injected masks of the attention alone would be 2.4 GB a batch here, so dropout is off (as it is in most
    # pretraining of this size); the text stays bytes, that is the first 256 of the 50257 ids.
    "base": (TransformerConfig(50257, 1024, 768, 12, 12, 3072, dropout=0.0), 4),
}


@dataclasses.dataclass(frozen=True)
class Transformer:
    """See `spec.Workload`. Inputs and labels [batch, length]."""

    preset: str
    config: TransformerConfig
    optimizer: spec.OptimizerSpec
    batch_size: int
    synthetic: bool = False
    name: str = "transformer"

    def _dense_layers(self) -> list[tuple[str, int, int]]:
        """Dense layers of one block: name, in, out."""
        width, mlp_width = self.config.width, self.config.mlp_width
        return [
            ("attention.qkv", width, 3 * width),
            ("attention.out", width, width),
            ("mlp.up", width, mlp_width),
            ("mlp.down", mlp_width, width),
        ]

    def parameters(self) -> tuple[spec.TensorSpec, ...]:
        """Embeddings, then per block norm1, attention, norm2, mlp, then the final norm; the output layer is tied."""
        config = self.config
        tensors = [
            spec.TensorSpec("token_embedding.embedding", (config.vocab, config.width), "embedding"),
            spec.TensorSpec("position_embedding.embedding", (config.length, config.width), "embedding"),
        ]
        dense = self._dense_layers()
        for i in range(config.layers):
            for norm, layers in (("norm1", dense[:2]), ("norm2", dense[2:])):
                tensors += _norm_specs(f"block{i}.{norm}", config.width)
                for name, fan_in, fan_out in layers:
                    tensors.append(spec.TensorSpec(f"block{i}.{name}.kernel", (fan_in, fan_out), "dense"))
                    tensors.append(spec.TensorSpec(f"block{i}.{name}.bias", (fan_out,), "vector"))
        return (*tensors, *_norm_specs("norm", config.width))

    def buffers(self) -> tuple[spec.TensorSpec, ...]:
        """None."""
        return ()

    def activation_names(self) -> tuple[str, ...]:
        """The embedding, per block its attention, its mlp and its output, the final norm, the logits."""
        blocks = (f"block{i}{part}" for i in range(self.config.layers) for part in (".attention", ".mlp", ""))
        return ("embedding", *blocks, "norm", "logits")

    def initial_parameters(self, seed: int) -> spec.Arrays:
        """Embeddings as GPT-2; kernels such that attention is not flat, or the gradients of queries and keys drown."""
        return data.initial_values(self.parameters(), seed, gain=1.0)

    def initial_buffers(self) -> spec.Arrays:
        """None."""
        return {}

    def mask_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the dropout masks by name, in program order; empty without dropout."""
        config = self.config
        if config.dropout == 0:
            return {}
        stream = (self.batch_size, config.length, config.width)
        shapes: dict[str, tuple[int, ...]] = {"mask.embedding": stream}
        for i in range(config.layers):
            shapes[f"mask.block{i}.attention"] = (self.batch_size, config.heads, config.length, config.length)
            shapes[f"mask.block{i}.attention_out"] = stream
            shapes[f"mask.block{i}.mlp"] = stream
        return shapes

    def batches(self, seed: int, count: int) -> list[spec.Arrays]:
        """Bytes of English text and dropout masks."""
        drawn = data.draw_text(seed, self.batch_size, self.config.length, count)
        generator = np.random.default_rng([seed, 1])
        for batch in drawn:
            for name, shape in self.mask_shapes().items():
                batch[name] = data.dropout_mask(generator, shape, self.config.dropout)
        return drawn

    def forward(
        self, tape: tape.Tape, parameters: dict[str, tape_node.Node], buffers: spec.Arrays, batch: spec.Arrays
    ) -> tuple[tape_node.Node, spec.Arrays, dict[str, Any]]:
        """See `spec.Workload`."""
        eps = self.config.layer_norm_eps

        def drop(x: Any, name: str) -> Any:
            mask = batch.get(f"mask.{name}")
            return x if mask is None else tape.multiply(x, tape.narrow(tape.constant(mask)))

        def norm(x: Any, name: str) -> Any:
            return tape.layer_norm(x, parameters[f"{name}.scale"], parameters[f"{name}.bias"], eps)

        def dense(x: Any, name: str) -> Any:
            return tape.dense(x, parameters[f"{name}.kernel"], parameters[f"{name}.bias"])

        taps = {}
        table = tape.narrow(parameters["token_embedding.embedding"])
        x = tape.add(tape.embedding(table, batch["inputs"]), tape.narrow(parameters["position_embedding.embedding"]))
        x = taps["embedding"] = drop(x, "embedding")
        for i in range(self.config.layers):
            block = f"block{i}"
            heads = self._attend(tape, dense(norm(x, f"{block}.norm1"), f"{block}.attention.qkv"), drop, block)
            taps[f"{block}.attention"] = dense(heads, f"{block}.attention.out")
            x = tape.add(x, drop(taps[f"{block}.attention"], f"{block}.attention_out"))
            y = tape.gelu(dense(norm(x, f"{block}.norm2"), f"{block}.mlp.up"))
            taps[f"{block}.mlp"] = dense(y, f"{block}.mlp.down")
            x = taps[block] = tape.add(x, drop(taps[f"{block}.mlp"], f"{block}.mlp"))
        taps["norm"] = norm(x, "norm")
        taps["logits"] = tape.matmul(taps["norm"], tape.transpose(table, (1, 0)))
        return tape.cross_entropy(taps["logits"], batch["labels"]), {}, taps

    def _attend(self, tape: tape.Tape, qkv: Any, drop: Any, block: str) -> Any:
        """Causal attention: [batch, length, 3 * width] to [batch, length, width], before the output projection."""
        config = self.config
        head_dim = config.width // config.heads
        split = tape.reshape(qkv, (self.batch_size, config.length, 3, config.heads, head_dim))
        q, k, v = (tape.take(tape.transpose(split, (2, 0, 3, 1, 4)), part) for part in range(3))
        scores = tape.matmul(q, tape.transpose(k, (0, 1, 3, 2)))
        probabilities = tape.softmax(tape.causal(tape.scale(scores, head_dim**-0.5)))
        heads = tape.matmul(drop(probabilities, f"{block}.attention"), v)
        return tape.reshape(tape.transpose(heads, (0, 2, 1, 3)), (self.batch_size, config.length, config.width))

    def _forward_products(self) -> int:
        """Multiply-adds of one forward pass; the masked half of the attention scores counts, as dense code does it."""
        config = self.config
        tokens = self.batch_size * config.length
        dense = sum(fan_in * fan_out for _, fan_in, fan_out in self._dense_layers())
        attention = 2 * config.length * config.width
        return tokens * (config.layers * (dense + attention) + config.width * config.vocab)

    def flops_per_step(self) -> int:
        """3 (forward and backward) * 2 * multiply-adds."""
        return 6 * self._forward_products()

    def products_per_step(self) -> list[products.Product]:
        """See `spec.Workload`; the output layer is the token embedding, whose look-up multiplies nothing."""
        config = self.config
        tokens, pairs = self.batch_size * config.length, self.batch_size * config.heads
        head_dim = config.width // config.heads
        found = []
        for i in range(config.layers):
            for name, fan_in, fan_out in self._dense_layers():
                found += made.dense(f"block{i}.{name}", tokens, fan_in, fan_out)
            found += made.matmul(f"block{i}.attention", pairs, config.length, head_dim, config.length)
            found += made.matmul(f"block{i}.attention", pairs, config.length, config.length, head_dim)
        return found + made.dense("token_embedding", tokens, config.width, config.vocab)

    def bytes_per_step(self, dtype: str) -> int:
        """Parameters, optimizer state, and the output of every matrix product, attention scores included."""
        config = self.config
        tokens = self.batch_size * config.length
        dense = sum(fan_out for _, _, fan_out in self._dense_layers())
        per_block = dense + config.heads * config.length + config.width
        outputs = tokens * (config.layers * per_block + config.vocab)
        return data.state_bytes(self.parameters(), self.optimizer, dtype) + data.activation_bytes(outputs, dtype)


def _norm_specs(name: str, width: int) -> list[spec.TensorSpec]:
    return [spec.TensorSpec(f"{name}.{last}", (width,), "vector") for last in ("scale", "bias")]


def make(preset: str) -> Transformer:
    """The workload of a preset."""
    config, batch_size = PRESETS[preset]
    return Transformer(preset, config, workloads.OPTIMIZERS["adamw"], batch_size)
