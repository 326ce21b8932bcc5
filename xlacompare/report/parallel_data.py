"""What the report of a parallel run shows: names, sentences, words for effects. No layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from xlacompare.core import cell as cells
from xlacompare.core import claims, effects, estimates, plan, units, verdict
from xlacompare.core import parallel_results as results
from xlacompare.report import data, words

OVERSUBSCRIBED = "more ranks than cores: these times are the scheduler's, not transferable"
LABELS = {
    effects.COMPUTE: "compute of the fastest rank",
    effects.IMBALANCE: "imbalance: slowest - fastest rank",
    effects.EXPOSED: "exposed communication",
    effects.EXPOSED_LATENCY: "  waiting, latency, no fusion across",
    effects.EXPOSED_BYTES: "  bytes",
    effects.WIRE: "wire: the collectives alone",
    effects.WIRE_LATENCY: "  latency",
    effects.WIRE_BYTES: "  bytes",
    effects.HIDDEN: "hidden: wire - exposed",
    effects.SHARE: "hidden share of the wire",
    effects.EFFICIENCY: "overlap efficiency",
    effects.CONTENTION: "real - serial (above 0: contention)",
    effects.CLOSURE: "closure: serial - elided - alone",
    claims.STEP: "real step, the first over the second",
    "compiler": "compute",
    "capture": "  by capture (Python, autograd)",
    "optimisation": "  by optimisation",
    "exposed_change": "exposed communication",
    "wire_change": "  fewer or cheaper collectives",
    "hidden_change": "  more or less hidden",
}
ORDER = tuple(LABELS)
MAX_OPEN = 3  # effects that are named as open in a sentence
_PARTS = ("preset", "dtype", "batch_size", "optimizer", "mode")


@dataclasses.dataclass(frozen=True)
class Headline:
    """A sentence and the kind of verdict that it is coloured by."""

    kind: str
    sentence: str


def frameworks(summary: results.ParallelSummary) -> list[str]:
    """Frameworks of the run, in the order of the flags where that is known."""
    asked = list(summary.config.get("frameworks", ()))
    return list(dict.fromkeys(asked + [arm.cell.framework for arm in summary.arms]))


def called(cell: cells.Cell, summary: results.ParallelSummary) -> str:
    """A comparison in words: strategy, workload, ranks, transport, and what else tells it apart in this run."""
    members = {arm.cell.comparison: arm.cell for arm in summary.arms}
    differing = [p for p in _PARTS[:-1] if len({getattr(c, p) for c in members.values()}) > 1]
    parts = [f"batch {cell.batch_size}" if p == "batch_size" else str(getattr(cell, p)) for p in differing]
    where = f"{ranks(cell)} ranks over {cell.transport}"
    return ", ".join([" ".join([cell.strategy, cell.workload, *parts]), where])


def prefix(cell: cells.Cell, summary: results.ParallelSummary) -> str:
    """What begins a line about a comparison: its name where there are several, else nothing (the title has it)."""
    several = len({arm.cell.comparison for arm in summary.arms}) > 1
    return f"{called(cell, summary)}, " if several else ""


def ranks(cell: cells.Cell) -> int:
    """Ranks of the mesh."""
    return math.prod(cell.mesh)


def who(cell: cells.Cell, summary: results.ParallelSummary) -> str:
    """A framework in a sentence, with the mode where it ran in several."""
    modes = {arm.cell.mode for arm in summary.arms if arm.cell.framework == cell.framework}
    return f"{cell.framework} {cell.mode}" if len(modes) > 1 else cell.framework


def launches(summary: results.ParallelSummary) -> int:
    """Launches that brought samples."""
    return max((arm.num_launches for arm in summary.arms), default=0)


def platform(summary: results.ParallelSummary) -> str:
    """Where the steps ran."""
    return str(summary.config.get("platform", "cpu"))


def reservations(summary: results.ParallelSummary) -> list[str]:
    """What takes from the weight of every figure."""
    found = [OVERSUBSCRIBED] if any(arm.oversubscribed for arm in summary.arms) else []
    tiny = {arm.cell.preset for arm in summary.arms} & set(data.NOT_TRANSFERABLE)
    return found + [f"preset {name}: not transferable" for name in sorted(tiny)]


def headlines(summary: results.ParallelSummary) -> list[Headline]:
    """What is said first: framework against framework, then what each framework's communication costs it."""
    made = [_of_pair(pair, summary) for pair in summary.pairs]
    return made + [line for of in summary.frameworks for line in _of_framework(of, summary)]


def _of_pair(pair: results.Pair, summary: results.ParallelSummary) -> Headline:
    begin = f"{prefix(pair.a, summary)}{pair.variant}"
    a, b = who(pair.a, summary), who(pair.b, summary)
    if pair.verdict is None:
        return Headline("problem", f"{begin}: {a} and {b}: no ratio: {pair.problem}")
    text = verdict.sentence(pair.verdict, a, b, platform(summary))
    return Headline(pair.verdict.kind, f"{begin}: {'; '.join([text, *pair.notes])}")


def _of_framework(of: results.FrameworkEffects, summary: results.ParallelSummary) -> list[Headline]:
    variants = list(dict.fromkeys(entry.variant for entry in of.effects if not entry.versus))
    begin = f"{prefix(of.cell, summary)}{who(of.cell, summary)}"
    own = [_of_variant(of, variant, summary) for variant in variants if matched(variant)]
    planted = [_of_planted(of, variant) for variant in variants if not matched(variant)]
    return [Headline(found.kind, f"{begin} {found.sentence}") for found in own + _of_compiling(of, summary) + planted]


def matched(variant: str) -> bool:
    """Whether a variant is a compiler arm with the matched settings (`core.parallel_samples.variant_of`)."""
    return " " not in variant


def _of_planted(of: results.FrameworkEffects, variant: str) -> Headline:
    """What a planted cause moved, and what is left open."""
    changes = [entry for entry in of.effects if entry.variant == variant and entry.versus and entry.verdict]
    moved = [entry for entry in changes if entry.verdict and entry.verdict.kind == "difference"]
    said = [f"{LABELS[e.name].strip()} {duration(e.estimate)}" for e in moved if e.estimate]
    left = [LABELS[e.name].strip() for e in changes if e.verdict and e.verdict.kind == "inconclusive"]
    text = f"{variant}: moved {'; '.join(said)}" if said else f"{variant}: nothing was seen to move"
    if left:
        text += f"; open: {'; '.join(left) if len(left) <= MAX_OPEN else f'{len(left)} of {len(changes)} effects'}"
    return Headline("difference" if said else "inconclusive" if left else "no_difference", text)


def effect(of: results.FrameworkEffects, name: str, variant: str, versus: str = "") -> claims.Effect | None:
    """One effect of a framework."""
    found = [e for e in of.effects if (e.name, e.variant, e.versus) == (name, variant, versus)]
    return found[0] if found else None


def real_s(of: results.FrameworkEffects, variant: str, summary: results.ParallelSummary) -> float | None:
    """Mean seconds of a real step of a variant."""
    wanted = (of.cell.framework, of.cell.comparison, of.cell.mode, variant, effects.REAL)
    for arm in summary.arms:
        c = arm.cell
        if (c.framework, c.comparison, c.mode, arm.variant, c.communication) == wanted and arm.time is not None:
            return arm.time.mean
    return None


def _of_variant(of: results.FrameworkEffects, variant: str, summary: results.ParallelSummary) -> Headline:
    """Such as "compiled: 5.59 ms [5.43, 5.75] of 26.8 ms a step exposed (21%): 1.55 latency, 4.04 bytes; ..."."""
    exposed, step_s = effect(of, effects.EXPOSED, variant), real_s(of, variant, summary)
    if exposed is None or exposed.estimate is None:
        return Headline("problem", f"{variant}: exposed communication: {exposed.reason if exposed else 'not measured'}")
    found = exposed.estimate
    said = f"{variant}: {duration(found)}"
    said += f" of {units.format_duration(step_s)} a step is exposed communication" if step_s else " a step exposed"
    kind = exposed.verdict.kind if exposed.verdict else "inconclusive"
    if kind == "no_difference" and exposed.verdict:
        said += f" (nothing above {units.format_duration(exposed.verdict.margin)})"
    elif kind == "inconclusive":
        said += " (inconclusive)"
    parts = [(effect(of, name, variant), word) for name, word in
             ((effects.EXPOSED_LATENCY, "waiting and latency"), (effects.EXPOSED_BYTES, "bytes"))]  # fmt: skip
    known = [f"{words.milliseconds(e.estimate.mean)} {word}" for e, word in parts if e and e.estimate]
    said += f": {', '.join(known)}" if known else ""
    share = effect(of, effects.SHARE, variant)
    if share is not None:
        said += f"; {percent(share.estimate)} of the wire is hidden" if share.estimate else f"; hidden: {share.reason}"
    return Headline(kind, said)


def _of_compiling(of: results.FrameworkEffects, summary: results.ParallelSummary) -> list[Headline]:
    """Such as "compiled 1.61x [1.58, 1.64] faster than eager on cpu; gate passed: 14.1 ms [...] of compute, ..."."""
    made = []
    for entry in of.effects:
        if entry.name != claims.STEP or entry.verdict is None:
            continue
        seen = dataclasses.replace(entry.verdict, estimate=entry.verdict.estimate.inverse())
        said = verdict.sentence(seen, entry.variant, entry.versus, platform(summary))
        parts = [(effect(of, name, entry.variant, entry.versus), word) for name, word in
                 (("compiler", "compute"), ("exposed_change", "exposed communication"))]  # fmt: skip
        known = [f"{duration(e.estimate)} of {word}" for e, word in parts if e and e.estimate]
        made.append(Headline(entry.verdict.kind, said + (f": less by {', '.join(known)}" if known else "")))
    return made


def duration(found: estimates.Estimate) -> str:
    """Such as "1.42 ms [1.36, 1.49]"; without the interval where one launch gives none."""
    if found.df <= 0:
        return f"{units.format_duration(found.mean)} [?]"
    return units.format_duration_interval(found.mean, found.low, found.high)


def percent(found: estimates.Estimate | None) -> str:
    """A share with its interval; ends that are no percents of anything are shown as they are."""
    if found is None:
        return "-"
    if not math.isfinite(found.low) or not math.isfinite(found.high):
        return f"{found.mean:.0%} [?]"
    places = 0 if found.high - found.low > 0.05 else 1
    return f"{found.mean:.{places}%} [{found.low:.{places}%}, {found.high:.{places}%}]"


def judged(found: claims.Effect) -> str:
    """The verdict of an effect in a column."""
    if found.estimate is None:
        return "withheld" if found.reason.startswith("withheld") or ": withheld" in found.reason else "missing"
    return said(found.verdict) if found.verdict else ""


def said(judged: verdict.Verdict) -> str:
    """A verdict in a column."""
    if judged.kind == "difference":
        return "negligible" if judged.negligible else "difference"
    if judged.kind == "no_difference":
        ratio = judged.estimate.scale == "log"
        return f"none > {(units.format_percent if ratio else units.format_duration)(judged.margin)}"
    if judged.p_value <= plan.OVERALL_ALPHA:
        return "lost in its family"
    return f"open ({judged.launches_needed} {judged.unit})" if judged.launches_needed else "open"


def failures(summary: results.ParallelSummary) -> list[tuple[str, str, str]]:
    """Arms without a time as (which, status, reason), one entry for what has the same reason."""
    groups: dict[tuple[str, str, str], dict[str, None]] = {}
    for arm in summary.arms:
        if arm.time is None:
            which = f"{prefix(arm.cell, summary)}{who(arm.cell, summary)} {arm.variant}"
            groups.setdefault((which, arm.status, arm.reason), {})[arm.cell.communication] = None
    return [(f"{which}: {', '.join(names)}", status, reason) for (which, status, reason), names in groups.items()]


def reasons(found: Sequence[claims.Effect]) -> list[str]:
    """Why effects of a table have no estimate, and the notes on those that have: one line for what is the same."""
    groups: dict[str, dict[str, None]] = {}
    for entry in found:
        for text in [entry.reason] if entry.estimate is None else entry.notes:
            groups.setdefault(text, {})[LABELS[entry.name].strip().partition(":")[0]] = None
    return [f"{', '.join(names)}: {text}" for text, names in groups.items()]
