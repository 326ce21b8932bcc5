"""A small reverse-mode tape in NumPy: the reference that no framework had a hand in.

Gradients follow the chain rule by hand-written adjoints (Griewank and Walther 2008, chapter 3), checked by central
differences in the tests. The tape also rounds: in `float32` every value is float32, in `bfloat16` every value lies in a
float32 array and is rounded to the nearest bfloat16 (ties to even) after each operation, forward and backward, except
where the policy of `spec.DTYPES` keeps float32. What such a run loses against float64 is the dtype's natural error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlacompare.workloads import spec, tape_kernels, tape_node


class Tape:
    """Operations that record themselves, in one precision.

    Attributes:
      precision: One of `spec.DTYPES`.
      wide: NumPy dtype of parameters, statistics, softmax and loss.
      forward_flops, backward_flops: Of matrix products and convolutions so far; a multiply-add counts 2.
      product_elements: Elements that matrix products and convolutions have put out so far, forward.
    """

    def __init__(self, precision: str = "float64"):
        if precision not in spec.DTYPES:
            raise ValueError(f"precision must be one of {spec.DTYPES}, not {precision!r}")
        self.precision = precision
        self.wide = np.dtype(np.float64 if precision == "float64" else np.float32)
        self.forward_flops = 0
        self.backward_flops = 0
        self.product_elements = 0
        self._nodes: list[tape_node.Node] = []

    # Leaves, precision, backward.

    def parameter(self, value: np.ndarray) -> tape_node.Node:
        """A leaf that gets a gradient, in the wide dtype."""
        node = tape_node.Node(np.asarray(value, self.wide), narrow=False)
        node.needs_gradient = True
        return node

    def constant(self, value: np.ndarray) -> tape_node.Node:
        """A leaf without gradient, in the wide dtype."""
        return tape_node.Node(np.asarray(value, self.wide), narrow=False)

    def narrow(self, x: tape_node.Node) -> tape_node.Node:
        """To the dtype of matrix products: rounds under `bfloat16`, else nothing."""
        return (
            x if self.precision != "bfloat16" or x.narrow else self._record((x,), x.value, lambda g: (g,), narrow=True)
        )

    def widen(self, x: tape_node.Node) -> tape_node.Node:
        """To the dtype of statistics, softmax and loss."""
        return self._record((x,), x.value, lambda g: (g,), narrow=False) if x.narrow else x

    def backward(self, root: tape_node.Node) -> None:
        """Fills `gradient` of every node that the scalar `root` depends on."""
        root.gradient = np.ones_like(root.value)
        for node in reversed(self._nodes):
            if node.gradient is None or node.backward is None:
                continue
            for parent, gradient in zip(node.parents, node.backward(node.gradient), strict=True):
                if gradient is not None and parent.needs_gradient:
                    tape_node.accumulate(parent, gradient)

    def _record(
        self,
        parents: tuple[tape_node.Node, ...],
        value: np.ndarray,
        backward: tape_node.Backward,
        narrow: bool | None = None,
    ) -> tape_node.Node:
        if narrow is None:
            narrow = any(parent.narrow for parent in parents)
        node = tape_node.Node(tape_kernels.rounded(value, narrow), narrow, parents, backward)
        if node.needs_gradient:
            self._nodes.append(node)
        return node

    # Elementwise.

    def add(self, a: tape_node.Node, b: tape_node.Node) -> tape_node.Node:
        """Sum, with broadcasting."""

        def backward(g: np.ndarray) -> Sequence[np.ndarray | None]:
            return (
                tape_node.unbroadcast(g, a.shape, a.narrow) if a.needs_gradient else None,
                tape_node.unbroadcast(g, b.shape, b.narrow) if b.needs_gradient else None,
            )

        return self._record((a, b), a.value + b.value, backward)

    def multiply(self, a: tape_node.Node, b: tape_node.Node) -> tape_node.Node:
        """Product, with broadcasting."""

        def backward(g: np.ndarray) -> Sequence[np.ndarray | None]:
            return (
                tape_node.unbroadcast(g * b.value, a.shape, a.narrow) if a.needs_gradient else None,
                tape_node.unbroadcast(g * a.value, b.shape, b.narrow) if b.needs_gradient else None,
            )

        return self._record((a, b), a.value * b.value, backward)

    def scale(self, x: tape_node.Node, factor: float) -> tape_node.Node:
        """Product with a number, which is rounded to the dtype of `x` first."""
        number = tape_kernels.rounded(np.asarray(factor, x.value.dtype), x.narrow)
        return self._record((x,), x.value * number, lambda g: (g * number,))

    def shift(self, x: tape_node.Node, number: float) -> tape_node.Node:
        """Sum with a number."""
        return self._record((x,), x.value + x.value.dtype.type(number), lambda g: (g,))

    def relu(self, x: tape_node.Node) -> tape_node.Node:
        """max(x, 0), with derivative 0 at 0."""
        return self._record((x,), np.maximum(x.value, 0), lambda g: (g * (x.value > 0),))

    def erf(self, x: tape_node.Node) -> tape_node.Node:
        """The error function; derivative 2 / sqrt(pi) * exp(-x^2)."""
        return self._record((x,), tape_kernels.erf(x.value), lambda g: (g * tape_kernels.erf_derivative(x.value),))

    def gelu(self, x: tape_node.Node) -> tape_node.Node:
        """x * (1 + erf(x / sqrt(2))) / 2, exactly (Hendrycks and Gimpel 2016), each operation rounded by itself."""
        return self.multiply(self.scale(x, 0.5), self.shift(self.erf(self.scale(x, 0.5**0.5)), 1.0))

    # Shapes and indices.

    def reshape(self, x: tape_node.Node, shape: tuple[int, ...]) -> tape_node.Node:
        """The same elements in another shape."""
        return self._record((x,), x.value.reshape(shape), lambda g: (g.reshape(x.shape),))

    def transpose(self, x: tape_node.Node, axes: tuple[int, ...]) -> tape_node.Node:
        """Permuted axes."""
        return self._record((x,), x.value.transpose(axes), lambda g: (g.transpose(np.argsort(axes)),))

    def take(self, x: tape_node.Node, index: int) -> tape_node.Node:
        """x[index] along the first axis."""

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            gradient = np.zeros_like(x.value)
            gradient[index] = g
            return (gradient,)

        return self._record((x,), x.value[index], backward)

    def embedding(self, table: tape_node.Node, ids: np.ndarray) -> tape_node.Node:
        """Rows of `table` [rows, features] at `ids` of any shape."""

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            def rounding(value: np.ndarray) -> np.ndarray:
                return tape_kernels.rounded(value, table.narrow)

            return (tape_kernels.scatter_rows(table.value, ids.ravel(), g.reshape(ids.size, -1), rounding),)

        return self._record((table,), table.value[ids], backward)

    # Products.

    def matmul(self, a: tape_node.Node, b: tape_node.Node) -> tape_node.Node:
        """Matrix product over the last two axes; leading axes are equal, or `b` has none."""
        self.forward_flops += 2 * int(np.prod(a.shape)) * b.shape[-1]
        self.product_elements += int(np.prod(a.shape[:-1])) * b.shape[-1]

        def backward(g: np.ndarray) -> Sequence[np.ndarray | None]:
            need = (a.needs_gradient, b.needs_gradient)
            self.backward_flops += sum(need) * 2 * int(np.prod(a.shape)) * b.shape[-1]
            to_a = g @ b.value.swapaxes(-1, -2) if need[0] else None
            if not need[1]:
                return (to_a, None)
            if b.value.ndim == 2:
                return (to_a, a.value.reshape(-1, a.shape[-1]).T @ g.reshape(-1, g.shape[-1]))
            return (to_a, a.value.swapaxes(-1, -2) @ g)

        return self._record((a, b), a.value @ b.value, backward)

    def dense(self, x: tape_node.Node, kernel: tape_node.Node, bias: tape_node.Node) -> tape_node.Node:
        """x @ kernel + bias, with kernel [in, out] and bias [out] narrowed at use."""
        return self.add(self.matmul(x, self.narrow(kernel)), self.narrow(bias))

    def conv2d(self, x: tape_node.Node, kernel: tape_node.Node, stride: int, padding: int) -> tape_node.Node:
        """Cross-correlation of [batch, height, width, in] with [kh, kw, in, out]; `padding` zeros on every side."""
        value = tape_kernels.conv2d(x.value, kernel.value, stride, padding)
        flops = 2 * value.size * int(np.prod(kernel.shape[:3]))
        self.forward_flops += flops
        self.product_elements += value.size

        def backward(g: np.ndarray) -> Sequence[np.ndarray | None]:
            need = (x.needs_gradient, kernel.needs_gradient)
            self.backward_flops += sum(need) * flops
            return (
                tape_kernels.conv2d_to_input(g, x.shape, kernel.value, stride, padding) if need[0] else None,
                tape_kernels.conv2d_to_kernel(g, x.value, kernel.shape, stride, padding) if need[1] else None,
            )

        return self._record((x, kernel), value, backward)

    # Normalisation, pooling, attention, loss.

    def layer_norm(self, x: tape_node.Node, scale: tape_node.Node, bias: tape_node.Node, eps: float) -> tape_node.Node:
        """(x - mean) / sqrt(var + eps) * scale + bias over the last axis (Ba et al. 2016), computed wide."""
        normalised, _, _ = self._normalise(self.widen(x), (-1,), eps)
        return self._as(x, self.add(self.multiply(normalised, scale), bias))

    def batch_norm(
        self, x: tape_node.Node, scale: tape_node.Node, bias: tape_node.Node, eps: float
    ) -> tuple[tape_node.Node, np.ndarray, np.ndarray]:
        """Normalises each channel (last axis) by its batch mean and biased variance (Ioffe and Szegedy 2015), wide.

        Returns:
          The output, and the batch's mean and variance [channel].
        """
        axes = tuple(range(x.value.ndim - 1))
        normalised, mean, var = self._normalise(self.widen(x), axes, eps)
        return self._as(x, self.add(self.multiply(normalised, scale), bias)), mean.ravel(), var.ravel()

    def _normalise(
        self, x: tape_node.Node, axes: tuple[int, ...], eps: float
    ) -> tuple[tape_node.Node, np.ndarray, np.ndarray]:
        """(x - mean) / sqrt(var + eps), the variance as the mean of squared deviations."""
        mean = x.value.mean(axes, keepdims=True)
        centred = x.value - mean
        var = (centred * centred).mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(var + x.value.dtype.type(eps))
        value = centred * inverse

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            along = (g * value).mean(axes, keepdims=True)
            return (inverse * (g - g.mean(axes, keepdims=True) - value * along),)

        return self._record((x,), value, backward), mean, var

    def _as(self, like: tape_node.Node, x: tape_node.Node) -> tape_node.Node:
        return self.narrow(x) if like.narrow else x

    def softmax(self, x: tape_node.Node) -> tape_node.Node:
        """Softmax over the last axis, computed wide."""
        source = self.widen(x)
        exponents = np.exp(source.value - source.value.max(-1, keepdims=True))
        value = exponents / exponents.sum(-1, keepdims=True)

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            return (value * (g - (g * value).sum(-1, keepdims=True)),)

        return self._as(x, self._record((source,), value, backward))

    def causal(self, x: tape_node.Node) -> tape_node.Node:
        """Scores [..., query, key] with minus infinity where the key comes after the query."""
        seen = np.tril(np.ones(x.shape[-2:], bool))
        return self._record(
            (x,), np.where(seen, x.value, x.value.dtype.type(-np.inf)), lambda g: (np.where(seen, g, 0),)
        )

    def max_pool(self, x: tape_node.Node, window: int, stride: int, padding: int) -> tape_node.Node:
        """Maximum over square windows of [batch, height, width, channel]; a tie's gradient goes to the first."""
        value, winners = tape_kernels.max_pool(x.value, window, stride, padding)

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            return (tape_kernels.max_pool_to_input(g, winners, x.shape, window, stride, padding),)

        return self._record((x,), value, backward)

    def mean_pool(self, x: tape_node.Node) -> tape_node.Node:
        """Mean over height and width: [batch, height, width, channel] to [batch, channel], computed wide."""
        source = self.widen(x)
        count = x.shape[1] * x.shape[2]

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            return (np.broadcast_to((g / count)[:, None, None], x.shape),)

        return self._as(x, self._record((source,), source.value.mean((1, 2)), backward))

    def cross_entropy(self, logits: tape_node.Node, labels: np.ndarray) -> tape_node.Node:
        """Mean over all examples of -log softmax(logits)[label], computed wide; labels have the leading shape."""
        source = self.widen(logits)
        shifted = source.value - source.value.max(-1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(-1, keepdims=True))
        index = labels[..., None].astype(np.intp)
        losses = (log_sum - np.take_along_axis(shifted, index, -1))[..., 0]

        def backward(g: np.ndarray) -> Sequence[np.ndarray]:
            gradient = np.exp(shifted - log_sum)
            np.put_along_axis(gradient, index, np.take_along_axis(gradient, index, -1) - 1, -1)
            return (gradient * (g / losses.size),)

        return self._record((source,), np.asarray(losses.mean(dtype=self.wide)), backward)
