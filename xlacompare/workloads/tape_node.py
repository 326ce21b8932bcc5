"""A value on the tape, and how gradients reach it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from xlacompare.workloads import tape_kernels

Backward = Callable[[np.ndarray], Sequence["np.ndarray | None"]]


class Node:
    """A value on the tape.

    Attributes:
      value: The array; float32 where `narrow`.
      narrow: True where the value is rounded to bfloat16.
      gradient: Of the root with respect to this node; None before `Tape.backward`, or where no gradient flows.
    """

    def __init__(
        self, value: np.ndarray, narrow: bool, parents: tuple[Node, ...] = (), backward: Backward | None = None
    ):
        self.value = value
        self.narrow = narrow
        self.parents = parents
        self.backward = backward
        self.needs_gradient: bool = any(parent.needs_gradient for parent in parents)
        self.gradient: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape


def accumulate(node: Node, gradient: np.ndarray) -> None:
    """Adds to a node's gradient, rounded as its value is."""
    gradient = tape_kernels.rounded(gradient, node.narrow)
    node.gradient = gradient if node.gradient is None else tape_kernels.rounded(node.gradient + gradient, node.narrow)


def unbroadcast(gradient: np.ndarray, shape: tuple[int, ...], narrow: bool) -> np.ndarray:
    """Sums a gradient over the axes along which its operand was broadcast.

    Over leading axes (a bias) a narrow sum is rounded after every row: XLA on CPU and JAX's transpose of a broadcast do
    add up in bfloat16, and lose 5 times as much on 512 rows as a sum that is rounded once.
    """
    leading = gradient.ndim - len(shape)
    if leading:
        rows = gradient.reshape(-1, *gradient.shape[leading:])
        gradient = _sum_rounded(rows) if narrow else rows.sum(0)
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(axes, keepdims=True) if axes else gradient


def _sum_rounded(rows: np.ndarray) -> np.ndarray:
    total = np.zeros_like(rows[0])
    for row in rows:
        total = tape_kernels.to_bfloat16(total + row)
    return total
