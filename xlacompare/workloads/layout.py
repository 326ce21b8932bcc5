"""Declared layout rules: how each kind of tensor lies in each model library.

The neutral layout is Flax's; `to_framework` and `from_framework` are inverse to each other, tested so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# rule -> (neutral to framework, framework to neutral)
_RULES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "identity": (lambda a: a, lambda a: a),
    "transpose": (lambda a: a.T, lambda a: a.T),
    "hwio_to_oihw": (lambda a: a.transpose(3, 2, 0, 1), lambda a: a.transpose(2, 3, 1, 0)),
    "nhwc_to_nchw": (lambda a: a.transpose(0, 3, 1, 2), lambda a: a.transpose(0, 2, 3, 1)),
}

# kind of tensor -> convention -> rule
LAYOUTS: dict[str, dict[str, str]] = {
    "dense": {"flax": "identity", "torch": "transpose"},
    "conv": {"flax": "identity", "torch": "hwio_to_oihw"},
    "embedding": {"flax": "identity", "torch": "identity"},
    "vector": {"flax": "identity", "torch": "identity"},
    "image": {"flax": "identity", "torch": "nhwc_to_nchw"},
}


def to_framework(array: np.ndarray, kind: str, convention: str) -> np.ndarray:
    """Contiguous copy of a neutral array in the layout of `convention` ("flax" or "torch")."""
    return np.array(_RULES[LAYOUTS[kind][convention]][0](array), order="C")


def from_framework(array: np.ndarray, kind: str, convention: str) -> np.ndarray:
    """Contiguous copy of a framework's array in the neutral layout."""
    return np.array(_RULES[LAYOUTS[kind][convention]][1](array), order="C")
