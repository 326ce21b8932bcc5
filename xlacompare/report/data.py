"""What the report shows of a summary: which pairs lead, which arms stay back, what stands beside what. No layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from xlacompare.core import cell as cells
from xlacompare.core import estimates, results, units, verdict

# Diagnostic arms: shown with `expert` only, or where nothing else was measured.
EXPERT_ARMS = ("nofusion", "opt0")
# Presets whose steps are so short that their ratios say little about real work.
NOT_TRANSFERABLE = ("tiny",)
# Ways a cell ends that need a look at its log.
LOST = ("crash", "hang", "out_of_memory")
MAX_GAPS_FIRST = 3

_PARTS = ("preset", "dtype", "batch_size", "optimizer", "strategy")


@dataclasses.dataclass(frozen=True)
class Headline:
    """One line that serves a decision.

    Attributes:
      kind: The verdict's kind, or "problem".
      sentence: What is said.
      notes: What takes from its weight, e.g. "not transferable".
      comparison: The comparison that it is the verdict of.
    """

    kind: str
    sentence: str
    notes: tuple[str, ...]
    comparison: results.Comparison

    def text(self, said: Iterable[str] = ()) -> str:
        """The sentence with its notes, but for those that are said already."""
        return "; ".join([self.sentence, *(note for note in self.notes if note not in said)])


def ordered(summary: results.Summary) -> results.Summary:
    """The same in the order of the flags: records have cells without a time first."""
    flags = [list(summary.config.get(key, ())) for key in ("workloads", "dtypes", "frameworks", "compilers")]

    def place(cell: cells.Cell) -> tuple[int, ...]:
        values = (cell.workload, cell.dtype, cell.framework, cell.compiler)
        return tuple(flag.index(value) if value in flag else len(flag) for flag, value in zip(flags, values))

    return dataclasses.replace(
        summary,
        cells=sorted(summary.cells, key=lambda result: place(result.cell)),
        pairs=sorted(summary.pairs, key=lambda pair: place(pair.a)[:2]),
        arms=sorted(summary.arms, key=lambda pair: (place(pair.a), place(pair.b))),
        gaps=sorted(summary.gaps, key=lambda gap: place(gap.a)[:2]),
        settings=sorted(summary.settings, key=lambda changed: (place(changed.effect.a), changed.label)),
    )


def names(found: Iterable[results.CellResult]) -> dict[str, str]:
    """Shortest name of every comparison: the workload, and what tells two comparisons of one workload apart."""
    by_workload: dict[str, dict[str, cells.Cell]] = {}
    for result in found:
        by_workload.setdefault(result.cell.workload, {})[result.cell.comparison] = result.cell
    made = {}
    for workload, group in by_workload.items():
        differing = [p for p in _PARTS if len({getattr(cell, p) for cell in group.values()}) > 1]
        for comparison, cell in group.items():
            parts = [f"batch {cell.batch_size}" if p == "batch_size" else getattr(cell, p) for p in differing]
            made[comparison] = " ".join([workload, *parts])
    return made


def side(cell: cells.Cell) -> str:
    """A cell in a table: framework, arm, and the settings where they are not the matched ones."""
    return f"{cell.framework} {cell.compiler}" + ("" if cell.label == "matched" else f" {cell.label}")


def label(summary: results.Summary) -> str:
    """Settings that the headline is about: matched ones where they were measured."""
    labels = [result.cell.label for result in summary.cells if result.status != "unsupported"]
    return "matched" if "matched" in labels or not labels else labels[0]


def frameworks(summary: results.Summary) -> list[str]:
    """Frameworks of the run, in the order of the flags where that is known."""
    asked = list(summary.config.get("frameworks", ()))
    return list(dict.fromkeys(asked + [result.cell.framework for result in summary.cells]))


def platform(summary: results.Summary) -> str:
    """Where the steps ran, and on which PJRT plugin where all frameworks ran on one."""
    name = str(summary.config.get("platform", "an unknown platform"))
    shared = summary.config.get("plugin")
    return f"{name} ({shared['name']})" if shared else name


def arms(summary: results.Summary, expert: bool) -> list[str]:
    """Compiler arms to show."""
    present = list(dict.fromkeys(result.cell.compiler for result in summary.cells))
    usual = [arm for arm in present if arm not in EXPERT_ARMS]
    return present if expert or not any(_timed(summary, arm) for arm in usual) else usual


def hidden_arms(summary: results.Summary, expert: bool) -> list[str]:
    """Measured arms that are not shown."""
    shown = arms(summary, expert)
    present = dict.fromkeys(result.cell.compiler for result in summary.cells)
    return [arm for arm in present if arm not in shown and _timed(summary, arm)]


def _timed(summary: results.Summary, arm: str) -> bool:
    return any(result.cell.compiler == arm and result.step is not None for result in summary.cells)


def lead_pairs(summary: results.Summary) -> list[results.Comparison]:
    """The headline's pairs: frameworks in the headline arm; with one framework its own arms in one process."""
    wanted = label(summary)
    pairs = [p for p in summary.pairs if (p.a.compiler, p.a.label) == (summary.headline_arm, wanted)]
    return pairs or lead_arms(summary)


def lead_arms(summary: results.Summary, expert: bool = False) -> list[results.Comparison]:
    """Eager against each shown arm."""
    shown, wanted = arms(summary, expert), label(summary)
    return [pair for pair in summary.arms if pair.b.compiler in shown and pair.b.label == wanted]


def headline(pair: results.Comparison, summary: results.Summary) -> Headline:
    """The sentence of a pair. Arms of one framework are named, and the compiled one is what the sentence is about."""
    prefix = names(summary.cells).get(pair.a.comparison, pair.a.workload)
    between = pair.a.framework != pair.b.framework
    name_a, name_b = (pair.a.framework, pair.b.framework) if between else (side(pair.a), side(pair.b))
    if between and pair.a.compiler != summary.headline_arm:
        name_a, name_b = side(pair.a), side(pair.b)
    if pair.verdict is None:
        why = no_ratio(pair, summary)
        return Headline("problem", f"{prefix}: {name_a} and {name_b} on {platform(summary)}: {why}", (), pair)
    judged = pair.verdict
    if not between:  # "compiled 3.1x faster than eager" reads better than the other way round
        judged = dataclasses.replace(judged, estimate=judged.estimate.inverse())
        name_a, name_b = name_b, name_a
    text = verdict.sentence(judged, name_a, name_b, platform(summary))
    return Headline(judged.kind, f"{prefix}: {text}", tuple(reservations(pair, summary)), pair)


def no_ratio(pair: results.Comparison, summary: results.Summary) -> str:
    """Why a pair has no ratio; the whole reason of a cell without a time stands with that cell."""
    lacking = [r for r in summary.cells if r.cell in (pair.a, pair.b) and r.step is None]
    if not lacking:
        return f"no ratio: {pair.problem}"
    said = ", ".join(f"{side(r.cell)} {'has no sample' if r.status == 'ok' else r.status}" for r in lacking)
    gate = "; gate failed" if any(r.status == "mismatch" for r in lacking) else ""
    return f"no time: {said}{gate}, see below"


def common_notes(found: Iterable[Headline]) -> list[str]:
    """Notes that all sentences have: said once, above them."""
    notes = [headline.notes for headline in found if headline.kind != "problem"]
    return [note for note in notes[0] if all(note in others for others in notes)] if notes else []


def reservations(pair: results.Comparison, summary: results.Summary) -> list[str]:
    """What takes from a headline's weight."""
    found = ["not transferable"] if pair.a.preset in NOT_TRANSFERABLE else []
    members = [result for result in summary.cells if result.cell in (pair.a, pair.b)]
    if any(result.facts.get("synthetic") for result in members):
        found.append("synthetic inputs")
    if pair.a.label != "matched" and pair.a.option is None:
        found.append(f"settings {pair.a.label}: not the same work")
    if any(result.busy for result in members):
        found.append("machine busy")
    found += [f"clock of {side(r.cell)} not trusted" for r in members if r.fence_ok is False]
    return found


def lead_gaps(summary: results.Summary) -> list[results.Gap]:
    """Gaps of the first screen: all where they are few, else the largest of each comparison."""
    gaps = matched_gaps(summary)
    if len(gaps) <= MAX_GAPS_FIRST:
        return gaps
    largest: dict[str, results.Gap] = {}
    for gap in gaps:
        held = largest.get(gap.a.comparison)
        if held is None or abs(gap.total.mean) > abs(held.total.mean):
            largest[gap.a.comparison] = gap
    return list(largest.values())


def first_of_pair(summary: results.Summary, gap: results.Gap) -> bool:
    """Whether no other way to split the same gap comes before this one: settings are told once."""
    return next(other for other in summary.gaps if (other.a, other.b) == (gap.a, gap.b)) is gap


def matched_gaps(summary: results.Summary) -> list[results.Gap]:
    """Gaps of the headline's settings."""
    return [gap for gap in summary.gaps if gap.a.label == label(summary)]


def settings_of(summary: results.Summary, gap: results.Gap) -> list[results.Changed]:
    """What was measured of other settings of the two sides of a gap, in its arm."""
    wanted = (gap.a.comparison, gap.a.compiler)
    return [
        changed
        for name in (gap.a.framework, gap.b.framework)
        for changed in summary.settings
        if changed.framework == name and (changed.comparison, changed.effect.a.compiler) == wanted
    ]


def settings_bar(summary: results.Summary, gap: results.Gap) -> estimates.Estimate | None:
    """[T_a(shipped) - T_a(matched)] - [T_b(shipped) - T_b(matched)]; None unless both were measured.

    The four cells ran in different processes: their errors are taken as independent.
    """
    if gap.a.label != "matched":
        return None
    shipped = {c.framework: c.effect.difference for c in settings_of(summary, gap) if c.label == "shipped"}
    a, b = shipped.get(gap.a.framework), shipped.get(gap.b.framework)
    return None if a is None or b is None else estimates.combine([(1, a), (-1, b)])


def break_even(summary: results.Summary, result: results.CellResult) -> str:
    """Steps after which an arm has paid for its compilation: a number, "never", "unclear", or a dash for eager.

    A number is only given where the saving itself is a difference.
    """
    pair = next((p for p in summary.arms if p.b == result.cell), None)
    if pair is None or pair.verdict is None:
        return "-"
    if pair.verdict.kind != "difference":
        return "unclear"
    if pair.verdict.estimate.mean <= 0:  # of eager over the arm
        return "never"
    steps = result.break_even_step
    return "-" if steps is None else "at once" if steps < 1 else units.significant(steps)


def grouped_failures(found: Sequence[results.CellResult]) -> list[tuple[str, str, str]]:
    """Cells without a time as (which, status, reason), one entry for what has the same reason."""
    called = names(found)
    groups: dict[tuple[str, str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for result in found:
        if result.step is None:
            status = "no sample" if result.status == "ok" else result.status
            which = groups.setdefault((result.cell.framework, status, result.reason), ({}, {}))
            which[0][result.cell.compiler] = which[1][called[result.cell.comparison]] = None
    return [
        (f"{framework} {', '.join(named)} ({', '.join(where)})", status, reason)
        for (framework, status, reason), (named, where) in groups.items()
    ]


def disk_notes(found: Sequence[results.CellResult]) -> list[tuple[str, str]]:
    """(cells, why no build came from the disk), one entry for each reason."""
    groups: dict[str, dict[str, dict[str, None]]] = {}
    for result in found:
        if result.step is not None and result.disk_note:
            of_note = groups.setdefault(result.disk_note, {})
            of_note.setdefault(result.cell.framework, {})[result.cell.compiler] = None
    return [(_who(of_note), note) for note, of_note in groups.items()]


def _who(arms_of: dict[str, dict[str, None]]) -> str:
    return ", ".join(f"{framework} ({', '.join(named)})" for framework, named in arms_of.items())


def launches(summary: results.Summary) -> int:
    """Launches that brought samples."""
    return max((result.num_launches for result in summary.cells), default=0)


def census_lines(found: Sequence[results.CellResult], expert: bool) -> list[str]:
    """Whether the gate counted the operations of a step: where FLOPs agree, what was not checked and why, what it took.

    With `expert` also the same work in other forms.
    """
    asked = [result for result in found if result.census]
    if not asked:
        return []
    agree = [result for result in asked if result.census["status"] == "ok"]
    who = f"FLOPs and communication of a step are the workload's in {len(agree)} of {len(asked)} cells"
    seconds = sum(result.census["seconds"] for result in asked)
    lines = [f"census of operations: {who}; it took {units.significant(seconds)} s of the first launch"]
    reasons: dict[str, dict[str, None]] = {}
    for result in asked:
        if result.census["status"] not in ("ok", "mismatch"):
            reasons.setdefault(result.census["reason"], {})[side(result.cell)] = None
    lines += [f"FLOPs not checked: {', '.join(cells_of)}: {reason}" for reason, cells_of in reasons.items()]
    if expert:
        lines += dict.fromkeys(text for result in agree for text in result.census["findings"])
    return lines
