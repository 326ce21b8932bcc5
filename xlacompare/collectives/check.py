"""Compares what a rank got with what it must get, and says where the first difference is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlacompare.collectives import inputs, reference, table
from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests

# Distance from 1 to the next number.
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """How a rank's output compares.

    Attributes:
      wrong: Elements that differ; all of them where shape or type is wrong.
      checked: Elements that were compared, pad included.
      message: The first difference; empty where there is none.
    """

    wrong: int
    checked: int
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)


def compare(request: requests.Request, rank: int, got: NDArray, seed: int) -> CheckResult:
    """Checks every element of a rank's output, pad included.

    Exact, but for the mean over a number of ranks that is no power of two: dividing by it and multiplying by its
    reciprocal, both legal, differ by up to 1.5 machine epsilon (three roundings of half an epsilon); 2 are allowed.

    Args:
      request: The collective.
      rank: Global rank.
      got: Its output, 1-D, in the request's dtype; bfloat16 as ml_dtypes' type or as float32.
      seed: The seed that `inputs.values` took.
    """
    got = np.asarray(got)
    number = table.output_count(request)
    problem = _form_problem(request, got, number)
    if problem:
        return CheckResult(max(number, 1), number, f"rank {rank}: {problem}")
    slack = _slack(request)
    wrong, first = 0, ""
    for start, piece in reference.pieces(request, rank, seed):
        found = got[start : start + len(piece)].astype(piece.dtype, copy=False)
        bad = _beyond(found, piece, slack) if slack else found != piece
        if bad.any():
            if not wrong:
                at = int(bad.argmax())
                first = f"rank {rank}, index {start + at}: got {_text(found[at])}, expected {_text(piece[at])}"
            wrong += int(bad.sum())
    return CheckResult(wrong, number, f"{first} (first of {wrong} wrong)" if wrong else "")


def merge(results: list[CheckResult]) -> CheckResult:
    """Counts of several ranks together, with the first message."""
    messages = [result.message for result in results if result.wrong]
    wrong, checked = (sum(getattr(result, name) for result in results) for name in ("wrong", "checked"))
    return CheckResult(wrong, checked, messages[0] if messages else "")


def _form_problem(request: requests.Request, got: NDArray, number: int) -> str:
    if got.shape != (number,):
        return f"the output's shape is {got.shape}, expected ({number},)"
    if got.size and got.dtype.name not in (request.dtype, inputs.numpy_dtype(request.dtype).name):
        return f"the output's type is {got.dtype.name}, expected {request.dtype}"
    return ""


def _slack(request: requests.Request) -> float:
    n = meshes.group_size(request.mesh, request.axis)
    return 2 * _EPSILON[request.dtype] if request.reduction == "mean" and n & (n - 1) else 0.0


def _beyond(found: NDArray, piece: NDArray, slack: float) -> NDArray[np.bool_]:
    """Where the relative difference exceeds the slack; a NaN or an infinity always does."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(found.astype(np.float64) - piece)
        return ~(difference <= slack * np.abs(piece.astype(np.float64)))


def _text(value: Any) -> str:
    return str(value.item())
