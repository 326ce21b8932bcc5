"""NumPy kernels of the tape: bfloat16 rounding, convolution, pooling, scatter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.special

SQRT_PI = np.pi**0.5


def to_bfloat16(value: np.ndarray) -> np.ndarray:
    """Nearest bfloat16 of each float32, ties to even, as float32 (bfloat16 is the upper half of float32's bits)."""
    value = np.ascontiguousarray(value, np.float32)
    bits = value.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(value), rounded.view(np.float32), value).reshape(value.shape)


def rounded(value: np.ndarray, narrow: bool) -> np.ndarray:
    """To bfloat16 where `narrow`, else unchanged."""
    return to_bfloat16(value) if narrow else value


def erf(x: np.ndarray) -> np.ndarray:
    """The error function in the dtype of `x`."""
    return scipy.special.erf(x)


def erf_derivative(x: np.ndarray) -> np.ndarray:
    """2 / sqrt(pi) * exp(-x^2)."""
    return x.dtype.type(2 / SQRT_PI) * np.exp(-x * x)


def _windows(x: np.ndarray, size: tuple[int, ...], stride: int, padding: int, fill: float) -> np.ndarray:
    """Views [batch, out height, out width, channel, size, size] of the padded image."""
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, size, (1, 2))[:, ::stride, ::stride]


def _offsets(shape: tuple[int, ...], out: tuple[int, ...], size: tuple[int, ...], stride: int) -> list[tuple]:
    """For each place of the window, the slices of the padded image that it visits."""
    return [
        (
            i,
            j,
            (
                slice(None),
                slice(i, i + stride * (out[1] - 1) + 1, stride),
                slice(j, j + stride * (out[2] - 1) + 1, stride),
            ),
        )
        for i in range(size[0])
        for j in range(size[1])
    ]


def conv2d(x: np.ndarray, kernel: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """[batch, height, width, in] with [kh, kw, in, out] to [batch, out height, out width, out], by one product."""
    windows = _windows(x, kernel.shape[:2], stride, padding, 0.0)
    columns = windows.reshape(-1, int(np.prod(windows.shape[3:])))
    return (columns @ kernel.transpose(2, 0, 1, 3).reshape(-1, kernel.shape[3])).reshape(*windows.shape[:3], -1)


def conv2d_to_kernel(
    gradient: np.ndarray, x: np.ndarray, shape: tuple[int, ...], stride: int, padding: int
) -> np.ndarray:
    """Gradient of the kernel, from the gradient of the output and the input."""
    windows = _windows(x, shape[:2], stride, padding, 0.0)
    columns = windows.reshape(-1, int(np.prod(windows.shape[3:])))
    product = columns.T @ gradient.reshape(-1, shape[3])
    return product.reshape(shape[2], shape[0], shape[1], shape[3]).transpose(1, 2, 0, 3)


def conv2d_to_input(
    gradient: np.ndarray, shape: tuple[int, ...], kernel: np.ndarray, stride: int, padding: int
) -> np.ndarray:
    """Gradient of the input, from the gradient of the output and the kernel."""
    columns = (gradient.reshape(-1, gradient.shape[3]) @ kernel.reshape(-1, kernel.shape[3]).T).reshape(
        *gradient.shape[:3], *kernel.shape[:3]
    )
    padded = np.zeros((shape[0], shape[1] + 2 * padding, shape[2] + 2 * padding, shape[3]), gradient.dtype)
    for i, j, place in _offsets(padded.shape, gradient.shape, kernel.shape[:2], stride):
        padded[place] += columns[:, :, :, i, j]
    return padded[:, padding : padding + shape[1], padding : padding + shape[2]]


def max_pool(x: np.ndarray, window: int, stride: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Maxima, and for each the place inside its window of the first maximum, counted row by row."""
    windows = _windows(x, (window, window), stride, padding, -np.inf)
    flat = windows.reshape(*windows.shape[:4], -1)
    winners = flat.argmax(-1)
    return np.take_along_axis(flat, winners[..., None], -1)[..., 0], winners


def max_pool_to_input(
    gradient: np.ndarray, winners: np.ndarray, shape: tuple[int, ...], window: int, stride: int, padding: int
) -> np.ndarray:
    """Gradient of the input: each output's gradient goes to its winner."""
    padded = np.zeros((shape[0], shape[1] + 2 * padding, shape[2] + 2 * padding, shape[3]), gradient.dtype)
    for i, j, place in _offsets(padded.shape, gradient.shape, (window, window), stride):
        padded[place] += np.where(winners == i * window + j, gradient, 0)
    return padded[:, padding : padding + shape[1], padding : padding + shape[2]]


def scatter_rows(
    table: np.ndarray, ids: np.ndarray, rows: np.ndarray, rounding: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Sum of `rows` [n, features] into zeros like `table` at `ids` [n], rounded after every addition.

    Each pass adds at most one row to any place: the first occurrence of every id, then the second, and so on.
    """
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    first = np.searchsorted(sorted_ids, sorted_ids)
    rank = np.arange(len(ids)) - first
    total = np.zeros_like(table)
    for turn in range(int(rank.max()) + 1):
        chosen = order[rank == turn]
        total[ids[chosen]] = rounding(total[ids[chosen]] + rows[chosen])
    return total
