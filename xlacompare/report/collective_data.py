"""What the report of a collective run shows: names, groups of sizes, sentences. No layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from xlacompare.collectives import analysis, bandwidth, results, table
from xlacompare.core import collective_cell as cells
from xlacompare.core import units

NOT_TRANSFERABLE = "more ranks than cores: these times are the scheduler's, not transferable"
ONE_LAUNCH = "one launch, which says nothing of how launches differ"


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Neighbouring sizes of one pair about which the same is said.

    Attributes:
      kind: The verdict's kind, or "problem".
      slower, faster: Sides of a difference; in alphabetical order else.
      ratios: In the order of size.
      text: What is said, without the sizes.
    """

    kind: str
    slower: str
    faster: str
    ratios: tuple[results.Ratio, ...]
    text: str

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        return span([ratio.a.size_bytes for ratio in self.ratios])


def frameworks(summary: results.CollectiveSummary) -> list[str]:
    """Frameworks of the run, in the order of the flags where that is known."""
    asked = list(summary.config.get("frameworks", ()))
    return list(dict.fromkeys(asked + [result.cell.framework for result in summary.cells]))


def side(cell: cells.CollectiveCell, summary: results.CollectiveSummary) -> str:
    """A cell in a sentence: its framework, and the mode where the framework ran in several."""
    modes = {r.cell.mode for r in summary.cells if r.cell.framework == cell.framework and r.time is not None}
    return f"{cell.framework} {cell.mode}" if len(modes) > 1 else cell.framework


def span(sizes: Sequence[int]) -> str:
    """Such as "1.00 KiB to 64.0 MiB"; one size alone; "" for an operation without a size."""
    first, last = min(sizes), max(sizes)
    if last == 0:
        return ""
    return size(first) if first == last else f"{size(first)} to {size(last)}"


def size(count: int) -> str:
    """Such as "64 KiB", "1.50 KiB", "8 B"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor} {unit}"
    return units.format_bytes(count)


def called(cell: cells.CollectiveCell, transport: bool = True) -> str:
    """A series in words: "all_reduce sum, float32, 2 ranks, over gloo"."""
    parts = [" ".join(part for part in (cell.collective, cell.reduction, cell.pattern) if part)]
    if cell.collective != table.BARRIER.name:
        parts.append(cell.dtype)
    mesh = "x".join(map(str, cell.mesh))
    along = "" if cell.axis is None else f" along axis {cell.axis} of {mesh}"
    parts.append(f"{analysis.ranks(cell)} ranks{along}")
    if cell.placement != "out_of_place":
        parts.append("in place")
    if transport:
        parts.append(f"over {cell.transport}")
    return ", ".join(parts)


def place(summary: results.CollectiveSummary, cell: cells.CollectiveCell) -> tuple[int, str, int]:
    """Order of rows: size, then the frameworks as in the flags."""
    known = frameworks(summary)
    return cell.size_bytes, cell.mode, known.index(cell.framework)


def series(summary: results.CollectiveSummary) -> dict[tuple[str, str, str], list[results.CollectiveResult]]:
    """(series, transport, platform) -> results with a time, in the order of the rows; series as they were run."""
    made: dict[tuple[str, str, str], list[results.CollectiveResult]] = {}
    for result in summary.cells:
        if result.time is not None:
            key = (result.cell.series, result.cell.transport, result.cell.platform)
            made.setdefault(key, []).append(result)
    return {key: sorted(group, key=lambda r: place(summary, r.cell)) for key, group in made.items()}


def pairs(summary: results.CollectiveSummary) -> dict[tuple[str, str, str], list[results.Ratio]]:
    """(series, transport, the two sides) -> ratios by size."""
    made: dict[tuple[str, str, str], list[results.Ratio]] = {}
    for ratio in summary.ratios:
        who = " and ".join(sorted((side(ratio.a, summary), side(ratio.b, summary))))
        made.setdefault((ratio.a.series, ratio.a.transport, who), []).append(ratio)
    return {key: sorted(group, key=lambda ratio: ratio.a.size_bytes) for key, group in made.items()}


def stretches(ratios: Sequence[results.Ratio], summary: results.CollectiveSummary) -> list[Stretch]:
    """Neighbouring sizes with the same verdict, joined."""
    groups: list[list[results.Ratio]] = []
    for ratio in ratios:
        if groups and _alike(groups[-1][-1], ratio, summary):
            groups[-1].append(ratio)
        else:
            groups.append([ratio])
    return [_stretch(group, summary) for group in groups]


def _alike(one: results.Ratio, other: results.Ratio, summary: results.CollectiveSummary) -> bool:
    if one.verdict is None or other.verdict is None:
        return one.verdict is other.verdict and no_ratio(one, summary) == no_ratio(other, summary)
    if (one.verdict.kind, one.verdict.negligible) != (other.verdict.kind, other.verdict.negligible):
        return False
    return one.verdict.kind != "difference" or side(one.a, summary) == side(other.a, summary)


def _stretch(group: list[results.Ratio], summary: results.CollectiveSummary) -> Stretch:
    first = group[0]
    slower, faster = side(first.a, summary), side(first.b, summary)
    if first.verdict is None:
        return Stretch("problem", slower, faster, tuple(group), no_ratio(first, summary))
    if first.verdict.kind == "difference":
        text = f"{slower} {_amount(group)} slower than {faster}"
        if first.verdict.negligible:
            text += f" (negligible: within {units.format_percent(first.verdict.margin)})"
    elif first.verdict.kind == "no_difference":
        text = f"no difference larger than {units.format_percent(first.verdict.margin)} ({_amount(group)})"
    else:
        text = f"inconclusive{_why_open(group)} ({_amount(group)})"
    return Stretch(first.verdict.kind, slower, faster, tuple(group), text)


def no_ratio(ratio: results.Ratio, summary: results.CollectiveSummary) -> str:
    """Why a pair has no ratio; the whole reason of a cell without a time stands with that cell."""
    lacking = [r for r in summary.cells if r.cell in (ratio.a, ratio.b) and r.time is None]
    if not lacking:
        return f"no ratio: {ratio.problem}"
    said = [f"{r.cell.framework} {'has no sample' if r.status == 'ok' else r.status}" for r in lacking]
    return f"no time: {', '.join(said)}, see below"


def _amount(group: list[results.Ratio]) -> str:
    """A ratio with its interval, or the range of the ratios of several sizes (the table has their intervals)."""
    known = [ratio.verdict.estimate.ratio() for ratio in group if ratio.verdict is not None]
    if len(known) == 1 and group[0].verdict is not None and group[0].verdict.estimate.df > 0:
        return units.format_ratio(*known[0])
    low, high = (f"{value:.2f}" for value in (min(k[0] for k in known), max(k[0] for k in known)))
    return f"{low}x" if low == high else f"{low}x to {high}x"


def _why_open(group: list[results.Ratio]) -> str:
    judged = [ratio.verdict for ratio in group if ratio.verdict is not None]
    if all(verdict.estimate.df <= 0 for verdict in judged):
        return ": one launch"
    needed = [verdict.launches_needed for verdict in judged]
    if all(count is not None for count in needed):
        return f": about {max(count for count in needed if count is not None)} launches would decide"
    return ""


def headline(key: tuple[str, str, str], ratios: Sequence[results.Ratio], summary: results.CollectiveSummary) -> str:
    """What is said of a pair over the sizes of a series."""
    found = stretches(ratios, summary)
    parts = [f"{stretch.sizes}: {stretch.text}" if stretch.sizes else stretch.text for stretch in found]
    note = f"; {NOT_TRANSFERABLE.split(':')[0]}" if oversubscribed(summary, ratios) else ""
    return f"{called(ratios[0].a)}, {key[2]}: {'; '.join(parts)}{note}"


def oversubscribed(summary: results.CollectiveSummary, ratios: Iterable[results.Ratio]) -> bool:
    """Whether a cell of these ratios had more ranks than cores."""
    members = {cell for ratio in ratios for cell in (ratio.a, ratio.b)}
    return any(result.oversubscribed for result in summary.cells if result.cell in members)


def kind_of(found: Sequence[Stretch]) -> str:
    """The kind that a headline is coloured by: the one that needs a look first."""
    kinds = {stretch.kind for stretch in found}
    return next(kind for kind in ("problem", "difference", "inconclusive", "no_difference") if kind in kinds)


def failures(summary: results.CollectiveSummary) -> list[tuple[str, str, str]]:
    """Cells without a time as (which, status, reason), one entry for what has the same reason."""
    groups: dict[tuple[str, str, str, str], list[cells.CollectiveCell]] = {}
    logs: dict[tuple[str, str, str, str], str] = {}
    for result in summary.cells:
        if result.time is None:
            status = "no sample" if result.status == "ok" else result.status
            reason, mark, log = result.reason.partition("; log: ")  # each cell has its own: the first one is named
            key = (f"{result.cell.framework} over {result.cell.transport}", result.cell.mode, status, reason)
            groups.setdefault(key, []).append(result.cell)
            logs.setdefault(key, mark + log)
    made = []
    for key, members in groups.items():
        who, _, status, reason = key[:3] + (key[3] + logs[key],)
        names = dict.fromkeys(" ".join(filter(None, (m.collective, m.reduction))) for m in members)
        sizes = span([member.size_bytes for member in members])
        made.append((f"{who}, {', '.join(names)}{f' ({sizes})' if sizes else ''}", status, reason))
    return made


def findings(group: Sequence[results.CollectiveResult], summary: results.CollectiveSummary) -> list[str]:
    """Findings of a series, each once, with who and the sizes that it is about."""
    said: dict[tuple[str, str], list[int]] = {}
    for result in group:
        for text in result.findings:
            said.setdefault((side(result.cell, summary), text), []).append(result.cell.size_bytes)
    every = {result.cell.size_bytes for result in group}
    return [
        f"{who}: {text}" + ("" if set(sizes) == every else f" ({span(sizes)})") for (who, text), sizes in said.items()
    ]


def caveat(group: Sequence[results.CollectiveResult]) -> str:
    """Why busbw says less than the wire carries, where that is known of a transport's algorithm; else ""."""
    return bandwidth.CAVEATS.get((group[0].cell.transport, group[0].cell.collective), "")


def padded(group: Sequence[results.CollectiveResult]) -> str:
    """Sizes that got a pad; "" for none."""
    known = {r.cell.size_bytes: r.cell.pad_bytes for r in group if r.cell.pad_bytes}
    return ", ".join(f"{size} B + {pad} B" for size, pad in known.items())
