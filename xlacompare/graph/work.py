"""FLOPs and bytes of instructions, by formula from their shapes."""

from __future__ import annotations

import math
import re

from xlacompare.core import products
from xlacompare.graph import modules

WINDOW = re.compile(r"(\w+)=(\S+)")
# What moves or renames nothing at run time, or is only a name.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "call", "while", "conditional"),
    *("partition-id", "replica-id", "optimization-barrier", "add-dependency", "async-done", "async-update"),
}


def numbers(text: str) -> tuple[int, ...]:
    """Numbers in braces: "{0,1}"."""
    return tuple(int(part) for part in re.findall(r"-?\d+", text))


def flops(home: modules.Computation, item: modules.Instruction) -> int:
    """Of a matrix product or convolution, a multiply-add counting 2; 0 for other instructions.

    By the rule of `core.products`.
    """
    if item.opcode == "dot":
        left = home.operands(item)[0].arrays[0]
        contracted = numbers(item.attributes.get("lhs_contracting_dims", ""))
        return 2 * item.arrays[0].elements * math.prod(left.shape[axis] for axis in contracted)
    if item.opcode == "convolution":
        return _convolution(home, item)
    return 0


def _convolution(home: modules.Computation, item: modules.Instruction) -> int:
    left, kernel = (operand.arrays[0].shape for operand in home.operands(item)[:2])
    result = item.arrays[0].shape
    inputs, kernels, outputs = re.split(r"_|->", item.attributes["dim_labels"])
    window = dict(WINDOW.findall(item.attributes.get("window", "").strip("{}")))
    spatial = sorted(label for label in inputs if label.isdigit())
    steps = len(spatial)
    strides = _extents(window.get("stride"), steps)
    pads = [int(pad.partition("_")[0]) for pad in window.get("pad", "x".join(["0_0"] * steps)).split("x")]
    holes, spread = _extents(window.get("lhs_dilate"), steps), _extents(window.get("rhs_dilate"), steps)
    windows = [
        products.Window(
            left[inputs.index(label)],
            kernel[kernels.index(label)],
            result[outputs.index(label)],
            strides[place],
            pads[place],
            holes[place],
            spread[place],
        )
        for place, label in enumerate(spatial)
    ]
    batch, features = result[outputs.index("b")], result[outputs.index("f")]
    return products.convolution_flops(batch, kernel[kernels.index("i")], features, windows)


def _extents(text: str | None, steps: int) -> list[int]:
    return [int(part) for part in text.split("x")] if text else [1] * steps


def product(home: modules.Computation, item: modules.Instruction) -> products.Product:
    """A matrix product or convolution as `core.products` has it."""
    return products.Product(item.opcode, _form(home, item), flops(home, item), shapes(home, item))


def _form(home: modules.Computation, item: modules.Instruction) -> products.Form:
    if item.opcode == products.CONVOLUTION:
        return products.convolution_form(item.arrays[0].shape)
    left, right = (operand.arrays[0].shape for operand in home.operands(item)[:2])
    axes = (numbers(item.attributes.get(name, "")) for name in ("lhs_batch_dims", "lhs_contracting_dims"))
    return products.dot_form(*products.dot_extents(left, right, *axes))


def moved_bytes(home: modules.Computation, item: modules.Instruction) -> int:
    """Bytes read and written by one instruction, each operand and the result once; 0 for what moves nothing."""
    if item.opcode in FREE:
        return 0
    return item.bytes + sum(operand.bytes for operand in home.operands(item))


def shapes(home: modules.Computation, item: modules.Instruction) -> str:
    """For people: "f32[2,3] x f32[3,4] -> f32[2,4]"."""
    given = " x ".join(str(array) for operand in home.operands(item) for array in operand.arrays)
    got = ", ".join(map(str, item.arrays))
    return f"{given} -> {got}" if given else got
