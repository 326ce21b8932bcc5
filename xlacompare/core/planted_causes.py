"""Planted against reported: which cause was planted, where it must show, what came out, and whether all else stayed.

Reads records; what is planted and how is `launch.planted`'s. A statement has three answers, never two: what the
intervals do not decide is `undecided`, it is neither found nor missed.
  found      the reported interval leaves 0, and reaches the planted size give or take the tolerance
  not found  it does not reach that size
  not measured  a cell that is needed crashed, hung, or is not supported: no statement at all
  left       two one-sided tests (Schuirmann 1987) at 5%: the change of every other effect is inside the margin
  moved      an interval that lies beyond the margin as a whole
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from xlacompare.core import claims, effects, estimates, parallel_samples, plan, units, verdict
from xlacompare.core.planted_table import AS_ALONE as AS_ALONE
from xlacompare.core.planted_table import AS_COMPUTE as AS_COMPUTE
from xlacompare.core.planted_table import AS_FACTOR as AS_FACTOR
from xlacompare.core.planted_table import KNOWN as KNOWN
from xlacompare.core.planted_table import LABEL as LABEL
from xlacompare.core.planted_table import OF_OPTIMIZER as OF_OPTIMIZER
from xlacompare.core.planted_table import RECOMPILED as RECOMPILED
from xlacompare.core.planted_table import REFUSED as REFUSED
from xlacompare.core.planted_table import UNKNOWN as UNKNOWN
from xlacompare.core.planted_table import Cause as Cause
from xlacompare.core.planted_table import Found as Found
from xlacompare.core.planted_table import Left as Left
from xlacompare.core.planted_table import Limits as Limits
from xlacompare.core.planted_table import Row as Row


class World:
    """The records of a self-test: one framework, one comparison."""

    def __init__(self, world: parallel_samples.World, compiler: str) -> None:
        """Args: the world, and its matched compiler arm."""
        self.arms, self.why, self.base = world.arms, world.why(), compiler
        self.launches = list(world.launches().values())
        self.has_clocks = any(launch.ranks for launch in self.launches)
        real = effects.combined(self.launches, {(compiler, effects.REAL): 1})
        self.step_s = None if real is None else real.mean
        self.busy = _is_busy(world)

    def variant(self, text: str) -> str:
        """Name of a twin's variant."""
        return f"{self.base} {LABEL}{text}"

    def broken(self, variants: Sequence[str], cause: Cause) -> str:
        """The first arm that the cause needs and that was run and has no time, and why; "" for none."""
        wanted = [(variant, arm) for variant in variants for arm in cause.arms]
        wanted += [(self.variant(cause.apart), effects.ALONE)] if cause.apart else []
        return next((f"{key[0]}/{key[1]}: {self.why[key]}" for key in wanted if key in self.why), "")

    def changes(self, after: str) -> dict[str, claims.Effect]:
        """What a variant has more than the matched one, as the report says it."""
        sides = [claims.of_variant(self.launches, variant, self.why) for variant in (self.base, after)]
        made = {e.name: e for e in claims.of_planted(self.launches, (sides[0], sides[1]), self.why)}
        if not self.has_clocks:  # then all of a step without communication is compute
            whole: effects.Terms = {(after, effects.ELIDED): 1.0, (self.base, effects.ELIDED): -1.0}
            found = effects.combined(self.launches, whole)
            made[effects.COMPUTE] = dataclasses.replace(made[effects.COMPUTE], estimate=found)
        return made


def _is_busy(world: parallel_samples.World) -> bool:
    """Whether others had the cores in most of the visits that count."""
    timed = [arm for arm in world.arms.values() if arm.timed]
    used = [(n, visit) for n, visits in world.used().items() for visit in visits]
    spoilt = [any(n in arm.launches and v in arm.launches[n].disturbed for arm in timed) for n, v in used]
    return 2 * sum(spoilt) > len(used)


def rows(
    records: Sequence[Mapping[str, Any]],
    causes: Sequence[Cause],
    left_out: Mapping[str, str],
    compiler: str,
    other: str,
    limits: Limits,
) -> list[Row]:
    """The table.

    Args:
      records: Of the run, complete or not.
      causes: What was planted.
      left_out: Name of a cause -> why it was not planted.
      compiler: The matched compiler arm.
      other: The compiler arm without fusion; "" for none.
      limits: What counts.
    """
    worlds = parallel_samples.collect(records)
    world = World(worlds[0], compiler) if worlds else None
    return [_row(world, cause, left_out.get(cause.name, ""), other, limits) for cause in causes]


def _row(world: World | None, cause: Cause, left_out: str, other: str, limits: Limits) -> Row:
    if left_out or world is None or (cause.of_clocks and world.launches and not world.has_clocks):
        reason = left_out or ("the ranks have no clock of their own here" if world else "nothing was measured")
        return Row(cause.name, cause.where, "", "", "left out", "", reason)
    if cause.size == REFUSED:
        return _refused(world, cause)
    if cause.size == RECOMPILED:
        return _recompiled(world, cause)
    after = world.variant(cause.text) if cause.text else other
    if broken := world.broken((world.base, after), cause):
        return Row(cause.name, cause.where, "", "", "not measured", "", broken)
    if world.step_s is None:
        return Row(cause.name, cause.where, "", "", "undecided", "", "the matched step was not run")
    margin_s = limits.margin * world.step_s
    found, said, size = _moved(world, cause, after, limits.tolerance, margin_s)
    left, note = _left(world.changes(after), cause.stays, margin_s)
    notes = [text for text in (found[1], note) if text]
    row = Row(cause.name, cause.where, size, said, found[0], left, "; ".join(notes))
    return _of_busy_machine(row) if row.failed and world.busy else row


def _of_busy_machine(row: Row) -> Row:
    """What others on the cores may have done is held against nobody."""
    found: Found = "undecided" if row.found == "not found" else row.found
    left: Left = "undecided" if row.left == "moved" else row.left
    return dataclasses.replace(row, found=found, left=left, note=f"others had the cores in most visits; {row.note}")


def _moved(
    world: World, cause: Cause, after: str, tolerance: float, margin_s: float
) -> tuple[tuple[Found, str], str, str]:
    """((what is said of it, why), what was reported, what was planted), over all effects that must show it."""
    if cause.size == AS_FACTOR:
        return _factor(world, cause, after, tolerance)
    launches = effects.with_fastest(world.launches, [world.base, after])
    changes, combinations = world.changes(after), effects.changes(world.base, after)
    answers, said, size = [], [], "unknown"
    for name in cause.shows:
        change = changes[name].estimate
        if change is None:
            answers.append(("undecided", f"{name}: {changes[name].reason}"))
            continue
        named = f"{name} " if len(cause.shows) > 1 else ""
        said.append(named + units.format_duration_interval(change.mean, change.low, change.high))
        seconds, apart = _apart(world, cause, launches, combinations[name], change)
        if seconds is None:
            answers.append(_without_size(name, change, cause, margin_s))
            continue
        size = units.format_duration(seconds)
        answers.append(_compared(name, change.low, apart, tolerance * seconds))
    worst = min(answers, key=lambda answer: ("not found", "undecided", "found").index(answer[0]))
    return (worst[0], worst[1]), ", ".join(said), size  # type: ignore[return-value]


def _apart(
    world: World, cause: Cause, launches: Sequence[effects.Launch], change: effects.Terms, found: estimates.Estimate
) -> tuple[float | None, estimates.Estimate]:
    """The planted size, and reported minus planted with its interval: visit by visit where the size is measured."""
    if cause.size == KNOWN:
        shifted = {name: getattr(found, name) - cause.seconds for name in ("mean", "low", "high")}
        return cause.seconds, dataclasses.replace(found, **shifted)
    if cause.size == AS_COMPUTE:
        arm = effects.FASTEST if world.has_clocks else effects.ELIDED
        size: effects.Terms = {(world.base, arm): 1.0}
        if not world.has_clocks:
            change = {(world.variant(cause.text), effects.ELIDED): 1.0, (world.base, effects.ELIDED): -1.0}
    elif cause.size == AS_ALONE:
        size = {(world.variant(cause.apart), effects.ALONE): 1.0}
    else:
        return None, found
    planted = effects.combined(launches, size)
    apart = effects.combined(launches, effects.total([(1, change), (-1, size)]))
    return (None, found) if planted is None or apart is None else (planted.mean, apart)


def _compared(name: str, low: float, apart: estimates.Estimate, slack: float) -> tuple[Found, str]:
    if apart.low > slack or apart.high < -slack:
        off = units.format_duration_interval(apart.mean, apart.low, apart.high)
        return "not found", f"{name} differs from what was planted by {off}"
    return ("found", "") if low > 0 else ("undecided", f"the interval of {name} reaches 0")


def _without_size(name: str, change: estimates.Estimate, cause: Cause, margin_s: float) -> tuple[Found, str]:
    """Of a cause of unknown size: it is there, or it is nothing."""
    if cause.size != UNKNOWN:
        return "undecided", "the planted size was not measured"
    if verdict.tost_p(change, margin_s) <= plan.OVERALL_ALPHA:
        return "not found", f"{name} did not change"
    return ("found", "") if change.low > 0 or change.high < 0 else ("undecided", f"the interval of {name} includes 0")


def _factor(world: World, cause: Cause, after: str, tolerance: float) -> tuple[tuple[Found, str], str, str]:
    name = cause.shows[0]
    found = effects.ratio(world.launches, effects.terms(name, after), effects.terms(name, world.base))
    size = f"{cause.seconds:g}x"
    if found is None:
        return ("undecided", f"{name}: an arm is missing, or its interval reaches 0"), "", size
    said = units.format_ratio(found.mean, found.low, found.high)
    slack = tolerance * cause.seconds
    if found.high < cause.seconds - slack or found.low > cause.seconds + slack:
        return ("not found", f"{name} changed by another factor"), said, size
    return (("found", "") if found.low > 1 else ("undecided", f"the interval of {name} reaches 1")), said, size


def _left(changes: Mapping[str, claims.Effect], stays: Sequence[str], margin_s: float) -> tuple[Left, str]:
    """Whether all of these changes are nothing, and which are not known to be."""
    moved, unsure = [], []
    for name in stays:
        found = changes[name].estimate
        if found is None:
            unsure.append(f"{name} ({changes[name].reason})")
        elif found.low > margin_s or found.high < -margin_s:
            moved.append(f"{name} by {units.format_duration_interval(found.mean, found.low, found.high)}")
        elif verdict.tost_p(found, margin_s) > plan.OVERALL_ALPHA:
            unsure.append(f"{name} {units.format_duration_interval(found.mean, found.low, found.high)}")
    if moved:
        return "moved", f"moved: {', '.join(moved)}"
    return ("undecided", f"not shown to stay: {', '.join(unsure)}") if unsure else ("yes", "")


def _refused(world: World, cause: Cause) -> Row:
    """The gate must name what is wrong, and leave the matched step alone."""
    row = Row(cause.name, cause.where, cause.text, "", "undecided", "", "it was not run")
    arm = world.arms.get((world.variant(cause.text), effects.REAL))
    if arm is None:
        return row
    if arm.status == "mismatch":
        base = world.arms.get((world.base, effects.REAL))
        named, _, why = arm.reason.partition("gate failed at ")[2].partition(": ")
        found: Found = "found" if named.startswith(OF_OPTIMIZER) else "not found"
        left: Left = "" if base is None else "moved" if base.status == "mismatch" else "yes"
        note = why if named and left != "moved" else f"{arm.reason}; the matched step: {base.reason if base else '-'}"
        said = f"gate failed at {named}" if named else arm.status
        return dataclasses.replace(row, reported=said, found=found, left=left, note=note)
    if arm.status != "ok":
        return dataclasses.replace(row, found="not measured", note=f"{arm.status}: {arm.reason}")
    return dataclasses.replace(row, reported="the gate passed", found="not found", note="")


def _recompiled(world: World, cause: Cause) -> Row:
    """Blocks with a compilation are no samples, and others have none."""
    row = Row(cause.name, cause.where, "1 a visit", "", "undecided", "", "it was not run")
    arm, base = (world.arms.get((v, effects.REAL)) for v in (world.variant(cause.text), world.base))
    if arm is None or base is None:
        return row
    if arm.status != "ok":
        return dataclasses.replace(row, found="not measured", note=f"{arm.status}: {arm.reason}")
    if not any((record.get("compile") or {}).get("compiles") for record in base.records):
        note = f"{base.cell.framework} compiles nothing in its arm {world.base}"
        return dataclasses.replace(row, size="", found="left out", note=note)
    used = sum(len(launch.step_s) for launch in arm.launches.values())
    said = f"{arm.num_compiled} of {arm.num_blocks} blocks compiled, {used} visits are samples"
    found: Found = "found" if arm.num_compiled and not used else "not found"
    others = sum(entry.num_compiled for entry in world.arms.values() if entry is not arm)
    left: Left = "moved" if others else "yes"
    note = f"{others} blocks of other arms compiled" if others else ""
    return dataclasses.replace(row, reported=said, found=found, left=left, note=note)
