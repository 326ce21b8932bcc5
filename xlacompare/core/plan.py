"""The stopping plan, fixed before the first sample and kept in the record.

Looking until there is a verdict gives 8-28% false differences; so the numbers of launches at which one looks are fixed,
each look is a t-interval at its own alpha, and nothing is tested in between.
Constants: Pocock 1977 (equal alpha per look). They were made for equally spaced looks and normal data; for looks after
6, 10, 16, 24 launches and t-intervals the simulated overall error is 5.0-5.5%.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xlacompare.core import errors, estimates

LOOKS = (6, 10, 16, 24)
OVERALL_ALPHA = 0.05
# Number of looks -> two-sided alpha of each, for 5% overall.
ALPHA_PER_LOOK = {1: 0.05, 2: 0.0294, 3: 0.0221, 4: 0.0182}
# Number of looks -> one-sided alpha of each of the two one-sided tests, for 5% overall: one look is the 90% interval.
EQUIVALENCE_ALPHA = {1: 0.05, 2: 0.0304, 3: 0.0232, 4: 0.0194}
MIN_LAUNCHES = 3  # two degrees of freedom: wide, and honest
MARGIN_IN_PROCESS, MARGIN_BETWEEN = 0.02, 0.05


@dataclasses.dataclass(frozen=True)
class Plan:
    """When to look, how to judge there, when to stop.

    Attributes:
      looks: Numbers of units after which there is a test, ascending.
      alpha_per_look: Two-sided alpha of the interval at each look.
      equivalence_alpha: One-sided alpha of `no difference larger than margin` at each look.
      margin: The X of that verdict, as a fraction of the time.
      target_ci: Half-width of the interval, as a fraction, at which to stop without a verdict; None: no such stop.
      budget_s: Seconds that the number of looks was made from; None: no budget.
      unit: "launches" or "block pairs".
    """

    looks: tuple[int, ...]
    alpha_per_look: float
    equivalence_alpha: float
    margin: float = MARGIN_BETWEEN
    target_ci: float | None = None
    budget_s: float | None = None
    unit: str = "launches"

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 1 or list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks must be ascending and positive, got {self.looks}")
        if not 0 < self.alpha_per_look < 1 or not 0 < self.equivalence_alpha < 0.5:
            raise ValueError("alpha must be between 0 and 1, and below 0.5 for a one-sided test")
        if self.margin < 0:
            raise errors.BadInputError(f"--margin={self.margin} is negative; 0.05 means 5%, 0 asks for no margin")
        if self.target_ci is not None and self.target_ci <= 0:
            raise errors.BadInputError(
                f"--target_ci={self.target_ci} can never be reached; 0.02 stops when the interval is within 2%"
            )
        if self.budget_s is not None and self.budget_s <= 0:
            raise errors.BadInputError(f"--budget_s={self.budget_s} leaves no time to measure")

    @property
    def level(self) -> float:
        """Level of the interval at each look; the overall level is 1 - `OVERALL_ALPHA`."""
        return 1 - self.alpha_per_look

    @property
    def last(self) -> int:
        """Units after which the plan ends in any case."""
        return self.looks[-1]

    def is_look(self, n: int) -> bool:
        """Whether there is a test after n units."""
        return n in self.looks

    def next_look(self, n: int) -> int | None:
        """The first look after more than n units; None after the last."""
        return next((look for look in self.looks if look > n), None)

    def overall(self, p: float, per_look: float | None = None) -> float:
        """A p-value at a look, scaled so that p <= alpha_per_look becomes p <= 0.05 (for Holm and for printing).

        Simulated for p at the planned stop under no effect: P(overall p <= 0.05/3) was 1.4-1.7%.
        """
        return min(1.0, p * OVERALL_ALPHA / (per_look or self.alpha_per_look))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        return {**dataclasses.asdict(self), "looks": list(self.looks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Inverse of `to_dict`; unknown keys are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        return cls(**{**chosen, "looks": tuple(values["looks"])})


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether to stop, and why: "between looks", "verdict", "target_ci", "last look" or "undecided"."""

    stop: bool
    reason: str


def fixed(n: int, **others: Any) -> Plan:
    """One look, after n units.

    Args:
      n: Units.
      **others: `margin`, `target_ci`, `budget_s`, `unit` of the plan.
    """
    return Plan((n,), ALPHA_PER_LOOK[1], EQUIVALENCE_ALPHA[1], **others)


def in_process(pairs: int, margin: float = MARGIN_IN_PROCESS) -> Plan:
    """The plan of one process: a fixed duration, one look after all its block pairs."""
    return fixed(pairs, margin=margin, unit="block pairs")


def sequential(max_looks: int = 4, **others: Any) -> Plan:
    """Looks after 6, 10, 16 and 24 launches, or the first `max_looks` of them; others as `fixed`."""
    if max_looks not in ALPHA_PER_LOOK:
        raise ValueError(f"a plan has 1 to {len(LOOKS)} looks, got {max_looks}")
    return Plan(LOOKS[:max_looks], ALPHA_PER_LOOK[max_looks], EQUIVALENCE_ALPHA[max_looks], **others)


def from_budget(budget_s: float, launch_cost_s: float, max_looks: int = 4, **others: Any) -> Plan:
    """The plan that a budget affords; made once, from the cost of the first launch.

    Fewer than ten affordable launches are one look after all of them, and never fewer than `MIN_LAUNCHES` (the budget
    is then exceeded: compare `Plan.last` with what it affords).

    Args:
      budget_s: Seconds for all launches, the first included.
      launch_cost_s: Seconds of one launch of all cells.
      max_looks: At most so many looks.
      **others: `margin`, `target_ci`, `unit` of the plan.
    """
    if launch_cost_s <= 0:
        raise ValueError(f"a launch cannot cost {launch_cost_s} s")
    affordable = int(budget_s / launch_cost_s)
    looks = min(max_looks, sum(look <= affordable for look in LOOKS))
    if looks < 2 and affordable < LOOKS[1]:
        return fixed(max(MIN_LAUNCHES, affordable), budget_s=budget_s, **others)
    return sequential(looks, budget_s=budget_s, **others)


def should_stop(plan: Plan, n: int, estimate: estimates.Estimate, decided: bool) -> Decision:
    """What to do after n units.

    Args:
      plan: The plan.
      n: Units so far.
      estimate: Effect so far; only its interval at the plan's level is used, and only at a look.
      decided: Whether the verdict at this look is `difference` or `no_difference`.
    """
    if n >= plan.last:
        return Decision(True, "last look")
    if not plan.is_look(n):
        return Decision(False, "between looks")
    if decided:
        return Decision(True, "verdict")
    if plan.target_ci is not None and estimate.at_level(plan.level).half_width <= plan.target_ci:
        return Decision(True, "target_ci")
    return Decision(False, "undecided")
