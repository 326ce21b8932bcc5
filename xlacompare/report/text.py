"""The first screen: what differs and by how much, why, what it costs, what is not known, what to run next."""

from __future__ import annotations

from xlacompare.core import estimates, results
from xlacompare.report import advice, data, flag_table, words
from xlacompare.report import page as pages

ENDINGS = {
    "interrupted": "INTERRUPTED: this was measured until then",
    "error": "INCOMPLETE: the run ended with an error; this was measured until then",
    "": "INCOMPLETE: the run left no end record (killed, or still running); this was measured until then",
}
NAME_WIDTH = 42
VALUE_WIDTH = 31
GAIN_COLUMN = 4 + NAME_WIDTH + 1 + VALUE_WIDTH + 1 + words.BAR_WIDTH + 1
MAX_REASON = 270  # characters of a reason on the first screen; all of it with --expert
MAX_STEPS = 4


def write(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    """Writes the first screen."""
    _title(page, summary)
    _headlines(page, summary)
    flag_table.write(page, summary)
    _bars(page, summary)
    _costs(page, summary, expert)
    _not_measured(page, summary, expert)
    _next(page, summary, expert)


def _title(page: pages.Page, summary: results.Summary) -> None:
    if summary.ending != "complete":
        page.line(ENDINGS.get(summary.ending, f"INCOMPLETE: {summary.ending}"), "bold red", indent=0)
    preset = summary.config.get("preset", "?")
    parts = [f"xlacompare: {', '.join(data.frameworks(summary))} on {data.platform(summary)}", f"preset {preset}"]
    if preset in data.NOT_TRANSFERABLE:
        parts[-1] += " (not transferable)"
    parts.append(", ".join(dict.fromkeys(r.cell.dtype for r in summary.cells)) or "nothing measured")
    parts.append(_launches(summary))
    page.line("; ".join(parts), "bold", indent=0)
    shared = summary.config.get("plugin")
    if shared:
        page.line(f"one XLA build under all: {shared['name']}, PJRT API {shared['api_version']}", "dim", indent=0)
    if summary.machine:
        cores = len(summary.machine.get("cores_available") or ()) or summary.machine.get("cores_online", "?")
        used = summary.config.get("num_cores", "?")
        page.line(f"{summary.machine.get('cpu', '?')}: {used} of {cores} cores for each framework", "dim", indent=0)


def _launches(summary: results.Summary) -> str:
    done = data.launches(summary)
    planned = summary.plan["looks"][-1] if summary.plan else done
    text = words.number_of(done, "launch")
    return text if done >= planned or summary.ending == "complete" else f"{done} of {planned} launches"


def _headlines(page: pages.Page, summary: results.Summary) -> None:
    pairs = data.lead_pairs(summary)
    if summary.flags and not pairs:
        return  # the options are what this run compares
    found = [data.headline(pair, summary) for pair in pairs]
    said = data.common_notes(found)
    page.heading("; ".join([_compared(summary, pairs), *said]))
    for headline in found:
        page.line(words.cut(headline.text(said), MAX_REASON), words.STYLES[headline.kind])
    if not pairs:
        page.line("no pair to compare: " + _why_no_pair(summary))
    notes = _footnote(pairs)
    if notes:
        page.line(notes, "dim")


def _compared(summary: results.Summary, pairs: list[results.Comparison]) -> str:
    between = any(pair.a.framework != pair.b.framework for pair in pairs)
    arm = f"arm {summary.headline_arm}" if between else "compiler arms of one framework"
    return f"Step time, {arm}, ratio [95% interval]"


def _why_no_pair(summary: results.Summary) -> str:
    if not any(result.step is not None for result in summary.cells):
        return "no cell has a time, see below"
    return "give two frameworks, or --compiler=eager,compiled for the arms of one"


def _footnote(pairs: list[results.Comparison]) -> str:
    judged = [pair.verdict for pair in pairs if pair.verdict is not None]
    if not judged:
        return ""
    family = judged[0].family or "verdicts not adjusted for their number"
    methods = ", ".join(dict.fromkeys(verdict.estimate.method for verdict in judged))
    return f"{methods}; family: {family}"


def _bars(page: pages.Page, summary: results.Summary) -> None:
    gaps = data.lead_gaps(summary)
    effects = [*data.lead_arms(summary), *(changed.effect for changed in summary.settings)]
    if not gaps and all(effect.difference is None for effect in effects):
        return
    units = "ms a step [95% interval]"
    meaning = f"{units}, + is slower; gain: share of the slower step, if that were fixed" if gaps else units
    page.heading(f"Why: {meaning}")
    for gap in gaps:
        write_gap(page, summary, gap)
    if not gaps:
        for pair in data.lead_arms(summary):
            _compiling(page, summary, pair)
    notes = []
    if len(data.matched_gaps(summary)) > len(gaps):
        notes.append("the other pairs' bars are below")
    if any(bar.gain is not None and bar.gain > 1 for gap in gaps for bar in gap.bars):
        notes.append("gain >100%: the compiler removes most of it already")
    if any(r.bound == "unclear" for r in summary.cells):
        notes.append("machine busy: no bars by thread, they would book the time of others to the programs")
    if notes:
        page.line("; ".join(notes), "dim")
    if not gaps:
        _loose_settings(page, summary)
        if len(data.frameworks(summary)) > 1:
            page.line(
                "no bars between frameworks: they need the eager arm too where a call does the work itself", "dim"
            )


def _compiling(page: pages.Page, summary: results.Summary, pair: results.Comparison) -> None:
    if pair.difference is None:
        return
    called = data.names(summary.cells)[pair.a.comparison]
    value = words.signed_ms(pair.difference, words.places_ms(pair.difference.mean), " ms")
    page.line(f"{called}: {data.side(pair.a)} - {data.side(pair.b)} = {value}: what compiling takes away")


def write_gap(page: pages.Page, summary: results.Summary, gap: results.Gap) -> None:
    """Writes a gap: the sum, the settings beside it, the bars that add up to it."""
    first = data.first_of_pair(summary, gap)
    settings = data.settings_bar(summary, gap) if first else None
    terms = [bar.seconds.mean for bar in gap.bars] + ([settings.mean] if settings else [])
    places, largest = words.places_ms(gap.total.mean, terms), max(map(abs, terms), default=0.0)
    called = data.names(summary.cells)[gap.a.comparison]
    total = words.signed_ms(gap.total, places, " ms")
    step = next(r.step for r in summary.cells if r.cell == gap.a)
    closed = words.gain(gap.total.mean / step.mean, gap.total) if step and gap.total.mean > 0 else ""
    sides = f"{called}: {gap.a.framework} - {gap.b.framework} = {total}, {words.SPLITS[gap.how]}"
    page.verbatim(f"  {sides:<{GAIN_COLUMN - 2}}{closed}", "bold")
    if settings:
        _bar(page, "settings (not the same work, not summed)", settings, places, largest, words.gain(None, settings))
    for changed in data.settings_of(summary, gap) if first else ():
        if ":" in changed.label:
            _changed(page, changed, places, largest)
    for bar in gap.bars:
        _bar(page, bar.name, bar.seconds, places, largest, words.gain(bar.gain, bar.seconds))
    for bar in gap.beside:
        _bar(page, bar.name, bar.seconds, places, largest, "")
    for note in gap.notes:
        page.line(note, "dim", indent=4)
    if gap.operations:
        page.line(f"behind the lowering bar, {gap.operations_from}:", "dim", indent=4)
        for operation in gap.operations:
            page.line(operation, "dim", indent=6)


def _bar(page: pages.Page, name: str, seconds: estimates.Estimate, places: int, largest: float, gain: str) -> None:
    value = words.signed_ms(seconds, places)
    style = "dim" if words.includes_zero(seconds) else ""
    if len(name) > NAME_WIDTH:
        page.line(name, style, indent=4)
        name = ""
    drawn = words.bar(seconds.mean, largest)
    text = f"{name:<{NAME_WIDTH}} {value:<{VALUE_WIDTH}} {drawn:<{words.BAR_WIDTH}} {gain}"
    page.verbatim(" " * 4 + text.rstrip(), style)


def _changed(page: pages.Page, changed: results.Changed, places: int, largest: float) -> None:
    difference = changed.effect.difference
    if difference is None:
        return
    setting = changed.label.partition(":")[2] or changed.label
    _bar(page, f"  {changed.framework}: {setting}", difference, places, largest, words.gain(None, difference))


def _loose_settings(page: pages.Page, summary: results.Summary) -> None:
    """Settings without a gap that they could stand in."""
    called = data.names(summary.cells)
    for changed in summary.settings:
        difference = changed.effect.difference
        if difference is None:
            continue
        value = words.signed_ms(difference, words.places_ms(difference.mean), " ms")
        who = f"{called[changed.comparison]}: {changed.framework} {changed.effect.a.compiler}, {changed.label}"
        page.line(f"{who} - matched = {value}: settings, not the same work")


def _costs(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    """One row for each compiled cell; the eager ones are in the tables below."""
    shown, called = data.arms(summary, expert), data.names(summary.cells)
    timed = [r for r in summary.cells if r.step is not None and r.cell.label == data.label(summary)]
    chosen = [r for r in timed if r.cell.compiler in shown and r.cell.compiler != "eager"] or timed
    if not chosen:
        return
    one_arm = len({r.cell.compiler for r in chosen}) == 1
    arm = f", arm {chosen[0].cell.compiler}" if one_arm else ""
    page.heading(f"What it takes{arm}: first step in s (cold, from disk, again), steps until it pays off")
    columns = ["workload", "framework" if one_arm else "cell", "step ms", "bound by", "cold", "disk", "again"]
    columns += ["pays off", "peak memory", "GFLOP/s"]
    page.table(columns, [[called[r.cell.comparison], *_cost(summary, r, one_arm)] for r in chosen], left=2)


def _cost(summary: results.Summary, r: results.CellResult, one_arm: bool) -> list[str]:
    first = [words.seconds(r.first_step_s.get(state)) for state in ("cold", "disk", "memory")]
    return [
        r.cell.framework if one_arm else data.side(r.cell),
        "-" if r.step is None else words.milliseconds(r.step.mean),
        words.bound(r.bound, r.host_share),
        *first,
        data.break_even(summary, r),
        words.size(r.memory_bytes),
        words.giga(r.flops_per_s),
    ]


def _not_measured(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    page.heading("Not measured")
    limit = 10_000 if expert else MAX_REASON
    short = 10_000 if expert else page.width - pages.INDENT
    for who, status, reason in data.grouped_failures([r for r in summary.cells if r.cell.option is None]):
        lost = status in data.LOST or status == "mismatch"
        page.line(words.cut(f"{who}: {status}: {reason}", limit), "red" if lost else "")
    for who, note in data.disk_notes(summary.cells):
        page.line(words.cut(f"first step from disk, {who}: {note}", short))
    for text in _left_out(summary):
        page.line(text)
    told = any(gap.how == "replays" for gap in summary.gaps)
    inside = "kernels of one XLA build" if told else "the program, the compiler's build, kernels and host"
    page.line(f"inside a bar: {inside} are not told apart here")
    for text in summary.problems:
        page.line(text, "red")


def _left_out(summary: results.Summary) -> list[str]:
    """Blocks that are no samples, and clocks that are not trusted."""
    made = []
    compiled = [r for r in summary.cells if r.num_compiled]
    disturbed = sum(r.num_disturbed for r in summary.cells)
    if compiled:
        who = ", ".join(dict.fromkeys(data.side(r.cell) for r in compiled))
        count = words.number_of(sum(r.num_compiled for r in compiled), "block")
        made.append(f"{count} during which something was compiled, left out: {who}")
    if disturbed:
        used = sum(r.num_disturbed_used for r in summary.cells)
        but = f", but for {used} where too few others are left: the machine is busy, the times are too" if used else ""
        made.append(f"{words.number_of(disturbed, 'block')} disturbed by other processes and left out{but}")
    untrusted = dict.fromkeys(data.side(r.cell) for r in summary.cells if r.fence_ok is False)
    if untrusted:
        made.append(f"the fence self-test failed, so the times may be too short: {', '.join(untrusted)}")
    return made


def _next(page: pages.Page, summary: results.Summary, expert: bool) -> None:
    found = advice.next_steps(summary, expert)
    page.heading("Next")
    page.line(advice.command(summary.config, summary.machine), hang=6)
    shown = found if expert else found[:MAX_STEPS]
    width = max((len(step.flags) for step in shown), default=0)
    for step in shown:
        if len(step.flags) > 40:
            page.line(step.flags, indent=4)
            page.line(step.why, "dim", indent=8)
        else:
            page.verbatim(f"    {step.flags or '(as it is)':<{min(max(width, 10), 40)}}  {step.why}")
