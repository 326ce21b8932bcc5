"""What a workload's step multiplies: each layer forward, and backward by its inputs and by its kernel."""

from __future__ import annotations

from xlacompare.core import products


def dense(layer: str, rows: int, fan_in: int, fan_out: int, first: bool = False) -> list[products.Product]:
    """A dense layer; the first one has no gradient by its inputs, which nobody needs."""
    forward = products.dot(1, rows, fan_out, fan_in, layer=layer)
    by_kernel = products.dot(1, fan_in, fan_out, rows, layer=layer)
    return [forward, by_kernel, *([] if first else [products.dot(1, rows, fan_in, fan_out, layer=layer)])]


def matmul(layer: str, batch: int, rows: int, contracted: int, columns: int) -> list[products.Product]:
    """A product of two activations, [batch, rows, contracted] x [batch, contracted, columns], with both gradients."""
    sizes = (rows, columns, contracted), (rows, contracted, columns), (contracted, columns, rows)
    return [products.dot(batch, *size, layer=layer) for size in sizes]


def convolution(
    layer: str, batch: int, features: tuple[int, int], window: products.Window, first: bool = False
) -> list[products.Product]:
    """A square convolution, `window` along each of its two axes; features: in and out."""
    fan_in, fan_out = features
    flops = products.convolution_flops(batch, fan_in, fan_out, [window, window])
    given, kernel, result = (
        (batch, window.size, window.size, fan_in),
        (window.kernel, window.kernel, fan_in, fan_out),
        (batch, window.result, window.result, fan_out),
    )
    made = [(result, f"{_text(given)} x {_text(kernel)}"), (kernel, f"{_text(given)} x {_text(result)}")]
    if not first:
        made.append((given, f"{_text(result)} x {_text(kernel)}"))
    return [
        products.Product(
            products.CONVOLUTION, products.convolution_form(shape), flops, f"{text} -> {_text(shape)}", layer
        )
        for shape, text in made
    ]


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
