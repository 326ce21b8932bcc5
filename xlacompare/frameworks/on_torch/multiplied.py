"""Matrix products and convolutions among aten's operations, by the rule of `core.products`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import flop_counter

from xlacompare.core import products

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
    own, which matches no other program's: its attention kernels, for example.
    """
    if name in _MATRICES:
        first = _MATRICES[name]
        return [_matrix(*args[first : first + 2], got)]
    if name in _CONVOLUTIONS:
        return _CONVOLUTIONS[name](args)
    formula = flop_counter.flop_registry.get(getattr(torch.ops.aten, name.removeprefix("aten."), None))
    if formula is None or not name.startswith("aten."):
        return []
    flops = int(formula(*args, **kwargs, out_val=got[0] if len(got) == 1 else tuple(got)))
    return [products.Product(products.DOT, (flops,), flops, f"{name} {_text(got[0].shape)}")]


def _matrix(left: torch.Tensor, right: torch.Tensor, got: Sequence[torch.Tensor]) -> products.Product:
    batch = left.shape[0] if left.dim() == 3 else 1
    rows = left.shape[-2] if left.dim() > 1 else 1
    columns = right.shape[-1] if right.dim() > 1 else 1
    return products.dot(batch, rows, columns, left.shape[-1], shapes=_text(got[0].shape))


def _convolution(args: tuple[Any, ...]) -> list[products.Product]:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    inputs, weight, _, stride, padding, dilation, transposed, extra, _ = args[:9]
    spatial = _result(inputs.shape[2:], weight.shape[2:], (stride, padding, dilation, extra), transposed)
    flops = _flops(inputs.shape, weight.shape, spatial, (stride, padding, dilation), transposed)
    features = weight.shape[1] * args[8] if transposed else weight.shape[0]
    return [_product(flops, (inputs.shape[0], features, *spatial))]


def _backward(args: tuple[Any, ...]) -> list[products.Product]:
    """convolution_backward(grad_output, input, weight, bias_sizes, stride, ..., output_mask): one for each gradient."""
    gradient, inputs, weight, _, stride, padding, dilation, transposed, _, _, wanted = args[:11]
    flops = _flops(inputs.shape, weight.shape, gradient.shape[2:], (stride, padding, dilation), transposed)
    return [_product(flops, shape) for shape, asked in zip((inputs.shape, weight.shape), wanted) if asked]


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


def _result(
    size: Sequence[int], kernel: Sequence[int], window: tuple[Sequence[int], ...], transposed: bool
) -> list[int]:
    stride, padding, dilation, extra = (_each(values, len(size)) for values in window)
    taps = [dilation[i] * (kernel[i] - 1) for i in range(len(size))]
    if transposed:
        return [(size[i] - 1) * stride[i] - 2 * padding[i] + taps[i] + extra[i] + 1 for i in range(len(size))]
    return [(size[i] + 2 * padding[i] - taps[i] - 1) // stride[i] + 1 for i in range(len(size))]


def _each(values: Sequence[int], axes: int) -> list[int]:
    return list(values) * axes if len(values) == 1 else list(values)


def _product(flops: int, result: Sequence[int]) -> products.Product:
    return products.Product(products.CONVOLUTION, products.convolution_form(result), flops, _text(result))


def _text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


_CONVOLUTIONS: dict[str, Callable[[tuple[Any, ...]], list[products.Product]]] = {
    "aten.convolution": _convolution,
    "aten.convolution_overrideable": _convolution,
    "aten.convolution_backward": _backward,
    "aten.convolution_backward_overrideable": _backward,
}
