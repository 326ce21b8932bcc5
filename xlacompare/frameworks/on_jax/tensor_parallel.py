"""`tp`: each rank has some columns of a block's first product and the rows of its second that belong to them; see
`plans.Plan`. Shoeybi et al. 2019 (Megatron-LM).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from xlacompare.core import errors
from xlacompare.frameworks.on_jax import communicate, compiler, layers, models, placement, plans
from xlacompare.workloads import spec

Half = Callable[[Any, jax.Array], jax.Array]

# Ends of names -> how the tensor is cut. qkv is three matrices side by side, each cut by heads.
COLUMNS, ROWS, HEADS = "columns", "rows", "heads"
_TRANSFORMER = {
    "attention.qkv.kernel": HEADS,
    "attention.qkv.bias": HEADS,
    "attention.out.kernel": ROWS,
    "mlp.up.kernel": COLUMNS,
    "mlp.up.bias": COLUMNS,
    "mlp.down.kernel": ROWS,
}


class TensorParallel:
    """The batch is whole on every rank, and so is what lies between the half blocks: embeddings, norms, biases after a
    sum, the output layer. Their gradients come out equal on all ranks, without communication.
    """

    def __init__(
        self, workload: spec.Workload, precision: layers.Precision, communication: communicate.Communication
    ) -> None:
        """Raises:
        BadInputError: Heads, or a layer's width, do not divide among the ranks.
        """
        self._cuts = _cuts(workload)
        self._n = communication.num_ranks
        for tensor in workload.parameters():
            self._check(workload, tensor)
        adapt = {"transformer": _split_transformer, "mlp": _split_mlp}[workload.name]
        self.network = compiler.Network(workload, precision, lambda model: adapt(model, communication))

    def _check(self, workload: spec.Workload, tensor: spec.TensorSpec) -> None:
        cut = self._cuts.get(tensor.name)
        if cut is None:
            return
        size = {COLUMNS: tensor.shape[-1], ROWS: tensor.shape[0]}.get(cut) or workload.config.heads
        if size % self._n:
            raise errors.BadInputError(
                f"tp cuts {tensor.name} by {cut}: {size} do not divide among {self._n} ranks; choose a number of ranks "
                f"that divides {size}"
            )

    def parts(self, name: str, whole: np.ndarray) -> np.ndarray | None:
        """Columns or rows, one rank's after the other's."""
        cut = self._cuts.get(name)
        if cut is None:
            return None
        if cut == ROWS:
            return whole.reshape(self._n, -1, *whole.shape[1:])
        matrices = 3 if cut == HEADS else 1
        columns = whole.reshape(*whole.shape[:-1], matrices, self._n, -1)
        return np.moveaxis(columns, -2, 0).reshape(self._n, *whole.shape[:-1], -1)

    def whole(self, name: str, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Side by side again."""
        if self._cuts[name] == ROWS:
            return parts.reshape(shape)
        matrices = 3 if self._cuts[name] == HEADS else 1
        return np.moveaxis(parts.reshape(self._n, *shape[:-1], matrices, -1), 0, -2).reshape(shape)

    def batch_spec(self, name: str) -> PartitionSpec:
        """Whole, but for the masks of attention, [batch, heads, ...]: each rank has those of its heads."""
        by_heads = name.startswith("mask.") and name.endswith(".attention")
        return PartitionSpec(None, communicate.AXIS) if by_heads else placement.WHOLE

    def gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves, batch: models.Batch) -> plans.Losses:
        """Autodiff through the half blocks; the loss is that of the whole batch on every rank."""
        local = jax.value_and_grad(self.network.loss, has_aux=True)
        (loss, buffers), gradients = local(parameters, buffers, batch)
        return loss, buffers, gradients


def half_block(
    communication: communicate.Communication, partial: Half, weights: Any, x: jax.Array, constant: bool = False
) -> jax.Array:
    """Sum over the ranks of `partial(weights, x)`; x is whole, and so is its cotangent: a sum on the way back.

    Under `serial` the gradients of the weights are done before this sum.

    Args:
      communication: Of the step.
      partial: One rank's part.
      weights: Its arguments.
      x: Whole on every rank.
      constant: Nobody asks for the gradient of x (a batch): nothing is computed or sent for it.
    """

    def own(weights: Any, x: jax.Array) -> jax.Array:
        return partial(weights, jax.lax.stop_gradient(x) if constant else x)

    @jax.custom_vjp
    def summed(weights: Any, x: jax.Array) -> jax.Array:
        return communication.all_reduce_sum([own(weights, x)])[0]

    def forward(weights: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        y, back = jax.vjp(own, weights, x)
        return communication.all_reduce_sum([y])[0], back

    def backward(back: Any, cotangent: jax.Array) -> tuple[Any, jax.Array]:
        gradients, x = back(cotangent)
        if constant:
            return gradients, x
        leaves, tree = jax.tree.flatten(gradients)
        x, *leaves = communication.after([x, *leaves])
        return jax.tree.unflatten(tree, leaves), communication.all_reduce_sum([x])[0]

    summed.defvjp(forward, backward)
    return summed(weights, x)


class SplitAttention(models.Attention):
    """Some of the heads; the bias of the output layer is added once, after the sum."""

    def __init__(self, whole: models.Attention, communication: communicate.Communication) -> None:
        self.heads = whole.heads // communication.num_ranks
        self.statistic, self.qkv, self.out = whole.statistic, whole.qkv, whole.out
        self.communication = communication

    def __call__(self, x: jax.Array, batch: models.Batch, name: str) -> jax.Array:
        """x [batch, length, width], whole."""

        def partial(weights: Any, x: jax.Array) -> jax.Array:
            qkv, out = weights
            return dense(self.mix(dense(x, *qkv), batch, name), out)

        weights = (weights_of(self.qkv), self.out.kernel[...])
        summed = half_block(self.communication, partial, weights, x)
        return summed + self.out.bias[...].astype(summed.dtype)


class SplitFeedforward(nnx.Module):
    """Some of the hidden units; the bias of `down` is added once, after the sum."""

    def __init__(self, whole: models.Feedforward, communication: communicate.Communication) -> None:
        self.up, self.down = whole.up, whole.down
        self.communication = communication

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [batch, length, width], whole."""

        def partial(weights: Any, x: jax.Array) -> jax.Array:
            up, down = weights
            return dense(jax.nn.gelu(dense(x, *up), approximate=False), down)

        weights = (weights_of(self.up), self.down.kernel[...])
        summed = half_block(self.communication, partial, weights, x)
        return summed + self.down.bias[...].astype(summed.dtype)


class SplitMlp(nnx.Module):
    """Layers in pairs: the first by columns, the second by rows. One that is left over is whole on every rank."""

    def __init__(self, whole: models.Mlp, communication: communicate.Communication) -> None:
        self.depth, self.compute, self.head = whole.depth, whole.compute, whole.head
        for i in range(whole.depth):
            setattr(self, f"layer{i}", getattr(whole, f"layer{i}"))
        self.communication = communication

    def __call__(self, batch: models.Batch, tap: models.Tap = models.no_tap) -> jax.Array:
        """Logits of a batch."""
        x = batch["inputs"].astype(self.compute)
        names = [*(f"layer{i}" for i in range(self.depth)), "head"]
        for first, second in zip(names[::2], names[1::2], strict=False):
            x = self._pair(getattr(self, first), getattr(self, second), x, first == names[0])
            x = x if second == "head" else jax.nn.relu(x)
            tap(second, x)
        if len(names) % 2:
            x = self.head(x)
        tap("logits", x)
        return x

    def _pair(self, first: nnx.Linear, second: nnx.Linear, x: jax.Array, constant: bool) -> jax.Array:
        def partial(weights: Any, x: jax.Array) -> jax.Array:
            own, other = weights
            return dense(jax.nn.relu(dense(x, *own)), other)

        weights = (weights_of(first), second.kernel[...])
        summed = half_block(self.communication, partial, weights, x, constant)
        return summed + second.bias[...].astype(summed.dtype)


class OrderedEmbedding(nnx.Embed):
    """The tied embedding, whose gradient as output layer is done before the sums of the backward pass (`serial`)."""

    def __init__(self, whole: nnx.Embed, communication: communicate.Communication) -> None:
        types = {"dtype": whole.dtype, "param_dtype": whole.param_dtype}
        super().__init__(whole.num_embeddings, whole.features, **types, rngs=nnx.Rngs(0))
        self.communication = communication

    def attend(self, query: jax.Array) -> jax.Array:
        """query [batch, length, width] to logits."""

        def product(table: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.dot(x.astype(self.dtype), table.astype(self.dtype).T)

        def backward(back: Any, cotangent: jax.Array) -> Any:
            return tuple(self.communication.after(back(cotangent)))

        ordered = jax.custom_vjp(product)
        ordered.defvjp(functools.partial(jax.vjp, product), backward)
        return ordered(self.embedding[...], query)


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x @ kernel + bias in the dtype of x, as nnx.Linear."""
    y = jax.lax.dot_general(x, kernel.astype(x.dtype), (((x.ndim - 1,), (0,)), ((), ())))
    return y if bias is None else y + bias.astype(x.dtype)


def weights_of(linear: nnx.Linear) -> tuple[jax.Array, jax.Array]:
    """Kernel and bias."""
    return linear.kernel[...], linear.bias[...]


def _cuts(workload: spec.Workload) -> dict[str, str]:
    """Parameter -> how it is cut; those that are whole are missing."""
    names = [tensor.name for tensor in workload.parameters()]
    if workload.name == "transformer":
        return {name: cut for name in names for end, cut in _TRANSFORMER.items() if name.endswith(end)}
    ordered = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    found = {}
    for first, second in zip(ordered[::2], ordered[1::2], strict=False):
        found |= {f"{first}.kernel": COLUMNS, f"{first}.bias": COLUMNS, f"{second}.kernel": ROWS}
    return found


def _split_mlp(model: models.Mlp, communication: communicate.Communication) -> nnx.Module:
    return SplitMlp(model, communication)


def _split_transformer(model: models.Transformer, communication: communicate.Communication) -> nnx.Module:
    for i in range(model.depth):
        block = getattr(model, f"block{i}")
        block.attention = SplitAttention(block.attention, communication)
        block.mlp = SplitFeedforward(block.mlp, communication)
    model.token_embedding = OrderedEmbedding(model.token_embedding, communication)
    return model
