"""The report of a parallel run as text: verdicts in words, bars, findings, a table of effects and one of arms."""

from __future__ import annotations

from collections.abc import Sequence

from xlacompare.core import claims, effects, estimates, units
from xlacompare.core import parallel_results as results
from xlacompare.parallel import arms, table
from xlacompare.report import advice, parallel_advice, parallel_traces, text, words
from xlacompare.report import page as pages
from xlacompare.report import parallel_data as data

LOST = ("crash", "hang", "out_of_memory", "mismatch")
NAME_WIDTH, VALUE_WIDTH = 30, 31

DEFINITIONS = """\
step: mean seconds of a training step in blocks of back-to-back steps, one barrier before, one fence at the end, the \
maximum over ranks in every arm; interval by t over launches, or over the visits of the only launch
exposed: real - elided; its first part, token - elided, is waiting for late ranks, latency, a pipeline's bubble and \
the barrier that a collective is to fusion; its second, real - token, is bytes
wire: the collectives of the step's own census in order, without compute; latency: the same on one element each
hidden: wire - exposed, which is elided + alone - real, the saving of overlap; its share of the wire
overlap efficiency: hidden / min(elided, wire): 1 is the best possible, 0 is serial, below 0 overlap costs more than \
it gains
compute: the time without communication of the rank that needs least over all launches; imbalance: what the slowest \
rank needs beyond it; waiting of a rank: the slowest rank's time without communication minus its own
closure: what the arms do not explain of `serial`; where its interval excludes 0 no hidden time is claimed
withheld: a check says that an arm is not what it stands for
intervals: t over launches; of one launch over its visits, in which all arms of a framework stand next to each other; \
ratios by the delta method; that bars add up is algebra and no evidence for a cause
none > X: two one-sided tests; open: inconclusive, with how many launches or visits would decide"""


def write(page: pages.Page, summary: results.ParallelSummary, expert: bool) -> None:
    """Writes the whole report."""
    _title(page, summary)
    _headlines(page, summary)
    for pair in summary.pairs:
        _bars(page, summary, pair)
    _findings(page, summary)
    for of in summary.frameworks:
        _effects(page, summary, of, expert)
    _arms(page, summary)
    _not_measured(page, summary, expert)
    if expert:
        _definitions(page, summary)
    _next(page, summary)


def _title(page: pages.Page, summary: results.ParallelSummary) -> None:
    if summary.ending != "complete":
        page.line(text.ENDINGS.get(summary.ending, f"INCOMPLETE: {summary.ending}"), "bold red", indent=0)
    called = list(dict.fromkeys(data.called(arm.cell, summary) for arm in summary.arms))
    what = called[0] if len(called) == 1 else f"{len(called)} comparisons" if called else "nothing measured"
    parts = [
        f"xlacompare: {', '.join(data.frameworks(summary))} on {data.platform(summary)}: {what}",
        *dict.fromkeys(f"preset {arm.cell.preset}" for arm in summary.arms),
        words.number_of(data.launches(summary), "launch"),
    ]
    page.line("; ".join(parts), "bold", indent=0)
    if summary.machine:
        cores = len(summary.machine.get("cores_available") or ()) or summary.machine.get("cores_online", "?")
        page.line(f"{summary.machine.get('cpu', '?')}: {cores} cores", "dim", indent=0)
    for warning in data.reservations(summary):
        page.line(f"WARNING: {warning}", "bold red", indent=0)


def _headlines(page: pages.Page, summary: results.ParallelSummary) -> None:
    page.heading("Step time over ranks, ratio; exposed communication, ms a step [95% interval]")
    for headline in data.headlines(summary):
        page.line(words.cut(headline.sentence, 2 * text.MAX_REASON), words.STYLES[headline.kind])
    for refusal in summary.refusals:
        page.line(refusal, words.STYLES["problem"])
    judged = [pair.verdict for pair in summary.pairs if pair.verdict is not None]
    if judged:
        methods = ", ".join(dict.fromkeys(verdict.estimate.method for verdict in judged))
        page.line(f"ratios: {methods}; family: {judged[0].family}", "dim")
    if not summary.frameworks:
        page.line("no arm has a time, see below")


def _bars(page: pages.Page, summary: results.ParallelSummary, pair: results.Pair) -> None:
    if pair.total is None:
        return
    a, b = data.who(pair.a, summary), data.who(pair.b, summary)
    where = f"{data.prefix(pair.a, summary)}{pair.variant}"
    if not pair.bars:
        page.heading(f"{where}: {a} - {b}: no bars: {pair.no_bars}")
        return
    terms = [bar.seconds.mean for bar in pair.bars]
    places, largest = words.places_ms(pair.total.mean, terms), max(map(abs, terms))
    total = _number(pair.total, "+", places, words.MS)
    page.heading(f"{where}: {a} - {b} = {total} ms a step, the sum of")
    for bar in pair.bars:
        value, drawn = _number(bar.seconds, "+", places, words.MS), words.bar(bar.seconds.mean, largest)
        line = f"{bar.name:<{NAME_WIDTH}} {value:<{VALUE_WIDTH}} {drawn:<{words.BAR_WIDTH}} {data.said(bar.verdict)}"
        page.verbatim(f"    {line.rstrip()}", "dim" if words.includes_zero(bar.seconds) else "")
    page.line(f"{pair.bars[0].seconds.method}; family: {pair.bars[0].verdict.family}", "dim")


def _findings(page: pages.Page, summary: results.ParallelSummary) -> None:
    if not summary.findings:
        return
    page.heading("Findings")
    cells = {arm.cell.comparison: arm.cell for arm in summary.arms}
    for found in summary.findings:
        where = f"{data.prefix(cells[found.comparison], summary)}{found.framework} {found.variant}"
        page.line(f"{where}: {found.kind}: {found.evidence}", "yellow")
        page.line(f"remedy: {found.remedy}", "dim", indent=4)


def _effects(page: pages.Page, summary: results.ParallelSummary, of: results.FrameworkEffects, expert: bool) -> None:
    """A table for each variant, and for each change; of a planted variant itself with `expert` only."""
    where = f"{data.prefix(of.cell, summary)}{data.who(of.cell, summary)}"
    groups: dict[tuple[str, str], list[claims.Effect]] = {}
    for entry in of.effects:
        groups.setdefault((entry.variant, entry.versus), []).append(entry)
    for (variant, versus), found in groups.items():
        if not (versus or expert or data.matched(variant)):
            continue
        ordered = sorted(found, key=lambda entry: data.ORDER.index(entry.name))
        what = f"{versus} - {variant}" if any(e.name == "compiler" for e in ordered) else f"{variant} - {versus}"
        step_s = data.real_s(of, versus or variant, summary)
        total = f", of {units.format_duration(step_s)} a step" if step_s else ""
        page.heading(f"{where} {what if versus else variant}: ms a step [95%]{total}")
        page.table(["effect", "ms [95%]", "of step", "verdict"], [_row(e, bool(versus), step_s) for e in ordered])
        for line in data.reasons(ordered):
            page.line(line, "dim")
        if not versus:
            _waiting(page, of, variant, _places(step_s or words.MS))
            parallel_traces.write(page, where, variant, of.traced.get(variant))
    families = dict.fromkeys(e.verdict.family for e in of.effects if e.verdict)
    if families:
        page.line(f"verdicts: family: {', '.join(families)}", "dim")


def _row(entry: claims.Effect, change: bool, step_s: float | None) -> list[str]:
    found, label = entry.estimate, data.LABELS[entry.name]
    if found is None:
        return [label, "-", "", data.judged(entry)]
    if found.scale == "log":
        return [label, units.format_ratio(*found.ratio()) if found.df > 0 else f"{found.ratio()[0]:.2f}x [?]", "",
                data.judged(entry)]  # fmt: skip
    if entry.unit == "ratio":
        shown = data.percent(found) if entry.name == effects.SHARE else _number(found, "", 2)
        return [label, shown, "", data.judged(entry)]
    sign = "+" if change or entry.name in (effects.CLOSURE, effects.CONTENTION) else ""
    share = words.share(round(found.mean / step_s, 2) + 0.0) if step_s else ""  # no "-0%"
    return [label, _number(found, sign, _places(step_s or found.mean), words.MS), share, data.judged(entry)]


def _places(step_s: float) -> int:
    """Decimals of all milliseconds of a table: one digit more than the step itself has."""
    return words.decimals([step_s / words.MS], 4)


def _number(found: estimates.Estimate, sign: str, places: int, unit: float = 1.0) -> str:
    ends = (found.mean, found.low, found.high)
    mean, low, high = (f"{value / unit:{sign}.{places}f}" for value in ends)
    return f"{mean} [{low}, {high}]" if found.df > 0 else f"{mean} [?]"


def _waiting(page: pages.Page, of: results.FrameworkEffects, variant: str, places: int) -> None:
    """Waiting per rank, and whose time is called compute."""
    found = of.waiting.get(variant)
    if not found:
        return
    cells = [f"rank {rank} {_number(wait, '', places, words.MS)}" for rank, wait in enumerate(found)]
    page.line(f"waiting for the slowest rank: {'; '.join(cells)}; compute is rank {of.fastest[variant]}'s")


def _arms(page: pages.Page, summary: results.ParallelSummary) -> None:
    groups: dict[str, list[results.ArmResult]] = {}
    for arm in summary.arms:
        if arm.time is not None:
            where = f"{data.prefix(arm.cell, summary)}{data.who(arm.cell, summary)} {arm.variant}"
            groups.setdefault(where, []).append(arm)
    for where, members in groups.items():
        page.heading(f"Arms: {where}")
        columns = ["arm", "step ms [95%]", "dispatch", "collectives", "on the wire", "launches x visits"]
        page.table(columns, [_arm_row(arm) for arm in members])
        for line in dict.fromkeys(line for arm in members for line in arm.census.get("findings", ())):
            page.line(line, "yellow")


def _arm_row(arm: results.ArmResult) -> list[str]:
    ops, moved = arm.census.get("ops"), arm.census.get("wire_bytes")
    return [
        arm.cell.communication,
        words.step_ms(arm.time),
        words.share(arm.dispatch_share),
        "-" if ops is None else str(len(ops)),
        words.size(moved),
        f"{arm.num_launches} x {arm.num_visits // max(1, arm.num_launches)}",
    ]


def _not_measured(page: pages.Page, summary: results.ParallelSummary, expert: bool) -> None:
    limit = 10_000 if expert else text.MAX_REASON
    lines = [
        (f"{which}: {status}: {reason}", "red" if status in LOST else "")
        for which, status, reason in data.failures(summary)
    ]
    lines += _left_out(summary.arms) + [(problem, "red") for problem in summary.problems]
    if lines:
        page.heading("Not measured")
    for line, style in lines:
        page.line(words.cut(line, limit), style)


def _left_out(found: Sequence[results.ArmResult]) -> list[tuple[str, str]]:
    compiled, disturbed = sum(arm.num_compiled for arm in found), sum(arm.num_disturbed for arm in found)
    made = []
    if compiled:
        made.append((f"{words.number_of(compiled, 'block')} during which something was compiled: no samples", ""))
    if disturbed:
        used = sum(arm.num_disturbed_used for arm in found)
        but = f", but for {used} where too few others are left: the machine is busy, the times are too" if used else ""
        made.append((f"{words.number_of(disturbed, 'visit')} disturbed by other processes and left out{but}", ""))
    return made


def _definitions(page: pages.Page, summary: results.ParallelSummary) -> None:
    page.heading("What the words mean")
    for name in dict.fromkeys(arm.cell.strategy for arm in summary.arms):
        if name in table.STRATEGIES:
            page.line(f"{name}: {table.STRATEGIES[name].definition}")
    for name, meaning in arms.DEFINITIONS.items():
        page.line(f"arm {name}: {meaning}")
    for line in DEFINITIONS.splitlines():
        page.line(line)


def _next(page: pages.Page, summary: results.ParallelSummary) -> None:
    found: Sequence[advice.Step] = parallel_advice.next_steps(summary)[: text.MAX_STEPS]
    if not summary.config:
        return
    page.heading("Next")
    page.line(parallel_advice.command(summary.config), hang=6)
    width = max((len(step.flags) for step in found), default=0)
    for step in found:
        page.verbatim(f"    {step.flags or '(as it is)':<{max(width, 10)}}  {step.why}")
