"""Values that a program computed, against those of the framework that emitted it: what rounding explains.

Rounding explains what two orders of summation do to float32, and whatever more the gate allows the program's dtype on
this workload (`Program.tolerances`): a program that computes in bfloat16 has float32 outputs, and two XLA builds round
to bfloat16 in other places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xlacompare.core import errors, program

EPSILONS = 64  # of float32 against the largest element: two XLA builds order their sums differently


def check(inputs: tuple[program.Tensor, ...], arguments: list[np.ndarray]) -> None:
    """Raises BadInputError where values are missing or do not have the described type."""
    if len(inputs) != len(arguments):
        raise errors.BadInputError(f"{len(arguments)} values for {len(inputs)} inputs: capture the program with values")
    for place, (item, array) in enumerate(zip(inputs, arguments, strict=True)):
        if (item.dtype, item.shape) != (str(array.dtype), tuple(array.shape)):
            raise errors.BadInputError(
                f"input {place} ({item.name or item.role}) is {array.dtype}{list(array.shape)}, "
                f"the program takes {item.dtype}{list(item.shape)}"
            )


def judged(captured: program.Program, got: list[np.ndarray]) -> list[dict[str, Any]]:
    """Each output's error, and its share of what rounding explains."""
    before = {item.name: array for item, array in zip(captured.inputs, captured.arguments, strict=True) if item.name}
    exact = dict(zip((item.name for item in captured.outputs), captured.expected, strict=True))
    found = []
    for item, one in zip(captured.outputs, got, strict=True):
        other = exact[item.name].astype(np.float64)
        error = np.abs(one.astype(np.float64) - other) if one.shape == other.shape else np.full((), np.inf)
        allowed = np.asarray(_allowed(item, before, exact, captured.tolerances))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(error == 0, 0.0, error / allowed)
        scale = float(np.max(np.abs(other), initial=0.0)) or 1.0
        found.append(
            {
                "name": item.name,
                "role": item.role,
                "error": float(np.max(error, initial=0.0)) / scale,
                "of_allowed": float(np.max(np.nan_to_num(share, nan=np.inf), initial=0.0)),
            }
        )
    return found


def _allowed(
    item: program.Tensor,
    before: Mapping[str, np.ndarray],
    exact: Mapping[str, np.ndarray],
    tolerances: Mapping[str, float],
) -> np.ndarray:
    """Error that rounding explains, by element.

    AdamW's first update is learning rate * g / (|g| + eps): where g is no larger than its rounding error (the gradient
    of a key's bias is zero but for rounding), the error is as large as the update. Hence a parameter may differ by
    largest update * rounding of g / |g| more, at most twice the largest update.
    """
    base = _rounding(item.name, exact, tolerances)
    moments = [name for name in (f"mu of {item.name}", f"exp_avg of {item.name}") if name in exact]
    if item.role != "parameter" or not moments or item.name not in before:
        return np.asarray(base)
    update = float(np.max(np.abs(exact[item.name] - before[item.name]), initial=0.0))
    size = np.abs(exact[moments[0]].astype(np.float64))
    share = np.divide(_rounding(moments[0], exact, tolerances), size, out=np.full(size.shape, 2.0), where=size > 0)
    return np.asarray(base + update * np.minimum(share, 2.0))


def _rounding(name: str, exact: Mapping[str, np.ndarray], tolerances: Mapping[str, float]) -> float:
    array = exact[name]
    if not np.issubdtype(array.dtype, np.floating):
        return 0.0
    summed = EPSILONS * float(np.finfo(array.dtype).eps) * float(np.max(np.abs(array), initial=0.0))
    return max(summed, tolerances.get(name, 0.0))
