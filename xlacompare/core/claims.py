"""What may be said of the effects of one framework: which are withheld and why, and a verdict on each of the rest.

Two checks with two names, and the closure, decide before anything is claimed:
  elided > real          elision changed the compute (fusion, layout, cache): exposed and hidden time are withheld
  real > serial          contention: overlap costs more than it saves; said, nothing is withheld
  serial - elided - alone excludes 0: what is left is unexplained by the arms, and no hidden time is claimed
Each is an interval at the plain level, outside of the family of the verdicts: a guard that is wrong once in twenty
costs an effect, and never invents one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from xlacompare.core import effects, estimates, plan, units, verdict

Unit = Literal["s", "ratio"]
Why = Mapping[effects.Key, str]
SECONDS = tuple(effects.DEFINITIONS)
RATIOS = (effects.SHARE, effects.EFFICIENCY)
OF_EXPOSED = (effects.EXPOSED, effects.EXPOSED_LATENCY, effects.EXPOSED_BYTES)
OF_HIDDEN = (effects.HIDDEN, *RATIOS)
STEP = "step"  # the real step of one arm over that of another
# Differences that may be nothing, beside all those between two variants. A wire that takes no time, or a check, is no
# finding of a family.
TESTED = (*OF_EXPOSED, effects.HIDDEN)


@dataclasses.dataclass(frozen=True)
class Effect:
    """One effect of one variant (a compiler arm under one label), or of one variant against another.

    Attributes:
      name: In `effects.DEFINITIONS`, `RATIOS`, or of `effects.compiling` and its split.
      variant: Of a change, the one after it.
      versus: The one before it; "" for an effect under one variant.
      estimate: Seconds a step, or where `unit` is "ratio" a plain number, its logarithm where the scale is "log"; None:
        see `reason`.
      reason: Why there is no estimate: an arm that is missing, or a check that failed.
      notes: What a reader must know with it.
      verdict: Of those in `TESTED`.
    """

    name: str
    variant: str
    estimate: estimates.Estimate | None
    unit: Unit = "s"
    versus: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    verdict: verdict.Verdict | None = None


def of_variant(launches: Sequence[effects.Launch], variant: str, why: Why, level: float = 0.95) -> list[Effect]:
    """All effects under one variant, each with its estimate or the reason why it has none.

    Args:
      launches: Of one framework.
      variant: Which.
      why: Arm that has no time -> why not.
      level: Of the intervals, and of the checks.
    """
    launches = effects.with_fastest(launches, [variant])
    made = {name: _effect(launches, name, effects.terms(name, variant), variant, why, level) for name in SECONDS}
    made[effects.SHARE] = _ratio(made, effects.SHARE, effects.hidden_share(launches, variant, level))
    made[effects.EFFICIENCY] = _ratio(made, effects.EFFICIENCY, effects.efficiency(launches, variant, level))
    return list(_checked(made).values())


def _effect(
    launches: Sequence[effects.Launch],
    name: str,
    chosen: effects.Terms,
    variant: str,
    why: Why,
    level: float,
    versus: str = "",
) -> Effect:
    found = effects.combined(launches, chosen, level)
    return Effect(name, variant, found, versus=versus, reason="" if found else missing(launches, chosen, why))


def missing(launches: Sequence[effects.Launch], chosen: Iterable[effects.Key], why: Why) -> str:
    """Why a combination has no estimate: the first arm that no launch has, and its reason."""
    for key in chosen:
        if not effects.having(launches, [key]):
            variant, arm = key
            if arm == effects.FASTEST and effects.having(launches, [(variant, effects.ELIDED)]):
                return "the ranks have no clock of their own here"
            arm = effects.ELIDED if arm == effects.FASTEST else arm
            return f"needs {variant}/{arm}: {why.get((variant, arm)) or 'it was not run'}"
    return "no launch has all the arms that it is made of"


def _ratio(made: Mapping[str, Effect], name: str, found: estimates.Estimate | None) -> Effect:
    hidden, wire = made[effects.HIDDEN], made[effects.WIRE]
    reason = ""
    if found is None:
        low = wire.estimate is not None and not wire.estimate.low > 0
        reason = hidden.reason or wire.reason or ("the interval of wire reaches 0" if low else "an arm is missing")
    return Effect(name, hidden.variant, found, "ratio", reason=reason)


def _checked(made: dict[str, Effect]) -> dict[str, Effect]:
    exposed, contention = made[effects.EXPOSED], made[effects.CONTENTION]
    if exposed.estimate is not None and exposed.estimate.high < 0:
        more = _duration(exposed.estimate.inverse())
        said = f"withheld: elided takes {more} more than real: elision changed the compute (fusion, layout or cache)"
        made |= {name: _withheld(made[name], said) for name in (*OF_EXPOSED, *OF_HIDDEN)}
    made = _closed(made, OF_HIDDEN, "serial - elided - alone")
    if contention.estimate is not None and contention.estimate.low > 0:
        note = "contention: overlap costs more than it saves"
        made |= {name: _noted(made[name], note) for name in (effects.CONTENTION, *OF_HIDDEN)}
    return made


def _closed(made: dict[str, Effect], held: Iterable[str], what: str) -> dict[str, Effect]:
    """Withholds hidden time where the closure excludes 0; says so where it could not be looked at."""
    closure = made[effects.CLOSURE]
    if closure.estimate is None:
        return made | {name: _noted(made[name], f"closure not checked: {closure.reason}") for name in held}
    if closure.estimate.low <= 0 <= closure.estimate.high:
        return made
    rest = _duration(closure.estimate)
    said = f"withheld: {what} = {rest} is unexplained by the arms: no hidden time is claimed"
    made = made | {name: _withheld(made[name], said) for name in held}
    return made | {effects.CLOSURE: _noted(closure, "unexplained by the arms")}


def _duration(found: estimates.Estimate) -> str:
    return units.format_duration_interval(found.mean, found.low, found.high)


def _withheld(found: Effect, reason: str) -> Effect:
    """Without its estimate; the first reason stays."""
    return found if found.estimate is None else dataclasses.replace(found, estimate=None, reason=reason)


def _noted(found: Effect, note: str) -> Effect:
    return found if found.estimate is None else dataclasses.replace(found, notes=(*found.notes, note))


def of_compiling(
    launches: Sequence[effects.Launch],
    sides: tuple[Sequence[Effect], Sequence[Effect]],
    why: Why,
    schedule_note: str = "",
    level: float = 0.95,
) -> list[Effect]:
    """What a compiler arm changes against another one, with and without communication.

    Args:
      launches: Of one framework.
      sides: Of `of_variant`, for the arm before and the arm after; what is withheld there is withheld here.
      why: As in `of_variant`.
      schedule_note: What the census says of the two schedules.
      level: Of the intervals.
    """
    old, new = (side[0].variant for side in sides)
    combinations = effects.compiling(old, new)
    ratio = effects.step_ratio(launches, old, new, level)
    reason = "" if ratio else missing(launches, [(old, effects.REAL), (new, effects.REAL)], why)
    step = Effect(STEP, new, ratio, "ratio", old, reason)
    made = {name: _effect(launches, name, chosen, new, why, level, old) for name, chosen in combinations.items()}
    for name, part in (("exposed_change", effects.EXPOSED), ("hidden_change", effects.HIDDEN)):
        made[name] = _held_with(made[name], part, sides)
    for note in filter(None, (_to_hide_behind(launches, old, new), schedule_note)):
        made["hidden_change"] = _noted(made["hidden_change"], note)
    return [step, *made.values()]


def _held_with(found: Effect, part: str, sides: Iterable[Sequence[Effect]]) -> Effect:
    """Withheld where the effect that it is a change of is."""
    for side in sides:
        of_side = next(entry for entry in side if entry.name == part)
        if of_side.reason.startswith("withheld"):
            found = _withheld(found, f"{of_side.variant}: {of_side.reason}")
    return found


def _to_hide_behind(launches: Sequence[effects.Launch], old: str, new: str) -> str:
    sides = {name: effects.combined(launches, {(name, effects.ELIDED): 1}) for name in (old, new)}
    said = [f"{units.format_duration(found.mean)} in {name}" for name, found in sides.items() if found]
    return f"compute to hide behind: {', '.join(said)}"


def split_of_compiling(
    launches: Sequence[effects.Launch], steps: tuple[str, str, str], why: Why, level: float = 0.95
) -> list[Effect]:
    """The compiler effect in two: what capture removes (Python, autograd), and what optimisation does.

    Args:
      launches: Of one framework.
      steps: The variants: eager, captured, and the arm after both.
      why: As in `of_variant`.
      level: Of the intervals.
    """
    eager, captured, after = steps
    named = {"capture": (eager, captured), "optimisation": (captured, after)}
    return [
        _effect(launches, name, {(one, effects.ELIDED): 1.0, (other, effects.ELIDED): -1.0}, after, why, level, eager)
        for name, (one, other) in named.items()
    ]


def of_planted(
    launches: Sequence[effects.Launch],
    sides: tuple[Sequence[Effect], Sequence[Effect]],
    why: Why,
    level: float = 0.95,
) -> list[Effect]:
    """What a planted cause moved: every effect with it minus the same without it, visit by visit.

    What both sides leave unexplained cancels: the change of hidden time is withheld where the closure itself changed.

    Args:
      launches: Of one framework.
      sides: Of `of_variant`, for the variant without and with the cause.
      why: As in `of_variant`.
      level: Of the intervals.
    """
    old, new = (side[0].variant for side in sides)
    both = effects.with_fastest(launches, [old, new])
    combinations = effects.changes(old, new)
    made = {name: _effect(both, name, chosen, new, why, level, old) for name, chosen in combinations.items()}
    made |= {name: _held_with(made[name], name, sides) for name in OF_EXPOSED}
    return list(_closed(made, (effects.HIDDEN,), "change of serial - elided - alone").values())


def judged(
    found: Sequence[Effect], step_s: Mapping[str, float], family: str, margin: float = plan.MARGIN_IN_PROCESS
) -> list[Effect]:
    """The same with verdicts on those in `TESTED` and on all changes, adjusted by Holm within their family.

    Args:
      found: All effects of a framework on one comparison.
      step_s: Variant -> seconds a step of `real`: the margin is a share of it.
      family: Its name.
      margin: That share.
    """
    tested = [
        i for i, entry in enumerate(found) if entry.estimate is not None and (entry.versus or entry.name in TESTED)
    ]
    verdicts = [_verdict(found[i], step_s, margin) for i in tested]
    made = list(found)
    for i, adjusted in zip(tested, verdict.holm(verdicts, family), strict=True):
        made[i] = dataclasses.replace(made[i], verdict=adjusted)
    return made


def _verdict(entry: Effect, step_s: Mapping[str, float], margin: float) -> verdict.Verdict:
    found = entry.estimate
    if found is None:
        raise ValueError(f"{entry.name} has no estimate to judge")
    unit = "launches" if "launches" in found.method else "visits"  # what the estimate counts, and so what would decide
    base = step_s.get(entry.versus) or step_s.get(entry.variant, 0.0)
    return verdict.judge(found, plan.fixed(found.n, margin=margin, unit=unit), margin * base)
