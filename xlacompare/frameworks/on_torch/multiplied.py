"""Matrix products and convolutions among aten's operations, by the rule of `core.products`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import flop_counter

from xlacompare.core import products
from xlacompare.frameworks.on_torch import counters

# Operation -> places of its two factors among the arguments.
_MATRICES = {
    "aten.mm": 0,
    "aten.bmm": 0,
    "aten.addmm": 1,
    "aten.baddbmm": 1,
    "aten.mv": 0,
    "aten.dot": 0,
    "aten.addmv": 1,
}


def products_of(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], got: Sequence[torch.Tensor]
) -> list[products.Product]:
    """Products in one call of an operation; [] for most operations.

    What torch's own table of FLOPs (torch.utils.flop_counter) has beyond ours counts by that table, in a form of its
    own, which matches no other program's.
    """
    if name in _MATRICES:
        first = _MATRICES[name]
        return [_matrix(*args[first : first + 2], got)]
    if name.startswith("aten._scaled_dot_product_"):
        factors = [value for value in args if isinstance(value, torch.Tensor)]
        return _attention_backward(factors) if "_backward" in name else _attention(factors)
    if name in _CONVOLUTIONS:
        return _CONVOLUTIONS[name](args, got)
    formula = flop_counter.flop_registry.get(getattr(torch.ops.aten, name.removeprefix("aten."), None))
    if formula is None or not name.startswith("aten."):
        return []
    flops = int(formula(*args, **kwargs, out_val=got[0] if len(got) == 1 else tuple(got)))
    return [products.Product(products.DOT, (flops,), flops, f"{name} -> {described(got[:1])}")]


def _matrix(left: torch.Tensor, right: torch.Tensor, got: Sequence[torch.Tensor]) -> products.Product:
    batch = left.shape[0] if left.dim() == 3 else 1
    rows = left.shape[-2] if left.dim() > 1 else 1
    columns = right.shape[-1] if right.dim() > 1 else 1
    text = f"{described((left, right))} -> {described(got[:1])}"
    return products.dot(batch, rows, columns, left.shape[-1], text)


def _attention(factors: Sequence[torch.Tensor]) -> list[products.Product]:
    """A fused kernel of queries, keys and values, [batch, heads, length, features] each: scores, and heads."""
    q, k, v = factors[:3]
    pairs, rows, columns = q.shape[0] * q.shape[1], q.shape[2], k.shape[2]
    return [
        products.dot(pairs, rows, columns, q.shape[3], f"of the scores of {described((q, k))}"),
        products.dot(pairs, rows, v.shape[3], columns, f"of the heads of {described((q, k, v))}"),
    ]


def _attention_backward(factors: Sequence[torch.Tensor]) -> list[products.Product]:
    """Of the gradient and what went in: the four gradients, and the scores once more, which no kernel keeps."""
    _, q, k, v = factors[:4]
    pairs, rows, columns = q.shape[0] * q.shape[1], q.shape[2], k.shape[2]
    sizes = [
        (rows, columns, q.shape[3]),
        (rows, columns, v.shape[3]),
        (rows, q.shape[3], columns),
        (columns, q.shape[3], rows),
        (columns, v.shape[3], rows),
    ]
    return [products.dot(pairs, *size, f"of the backward pass of {described((q, k, v))}") for size in sizes]


def _convolution(args: tuple[Any, ...], got: Sequence[torch.Tensor]) -> list[products.Product]:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    inputs, weight, _, stride, padding, dilation, transposed = args[:7]
    flops = _flops(inputs.shape, weight.shape, got[0].shape[2:], (stride, padding, dilation), transposed)
    return [_product(flops, (inputs, weight), got[0])]


def _backward(args: tuple[Any, ...], got: Sequence[torch.Tensor]) -> list[products.Product]:
    """convolution_backward(grad_output, input, weight, bias_sizes, stride, ..., output_mask): one for each gradient."""
    gradient, inputs, weight, _, stride, padding, dilation, transposed = args[:8]
    wanted = args[10]
    flops = _flops(inputs.shape, weight.shape, gradient.shape[2:], (stride, padding, dilation), transposed)
    factors = (gradient, weight), (gradient, inputs)
    made = zip(factors, (inputs, weight), wanted[:2], strict=True)
    return [_product(flops, given, like) for given, like, asked in made if asked]


Window = tuple[Sequence[int], Sequence[int], Sequence[int]]  # stride, padding, dilation


def _flops(
    inputs: Sequence[int], weight: Sequence[int], result: Sequence[int], window: Window, transposed: bool
) -> int:
    """Of a convolution and of each of its gradients; a transposed one is the gradient by the inputs of a plain one."""
    large, small = (result, inputs[2:]) if transposed else (inputs[2:], result)
    axes = len(large)
    stride, padding, dilation = (_each(values, axes) for values in window)
    windows = [
        products.Window(large[i], weight[2 + i], small[i], stride[i], padding[i], spread=dilation[i])
        for i in range(axes)
    ]
    return products.convolution_flops(inputs[0], weight[1], weight[0], windows)


def _each(values: Sequence[int], axes: int) -> list[int]:
    return list(values) * axes if len(values) == 1 else list(values)


def _product(flops: int, given: Sequence[torch.Tensor], like: torch.Tensor) -> products.Product:
    """`like`: the result, or what has its shape and type."""
    text = f"{described(given)} -> {described([like])}"
    return products.Product(products.CONVOLUTION, products.convolution_form(like.shape), flops, text)


def described(found: Iterable[torch.Tensor]) -> str:
    """For people, in XLA's words: "f32[2,3] x f32[3,4]"."""
    return " x ".join(f"{counters.xla_type(t.dtype)}[{','.join(map(str, t.shape))}]" for t in found)


_CONVOLUTIONS: dict[str, Callable[[tuple[Any, ...], Sequence[torch.Tensor]], list[products.Product]]] = {
    "aten.convolution": _convolution,
    "aten.convolution_overrideable": _convolution,
    "aten.convolution_backward": _backward,
    "aten.convolution_backward_overrideable": _backward,
}
