"""What may be said about an effect: `difference`, `no difference larger than X`, or `inconclusive`.

difference: the interval at the plan's alpha excludes no effect. no_difference: two one-sided tests (Schuirmann 1987;
the 90% interval lies inside the margin, in a plan of several looks the interval of its equivalence alpha). Else
inconclusive, with the number of units that would decide if the truth were what was seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from xlacompare.core import estimates, power, units
from xlacompare.core import plan as plans

Kind = Literal["difference", "no_difference", "inconclusive"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict on one effect.

    Attributes:
      kind: See the module.
      estimate: The effect with the interval of the plan's level (95% overall).
      margin: The X of `no difference larger than X`: a fraction on scale "log", seconds on scale "linear"; 0 for none.
      negligible: A difference whose interval lies inside the margin.
      launches_needed: For `inconclusive`, units (see `unit`) that would decide; None where that is unknown or too many.
      p_value: Two-sided, scaled to the whole plan (`Plan.overall`): at most 0.05 exactly where `kind` is a difference.
      equivalence_p: Of the two one-sided tests, scaled likewise.
      adjusted_p: `p_value` adjusted for its family; equal to it before.
      family: Name of the family and the method of adjustment; empty before.
      unit: "launches" or "block pairs".
    """

    kind: Kind
    estimate: estimates.Estimate
    margin: float
    negligible: bool
    launches_needed: int | None
    p_value: float
    equivalence_p: float
    adjusted_p: float
    family: str = ""
    unit: str = "launches"

    @property
    def decided(self) -> bool:
        """Whether it ends a plan."""
        return self.kind != "inconclusive"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return dataclasses.asdict(self)


def judge(estimate: estimates.Estimate, plan: plans.Plan, margin_s: float = 0.0) -> Verdict:
    """The verdict of a look.

    Args:
      estimate: The effect, at any level.
      plan: Gives alpha, margin (for ratios) and unit.
      margin_s: Margin of a difference in seconds; 0: `no_difference` is never said.
    """
    at_look = estimate.at_level(plan.level)
    margin = plan.margin if estimate.scale == "log" else margin_s
    bound = math.log1p(margin) if estimate.scale == "log" else margin
    p = plan.overall(at_look.p_value())
    equivalence = plan.overall(tost_p(at_look, bound), plan.equivalence_alpha)
    kind = _kind(p, equivalence)
    inside = bound > 0 and -bound < at_look.low and at_look.high < bound
    needed = _needed(at_look, plan, bound) if kind == "inconclusive" else None
    return Verdict(kind, at_look, margin, inside and kind == "difference", needed, p, equivalence, p, unit=plan.unit)


def tost_p(estimate: estimates.Estimate, bound: float) -> float:
    """p-value of the two one-sided tests that the effect lies inside +-bound; 1 for no bound."""
    if bound <= 0:
        return 1.0
    return max(estimate.tail(-bound), 1 - estimate.tail(bound))


def _kind(p: float, equivalence_p: float) -> Kind:
    if p <= plans.OVERALL_ALPHA:
        return "difference"
    return "no_difference" if equivalence_p <= plans.OVERALL_ALPHA else "inconclusive"


def _needed(estimate: estimates.Estimate, plan: plans.Plan, bound: float) -> int | None:
    """Units with 80% power, if the truth were the estimate: of the test that needs fewer."""
    if estimate.df <= 0:
        return None
    mean, sd = abs(estimate.mean), estimate.unit_sd
    found = [
        power.launches_needed(mean, sd, plan.alpha_per_look),
        power.launches_for_equivalence(bound, sd, plan.equivalence_alpha, mean),
    ]
    least = min((n for n in found if n is not None), default=None)
    return None if least is None else max(least, estimate.n + 1)


def holm(verdicts: Sequence[Verdict], family: str) -> list[Verdict]:
    """The verdicts with p-values adjusted by Holm 1979 (family-wise error), for a family of claims."""
    return _adjusted(verdicts, "holm", f"{family} (Holm, {len(verdicts)})")


def benjamini_hochberg(verdicts: Sequence[Verdict], family: str) -> list[Verdict]:
    """The same by Benjamini and Hochberg 1995 (false discovery rate), for sweeps, which are screening."""
    return _adjusted(verdicts, "fdr_bh", f"{family} (Benjamini-Hochberg, {len(verdicts)})")


def untested(judged: Verdict, next_look: int | None) -> Verdict:
    """The same estimate without a verdict, for units between two looks of the plan."""
    return dataclasses.replace(
        judged,
        kind="inconclusive",
        negligible=False,
        p_value=1.0,
        equivalence_p=1.0,  # a family decides again from these
        adjusted_p=1.0,
        launches_needed=next_look,
    )


def _adjusted(verdicts: Sequence[Verdict], method: str, family: str) -> list[Verdict]:
    """A difference that does not survive becomes what it would have been without it; intervals stay as they were."""
    from statsmodels.stats import multitest

    if not verdicts:
        return []
    adjusted = multitest.multipletests([v.p_value for v in verdicts], plans.OVERALL_ALPHA, method)[1]
    result = []
    for verdict, p in zip(verdicts, map(float, adjusted), strict=True):
        kind = _kind(p, verdict.equivalence_p)
        negligible = verdict.negligible and kind == "difference"
        result.append(dataclasses.replace(verdict, kind=kind, adjusted_p=p, family=family, negligible=negligible))
    return result


def sentence(verdict: Verdict, name_a: str, name_b: str, platform: str, gate: str = "passed") -> str:
    """The headline of a pair, e.g. `torch_xla 1.42x [1.36, 1.49] slower than jax on cpu; gate passed`.

    Args:
      verdict: On the ratio time(a) / time(b), scale "log".
      name_a: The side the sentence is about.
      name_b: The other side.
      platform: Where.
      gate: State of the gate.
    """
    pair = f"{name_a} and {name_b} on {platform}"
    ratio = units.format_ratio(*verdict.estimate.ratio())
    if verdict.kind == "no_difference":
        text = f"{pair}: no difference larger than {units.format_percent(verdict.margin)} ({ratio})"
    elif verdict.kind == "inconclusive":
        text = f"{pair}: inconclusive ({ratio}); {_advice(verdict)}"
    else:
        slower = verdict.estimate.mean > 0
        seen = verdict.estimate if slower else verdict.estimate.inverse()
        word = "slower" if slower else "faster"
        text = f"{name_a} {units.format_ratio(*seen.ratio())} {word} than {name_b} on {platform}"
        if verdict.negligible:
            text += f" (negligible: within {units.format_percent(verdict.margin)})"
    return f"{text}; gate {gate}"


def _advice(verdict: Verdict) -> str:
    if verdict.p_value <= plans.OVERALL_ALPHA:
        return f"a difference alone, but not within its family of {verdict.family}"
    if verdict.launches_needed is None:
        if verdict.estimate.df <= 0:
            return f"a spread takes at least two {verdict.unit}"
        return f"more than {power.MAX_UNITS} {verdict.unit} would be needed to decide"
    return f"about {verdict.launches_needed} {verdict.unit} would decide"
