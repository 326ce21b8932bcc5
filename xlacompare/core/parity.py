"""Comparison of two sets of named arrays: the first that differs, by how much, and what usually causes that.

The error of an array is max|got - expected| / max|expected|: one number per tensor that does not explode where single
elements are near zero.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Difference:
    """One array that was compared.

    Attributes:
      name: Name of the array.
      error: Relative error; infinite for NaN, for another shape, and for a missing or extra name.
      limit: Largest error that passes.
      index: Where the error is largest; empty for a scalar or where there is no such place.
      got: Value there, as text; of another shape, the shape.
      expected: The same of the expected array.
      kind: What was compared: "activation", "loss", "gradient", "update", "buffer", "trace", "count".
    """

    name: str
    error: float
    limit: float
    index: tuple[int, ...]
    got: str
    expected: str
    kind: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; NaN is not."""
        return self.error <= self.limit


@dataclasses.dataclass(frozen=True)
class GateResult:
    """The verdict of a gate.

    Attributes:
      passed: Nothing failed and something was checked.
      checks: Arrays compared, by kind.
      first: The first failure in program order.
      failures: Failures, all kinds.
      exceptions: Operations that a framework composes differently, and why.
      causes: Likely causes of the first failure, the likeliest first.
      worst: Largest error by kind.
      facts: Further numbers: parameters, flops_per_step, update_elements, update_elements_eased.
    """

    passed: bool
    checks: dict[str, int]
    first: Difference | None
    failures: int
    exceptions: dict[str, str]
    causes: list[str]
    worst: dict[str, float]
    facts: dict[str, float] = dataclasses.field(default_factory=dict)

    def message(self) -> str:
        """One sentence for a person."""
        if self.first is None:
            return (
                f"gate passed: {sum(self.checks.values())} checks"
                if self.passed
                else "gate failed: nothing was checked"
            )
        first = self.first
        where = f" at {list(first.index)}" if first.index else ""
        text = f"gate failed at {first.kind} {first.name}: "
        if math.isinf(first.error):
            text += f"got {first.got}, expected {first.expected}{where}"
        else:
            text += f"relative error {first.error:.1e} > {first.limit:.1e} "
            text += f"(got {first.got}, expected {first.expected}{where})"
        if self.failures > 1:
            text += f"; {self.failures - 1} more differ"
        return text + (f"; likely: {'; or '.join(self.causes)}" if self.causes else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; infinite and NaN errors become text."""
        return _jsonable(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> GateResult:
        """Inverse of `to_dict`; unknown fields of later versions are ignored."""
        known = {field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields}
        if known["first"] is not None:
            first = dict(known["first"])
            first |= {"error": float(first["error"]), "limit": float(first["limit"]), "index": tuple(first["index"])}
            known["first"] = Difference(**first)
        known["worst"] = {kind: float(error) for kind, error in known["worst"].items()}
        return cls(**known)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """max|got - expected| / max|expected|.

    Infinite for NaN, infinities and another shape, and where `expected` is all zero and `got` is not.
    """
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape or not (np.isfinite(got).all() and np.isfinite(expected).all()):
        return math.inf
    error = float(np.abs(got - expected).max(initial=0.0))
    scale = float(np.abs(expected).max(initial=0.0))
    if scale == 0:
        return 0.0 if error == 0 else math.inf
    return error / scale


def difference(
    kind: str, name: str, got: np.ndarray, expected: np.ndarray, limit: float, error: float | None = None
) -> Difference:
    """Compares one array; `error` replaces the relative error where a kind measures it in another way."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        return Difference(name, math.inf, limit, (), f"shape {got.shape}", f"shape {expected.shape}", kind)
    if error is None or not np.isfinite(got).all():
        error = relative_error(got, expected)
    if got.size == 0:
        return Difference(name, error, limit, (), "nothing", "nothing", kind)
    with np.errstate(invalid="ignore"):  # of two infinities
        distance = np.abs(got - expected)
    place = np.unravel_index(int(np.where(np.isnan(distance), np.inf, distance).argmax()), got.shape)
    index = tuple(int(i) for i in place)
    return Difference(name, error, limit, index, f"{got[index]:.6g}", f"{expected[index]:.6g}", kind)


def compare(
    kind: str,
    got: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    order: Sequence[str],
    limits: float | Callable[[str], float],
) -> list[Difference]:
    """Compares arrays by name.

    Args:
      kind: What they are.
      got: What a framework gave.
      expected: The reference.
      order: Names in program order.
      limits: One limit, or a limit by name.

    Returns:
      One difference per name, in program order, then the names that are only in `got`. A name missing on either side
      has an infinite error.
    """
    results = []
    for name in order:
        limit = limits(name) if callable(limits) else limits
        if name in got and name in expected:
            results.append(difference(kind, name, got[name], expected[name], limit))
        else:
            here, there = ("present" if name in side else "nothing of this name" for side in (got, expected))
            results.append(Difference(name, math.inf, limit, (), here, there, kind))
    extra = sorted(set(got) - set(order))
    return results + [Difference(n, math.inf, 0.0, (), "present", "nothing of this name", kind) for n in extra]


def verdict(
    differences: Sequence[Difference],
    exceptions: Mapping[str, str],
    causes: Callable[[Difference], list[str]],
    facts: Mapping[str, float] | None = None,
) -> GateResult:
    """Sums up differences that stand in program order."""
    failed = [item for item in differences if not item.passed]
    checks: dict[str, int] = {}
    worst: dict[str, float] = {}
    for item in differences:
        checks[item.kind] = checks.get(item.kind, 0) + 1
        worst[item.kind] = max(worst.get(item.kind, 0.0), item.error)
    return GateResult(
        passed=bool(differences) and not failed,
        checks=checks,
        first=failed[0] if failed else None,
        failures=len(failed),
        exceptions=dict(exceptions),
        causes=causes(failed[0]) if failed else [],
        worst=worst,
        facts=dict(facts or {}),
    )
