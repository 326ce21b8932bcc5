"""Below the first screen: a table for each workload, the other gaps, the arms, the settings, where the time went."""

from __future__ import annotations

from collections.abc import Callable

from xlacompare.core import analysis, plan, results
from xlacompare.report import data, text, words
from xlacompare.report import page as pages

Column = tuple[str, Callable[[results.CellResult], str]]

DEFINITIONS = """\
step: mean seconds of a training step (forward, loss, backward, update) in blocks of steps with one fence at the end; \
interval by t over launches, or over the blocks of the only launch
bound by: CPU time of the dispatching thread (Python, tracing, dispatch) over block time; host from 50%, device below \
25%, mixed between; sync, where that thread does the work itself; unclear, where other processes had the cores
hidden: step time with a fence after every step minus step time: host time that dispatching ahead hides
first step: build and first step; cold, with empty caches; from disk, in a later process by the framework's own \
counter; again, in the same process
pays off: extra seconds until the first step is done over seconds saved a step, against the eager arm
GFLOP/s: operations of the workload's formula (not counted in the program) over the mean step time
gain: the bar over the slower side's step; above 100%, the compiler removes most of it already and it cannot go \
alone; that the bars add up is algebra and no evidence for a cause
difference: the interval excludes no effect; no difference larger than X: two one-sided tests; else inconclusive
a block during which something was compiled is no sample; slow blocks stay"""


def write(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    """Writes everything below the first screen."""
    page.blank()
    page.line("-" * page.width, "dim", indent=0)
    for name, called in data.names(summary.cells).items():
        _workload(page, summary, name, called, expert)
    _other_gaps(page, summary)
    _arms(page, summary, expert)
    _settings(page, summary, expert)
    _time(page, summary, expert)
    if expert:
        _definitions(page, summary)


def _workload(page: pages.Page, summary: results.Summary, name: str, called: str, expert: bool) -> None:
    shown, wanted = data.arms(summary, expert), data.label(summary)
    timed = [r for r in summary.cells if r.cell.comparison == name and r.step is not None and not r.cell.option]
    chosen = [r for r in timed if r.cell.compiler in shown and (expert or r.cell.label == wanted)]
    if not chosen:
        return
    page.heading(f"{called}: {_about(chosen)}")
    for columns in (_columns(), *([_expert_columns(summary, chosen)] if expert else [])):
        page.table([head for head, _ in columns], [[value(r) for _, value in columns] for r in chosen])


def _about(chosen: list[results.CellResult]) -> str:
    cell, facts = chosen[0].cell, chosen[0].facts
    parts = [f"{cell.preset}, {cell.dtype}, batch {cell.batch_size}, {cell.optimizer}"]
    if facts.get("parameter_count"):
        parts.append(f"{facts['parameter_count']:,} parameters")
    if facts.get("flops_per_step"):
        parts.append(f"{words.giga(facts['flops_per_step'])} GFLOP a step")
    if facts.get("synthetic"):
        parts.append("synthetic inputs")
    parts.append(
        f"{_range([r.num_launches for r in chosen], 'launch')}, {_range([r.num_blocks for r in chosen], 'block')}"
    )
    return "; ".join(parts)


def _range(counts: list[int], word: str) -> str:
    low, high = min(counts), max(counts)
    return words.number_of(high, word) if low == high else f"{low}-{words.number_of(high, word)}"


def _columns() -> list[Column]:
    return [
        ("cell", lambda r: data.side(r.cell)),
        ("step ms", lambda r: words.step_ms(r.step)),
        ("median", lambda r: words.milliseconds(r.median_s)),
        ("bound by", lambda r: words.bound(r.bound, r.host_share)),
        ("hidden", lambda r: "-" if r.pipelining is None else words.milliseconds(r.pipelining.mean)),
        ("first s", lambda r: words.seconds(r.first_step_s.get("cold"))),
        ("memory", lambda r: words.size(r.memory_bytes)),
        ("GFLOP/s", lambda r: words.giga(r.flops_per_s)),
    ]


def _expert_columns(summary: results.Summary, chosen: list[results.CellResult]) -> list[Column]:
    columns: list[Column] = [
        ("cell", lambda r: data.side(r.cell)),
        ("median ms", lambda r: words.milliseconds(r.median_s)),
        ("p90", lambda r: words.milliseconds(r.p90_s)),
    ]
    if any(r.p99_s is not None for r in chosen):
        columns.append(("p99", lambda r: words.milliseconds(r.p99_s)))
    return [
        *columns,
        ("cold s", lambda r: words.seconds(r.first_step_s.get("cold"))),
        ("disk", lambda r: words.seconds(r.first_step_s.get("disk"))),
        ("again", lambda r: words.seconds(r.first_step_s.get("memory"))),
        ("pays off", lambda r: data.break_even(summary, r)),
        ("blocks", lambda r: str(r.num_blocks)),
        ("disturbed", lambda r: str(r.num_disturbed)),
        ("compiled", lambda r: str(r.num_compiled)),
    ]


def _other_gaps(page: pages.Page, summary: results.Summary) -> None:
    first = data.lead_gaps(summary)
    others = [gap for gap in data.matched_gaps(summary) if gap not in first]
    if others:
        page.heading("The other gaps, in ms a step")
    for gap in others:
        text.write_gap(page, summary, gap)


def _arms(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    """Arms within each framework, and pairs in the other arms: described, in no family."""
    lead = data.lead_pairs(summary)
    shown, wanted = data.arms(summary, expert), data.label(summary)
    others = [p for p in data.lead_arms(summary, expert) if p not in lead]
    others += [p for p in summary.pairs if p not in lead and p.a.compiler in shown and p.a.label == wanted]
    if others:
        page.heading("Other pairs (each verdict by itself, not adjusted for their number)")
    found = [data.headline(pair, summary) for pair in others]
    said = data.common_notes(found)
    for headline in found:
        page.line(words.cut(headline.text(said), 2 * page.width - 10), words.STYLES[headline.kind])


def _settings(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    measured = [c for c in summary.settings if c.effect.difference is not None]
    measured = [c for c in measured if expert or c.effect.a.compiler == summary.headline_arm]
    if not measured:
        return
    page.heading("Settings: a framework's own against the matched ones (not the same work)")
    called = data.names(summary.cells)
    for changed in measured:
        effect = changed.effect
        who = f"{called[changed.comparison]}: {changed.framework} {effect.a.compiler}, {changed.label}"
        given = ", ".join(f"{name}={value}" for name, value in changed.settings.items()) or "nothing differs"
        if effect.difference is not None:
            value = words.signed_ms(effect.difference, words.places_ms(effect.difference.mean), " ms")
            page.line(f"{who} ({given}): {value}")


def _time(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    page.heading("How it was measured")
    if summary.plan:
        chosen = plan.Plan.from_dict(summary.plan)
        between = any(found.effect.how == "launches" for found in summary.flags)
        page.line(analysis.plan_sentence(chosen, len(data.frameworks(summary)), between))
    if summary.times:
        parts = {name: s for name, s in summary.times.items() if name != "total"}
        total = summary.times.get("total", sum(parts.values()))
        parts["rest"] = max(0.0, total - sum(parts.values()))
        page.line(f"{total:.0f} s in all: " + ", ".join(f"{name} {s:.0f} s" for name, s in parts.items()))
    if summary.shares:
        page.line(_shares(summary.shares))
    for line in data.census_lines(summary.cells, expert):
        page.line(line)


def _shares(shares: dict[str, float]) -> str:
    named = (("start", "start-up"), ("build", "build, gate, warm-up"), ("measure", "measuring"))
    parts = [f"{word} {words.share(shares[key])}" for key, word in named if key in shares]
    inside = (
        f"; after warm-up {words.share(shares['timed'])} of the time is inside timed blocks"
        if "timed" in shares
        else ""
    )
    return f"of the launches: {', '.join(parts)}{inside}"


def _definitions(page: pages.Page, summary: results.Summary) -> None:
    page.heading("What the words mean")
    for line in DEFINITIONS.splitlines():
        page.line(line)
    meanings = dict.fromkeys(r.memory_meaning for r in summary.cells if r.memory_meaning)
    for meaning in meanings:
        page.line(f"peak: {meaning}")
    for result in (r for r in summary.cells if r.cell.label == data.label(summary)):
        phases = {name: value for name, value in result.phases.items() if value is not None}
        if phases:
            shown = ", ".join(f"{name.removesuffix('_s')} {words.seconds(value)} s" for name, value in phases.items())
            page.line(
                f"{data.names(summary.cells)[result.cell.comparison]}, {data.side(result.cell)}, cold: {shown}", "dim"
            )
