"""The census of what JAX dispatches where nothing is compiled as a whole: the primitives of one step, by a trace of it.

The trace (`jax.make_jaxpr`) runs nothing and drops nothing: a product whose result nobody reads is dispatched too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from xlacompare.core import census, products, tally

_TYPES = {"float": "f", "int": "s", "uint": "u", "bfloat": "bf", "complex": "c"}
_CALLS = (
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat",
    "checkpoint",
    "scan",
    "shard_map",
)
_LOOPS = ("while", "cond")


def of_jaxpr(jaxpr: Any) -> census.Census:
    """Counts a closed jaxpr through the ones that it calls; a scan's as often as it runs."""
    found = tally.Tally()
    for equation, times in _walk(jaxpr.jaxpr, 1):
        found.unknown_trips += times is None
        _count(found, equation, 1 if times is None else times)
    return found.census()


def _walk(jaxpr: Any, times: int | None) -> Iterator[tuple[Any, int | None]]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [part for value in equation.params.values() for part in _jaxprs(value)]
        if name in _LOOPS:
            for part in inner:
                yield from _walk(part, None)
        elif inner and name.startswith(_CALLS):
            again = None if times is None else times * int(equation.params.get("length", 1))
            yield from _walk(inner[0], again)
        else:  # also reductions and scatters, whose functions are no part of the program
            yield equation, times


def _jaxprs(value: Any) -> list[Any]:
    if hasattr(value, "eqns"):
        return [value]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [part for item in value for part in _jaxprs(item)] if isinstance(value, tuple | list) else []


def _count(found: tally.Tally, equation: Any, times: int) -> None:
    name = equation.primitive.name
    given, got = (
        [item.aval for item in side if hasattr(item.aval, "shape")] for side in (equation.invars, equation.outvars)
    )
    moved = sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in (*given, *got))
    text = f"{' x '.join(map(_text, given))} -> {', '.join(map(_text, got))}"
    found.opcodes[name] += times
    found.bytes += times * moved
    if name == "convert_element_type" and given[0].dtype != got[0].dtype:
        found.converts[f"{_type(given[0].dtype)} -> {_type(got[0].dtype)}"] += times
    if name in ("transpose", "copy"):
        found.move(name, text, moved, times)
    if name in _PRODUCTS:
        product = _PRODUCTS[name](equation.params, *(tuple(aval.shape) for aval in (*given[:2], got[0])))
        precision = str(equation.params.get("precision") or "")
        found.multiply(dataclasses.replace(product, shapes=text), _type(got[0].dtype), precision, times=times)


Shape = tuple[int, ...]


def _dot(params: dict[str, Any], left: Shape, right: Shape, result: Shape) -> products.Product:
    (contracted, _), (batch, _) = params["dimension_numbers"]
    return products.dot(*products.dot_extents(left, right, batch, contracted))


def _convolution(params: dict[str, Any], left: Shape, right: Shape, result: Shape) -> products.Product:
    numbers = params["dimension_numbers"]
    windows = [
        products.Window(
            left[numbers.lhs_spec[2 + i]],
            right[numbers.rhs_spec[2 + i]],
            result[numbers.out_spec[2 + i]],
            params["window_strides"][i],
            params["padding"][i][0],
            params["lhs_dilation"][i],
            params["rhs_dilation"][i],
        )
        for i in range(len(left) - 2)
    ]
    batch, features = (result[axis] for axis in numbers.out_spec[:2])
    flops = products.convolution_flops(batch, right[numbers.rhs_spec[1]], features, windows)
    return products.Product(products.CONVOLUTION, products.convolution_form(result), flops, "")


_PRODUCTS = {"dot_general": _dot, "conv_general_dilated": _convolution}


def _type(dtype: Any) -> str:
    """XLA's name: "float32" is "f32"."""
    name = str(dtype)
    kind = name.rstrip("0123456789")
    return "pred" if name == "bool" else f"{_TYPES.get(kind, kind)}{name[len(kind) :]}"


def _text(aval: Any) -> str:
    return f"{_type(aval.dtype)}[{','.join(map(str, aval.shape))}]"
