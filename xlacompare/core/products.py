"""Matrix products and convolutions: their FLOPs by one rule, and a form in which two programs' products can be matched.

The rule, for every front end: a multiply-add counts 2, and positions of a convolution that fall on padding or between
dilated elements count nothing, as in XLA's HloCostAnalysis. So the gradients of a convolution, strided or not, have as
many FLOPs as the convolution.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

DOT, CONVOLUTION = "dot", "convolution"
Form = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """One matrix product or convolution of a step.

    Attributes:
      opcode: DOT or CONVOLUTION.
      form: What stays when operands are transposed, axes folded or layouts changed, see `dot_form`,
        `convolution_form`.
      flops: Of one run.
      shapes: For people.
      layer: Of the model; "" where unknown.
    """

    opcode: str
    form: Form
    flops: int
    shapes: str
    layer: str = ""


def dot_form(batch: int, rows: int, columns: int, contracted: int) -> Form:
    """(batch, the smaller and the larger free extent, the contracted one), each the product of its axes.

    A program may make the transposed result, or fold batch and length into one axis: it is the same work.
    """
    return batch, min(rows, columns), max(rows, columns), contracted


def dot_extents(
    left: Sequence[int], right: Sequence[int], batch_axes: Iterable[int], contracted_axes: Iterable[int]
) -> tuple[int, int, int, int]:
    """Batch, rows, columns and contracted extent of a product of two shapes; both kinds of axes are the left one's."""
    batch, contracted = (math.prod(left[axis] for axis in axes) for axes in (batch_axes, contracted_axes))
    rows, columns = (math.prod(shape) // max(1, batch * contracted) for shape in (left, right))
    return batch, rows, columns, contracted


def dot(batch: int, rows: int, columns: int, contracted: int, shapes: str = "", layer: str = "") -> Product:
    """[batch, rows, contracted] x [batch, contracted, columns]."""
    text = shapes or f"[{rows},{contracted}] x [{contracted},{columns}]" + (f", {batch} times" if batch > 1 else "")
    flops = 2 * batch * rows * columns * contracted
    return Product(DOT, dot_form(batch, rows, columns, contracted), flops, text, layer)


def convolution_form(result: Iterable[int]) -> Form:
    """Extents of the result without ones, sorted: the same whether channels come first or last."""
    return tuple(sorted(extent for extent in result if extent != 1))


@dataclasses.dataclass(frozen=True)
class Window:
    """A convolution along one axis: extents of input, kernel and result, and how the kernel moves.

    Attributes:
      pad: Positions before the first element of the input.
      hole, spread: Dilation of the input and of the kernel.
    """

    size: int
    kernel: int
    result: int
    stride: int = 1
    pad: int = 0
    hole: int = 1
    spread: int = 1

    @property
    def pairs(self) -> int:
        """Pairs of result and kernel positions that meet an element of the input."""
        count = 0
        for tap in range(self.kernel):
            for place in range(self.result):
                at = place * self.stride + tap * self.spread - self.pad
                count += 0 <= at <= (self.size - 1) * self.hole and at % self.hole == 0
        return count


def convolution_flops(batch: int, features_in: int, features_out: int, windows: Sequence[Window]) -> int:
    """`features_in`: those that one output feature reads (all of them divided by the groups)."""
    return 2 * batch * features_in * features_out * math.prod(window.pairs for window in windows)
