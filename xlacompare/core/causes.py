"""What usually causes a difference, from its pattern. Hints for a person, never a verdict.

The sizes are those that the planted faults of tests/test_parity.py show on the `tiny` presets.
"""

from __future__ import annotations

import numpy as np

from xlacompare.core import parity


def likely_causes(
    kind: str, name: str, got: np.ndarray | None, expected: np.ndarray | None, before: np.ndarray | None = None
) -> list[str]:
    """Likely causes, the likeliest first.

    Args:
      kind: As in `parity.Difference`.
      name: The first array that differs.
      got: Its values; None where it is missing.
      expected: The reference's.
      before: Of a buffer: its value before the step.
    """
    if got is None or expected is None:
        return ["the model's names differ from the workload's: a module renamed, missing or not tapped"]
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        return _of_shapes(got, expected)
    if not np.isfinite(got).all():
        return ["overflow, a division by zero, or memory that was read before it was written"]
    by_kind = {"activation": _of_activation, "gradient": _of_gradient, "buffer": _of_buffer}
    found = _of_values(got, expected)
    if kind in by_kind:
        found += by_kind[kind](name, got, expected, before)
    elif kind in _FIXED:
        found += _FIXED[kind]
    return list(dict.fromkeys(found))


_FIXED = {
    "loss": ["reduction of the loss (mean over examples or tokens)", "labels shifted"],
    "update": ["momentum sense, weight decay (coupled or decoupled), place of eps, bias correction, learning rate"],
    "trace": [
        "the optimizer's state after the first step (momentum, second moment, step counter of the bias correction)",
        "order of the batches",
        "the state of a step that was not kept",
    ],
}


def _of_shapes(got: np.ndarray, expected: np.ndarray) -> list[str]:
    if sorted(got.shape) == sorted(expected.shape):
        return ["layout rule: axes are permuted (kernel transposed, HWIO/OIHW, NHWC/NCHW)"]
    if got.ndim == expected.ndim == 4:
        return ["padding or stride of a convolution or pool"]
    return ["a size of the model's configuration"]


def _of_values(got: np.ndarray, expected: np.ndarray) -> list[str]:
    """Patterns that any kind can show."""
    found = []
    if got.ndim >= 2 and got.shape[-1] == got.shape[-2] and _close(got.swapaxes(-1, -2), expected):
        found.append("kernel transposed")
    factor = _constant_ratio(got, expected)
    if factor is not None:
        found.append(f"scaled by {factor:.6g}: sum for mean, dropout not scaled by 1 / (1 - p), or a rate")
    if got.ndim and np.any((got == 0) != (expected == 0)) and _masked_elsewhere(got, expected):
        found.append("dropout mask: shifted, or drawn by the framework instead of injected")
    return found


def _of_activation(name: str, got: np.ndarray, expected: np.ndarray, before: np.ndarray | None) -> list[str]:
    error = parity.relative_error(got, expected)
    last = name.rsplit(".", 1)[-1]
    if error < 1e-5 and np.array_equal(got, got.astype(np.float32)):
        return ["computed in float32"]
    if last == "mlp" and error < 5e-2:
        tanh = "GELU tanh instead of erf" if error > 1e-6 else "GELU with an inexact erf (XLA's, about 1e-9)"
        return [tanh, "layer-norm epsilon"]
    if error < 5e-2:
        norm = "batch-norm epsilon, or the variance it normalises by" if got.ndim == 4 else "layer-norm epsilon"
        return [norm] if last not in ("logits", "pool") else [norm, "an inexact operation"]
    if got.ndim == 4:
        return ["padding SAME instead of explicit (differs at stride 2)", "stride", "kernel layout (HWIO/OIHW)"]
    if got.ndim == 3 and last not in ("attention", "mlp", "norm", "logits"):
        return ["dropout mask of this residual branch: shifted or left out", "the residual sum"]
    kernel = "kernel transposed, or another parameter in its place"
    if last != "attention":
        return [kernel]
    if got.ndim == 3 and parity.relative_error(got[:, -1], expected[:, -1]) < 1e-9:
        return ["causal mask: the last query, which sees every key, is right"]
    return [kernel, "dropout mask or scale of the attention"]


def _of_gradient(name: str, got: np.ndarray, expected: np.ndarray, before: np.ndarray | None) -> list[str]:
    if not got.any():
        return ["no gradient flows: detached, or the parameter is not in the graph"]
    if parity.relative_error(got, expected) < 1e-5:
        return ["an inexact derivative", "a float32 intermediate"]
    return ["a gradient added twice or not at all (tied parameters, a graph that was not cleared)"]


def _of_buffer(name: str, got: np.ndarray, expected: np.ndarray, before: np.ndarray | None) -> list[str]:
    if before is not None and np.array_equal(got, np.asarray(before, np.float64)):
        return ["running statistics were not updated (evaluation mode, or the new state was dropped)"]
    if name.endswith(".var") and parity.relative_error(got, expected) < 5e-2:
        return ["running variance is the unbiased one", "batch-norm momentum"]
    return ["batch-norm momentum inverted (1 - momentum for momentum)", "statistics in float32"]


def _close(got: np.ndarray, expected: np.ndarray) -> bool:
    return parity.relative_error(got, expected) < 1e-6


def _constant_ratio(got: np.ndarray, expected: np.ndarray) -> float | None:
    """The factor between two arrays where one fits all elements and is not 1."""
    norm = float((expected * expected).sum())
    if got.size < 2 or norm == 0:
        return None
    factor = float((got * expected).sum()) / norm
    return factor if abs(factor - 1) > 1e-3 and factor != 0 and _close(got, factor * expected) else None


def _masked_elsewhere(got: np.ndarray, expected: np.ndarray) -> bool:
    """Both have many exact zeros, about as many, at other places, and no sign of a relu (negative values are there)."""
    zeros = (float((got == 0).mean()), float((expected == 0).mean()))
    return min(zeros) > 0.01 and bool((got < 0).any())
