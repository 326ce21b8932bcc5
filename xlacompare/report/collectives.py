"""The report of a collective run as text: ratios in words, a table for each series, what is missing, the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xlacompare.collectives import results, table
from xlacompare.core import estimates, units
from xlacompare.report import collective_advice, text, words
from xlacompare.report import collective_data as data
from xlacompare.report import page as pages

Column = tuple[str, Callable[[results.CollectiveResult], str]]
US = 1e-6
LOST = ("crash", "hang", "out_of_memory", "mismatch")
DIFFERENT_BYTES = 0.01  # lowered and nominal bytes differ by more than this share: both are printed

DEFINITIONS = """\
size: as in nccl-tests: each rank's buffer; of all_gather the output's, of reduce_scatter the input's
time: mean of an operation in blocks of back-to-back operations with one fence at the end, the maximum over ranks; \
interval by t over launches, or over the blocks of the only launch
p50, p95, p99: of single iterations (barrier, operation, fence), each the maximum over ranks; how iterations spread, \
not how well the mean is known; p95 from 20, p99 from 100 iterations
disp: until dispatch returned; skew: between the first and the last rank's start of an iteration, not in the time
algbw: size / mean time; busbw: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and \
all_to_all, 1 for broadcast and ppermute; made from the mean time, never averaged
low: busbw from the bytes that the compiled program moves, where they differ from the nominal ones
#wrong: values that differ from the NumPy reference, over all ranks, on the outputs of the timed program
difference: the interval excludes no effect; no difference larger than X: two one-sided tests; else inconclusive"""


def write(page: pages.Page, summary: results.CollectiveSummary, expert: bool) -> None:
    """Writes the whole report."""
    _title(page, summary)
    _headlines(page, summary)
    for group in data.series(summary).values():
        _series(page, summary, group)
    _not_measured(page, summary, expert)
    _fits(page, summary)
    if expert:
        page.heading("What the words mean")
        for line in DEFINITIONS.splitlines():
            page.line(line)
    _next(page, summary)


def _title(page: pages.Page, summary: results.CollectiveSummary) -> None:
    ending = summary.ending
    if ending != "complete":
        page.line(text.ENDINGS.get(ending, f"INCOMPLETE: {ending}"), "bold red", indent=0)
    cells = [result.cell for result in summary.cells]
    launches = max((result.num_launches for result in summary.cells), default=0)
    parts = [
        f"xlacompare: collectives of {', '.join(data.frameworks(summary)) or 'nothing'}",
        f"over {', '.join(dict.fromkeys(c.transport for c in cells))}",
        f"on {', '.join(dict.fromkeys(c.platform for c in cells))}; {words.number_of(launches, 'launch')}",
    ]
    page.line(" ".join(parts), "bold", indent=0)
    if summary.machine:
        cores = len(summary.machine.get("cores_available") or ()) or summary.machine.get("cores_online", "?")
        joined = [name for name in summary.launchers if name != "built-in"]
        started = f"; started by {', '.join(joined)}" if joined else ""
        page.line(f"{summary.machine.get('cpu', '?')}: {cores} cores{started}", "dim", indent=0)
    if any(result.oversubscribed for result in summary.cells):
        page.line(f"WARNING: {data.NOT_TRANSFERABLE}", "bold red", indent=0)


def _headlines(page: pages.Page, summary: results.CollectiveSummary) -> None:
    page.heading("Time per operation, ratio [95% interval]")
    for key, ratios in data.pairs(summary).items():
        kind = data.kind_of(data.stretches(ratios, summary))
        page.line(data.headline(key, ratios, summary), words.STYLES[kind])
    for refusal in summary.refusals:
        page.line(refusal, words.STYLES["problem"])
    judged = [ratio.verdict for ratio in summary.ratios if ratio.verdict is not None]
    if judged:
        methods = ", ".join(dict.fromkeys(verdict.estimate.method for verdict in judged))
        page.line(f"{methods}; a sweep is screening; family: {judged[0].family}", "dim")
    if not summary.ratios:
        page.line("no pair to compare: " + _why_no_pair(summary))
        for group in data.series(summary).values():
            _best(page, summary, group)


def _why_no_pair(summary: results.CollectiveSummary) -> str:
    timed = {result.cell.framework for result in summary.cells if result.time is not None}
    if not timed:
        return "no cell has a time, see below"
    return "one framework" if len(timed) == 1 else "no two frameworks ran the same collective over the same transport"


def _best(page: pages.Page, summary: results.CollectiveSummary, group: Sequence[results.CollectiveResult]) -> None:
    """Latency of the smallest and bandwidth of the largest size, for those who have one framework."""
    for who in dict.fromkeys(data.side(result.cell, summary) for result in group):
        mine = [result for result in group if data.side(result.cell, summary) == who]
        first, last = mine[0], mine[-1]
        said = (
            [f"{units.format_duration(first.time.mean)} at {data.span([first.cell.size_bytes])}"] if first.time else []
        )
        if last is not first and last.busbw:
            said.append(f"busbw {units.format_rate(last.busbw)} at {data.span([last.cell.size_bytes])}")
        page.line(f"{data.called(first.cell)}, {who}: {', '.join(said)}".replace(" at ,", ",").removesuffix(" at "))


def _series(page: pages.Page, summary: results.CollectiveSummary, group: list[results.CollectiveResult]) -> None:
    unit, factor = rate_unit(group)
    page.heading(f"{data.called(group[0].cell)}{f'; bandwidths in {unit}' if unit else ''}")
    columns = _columns(summary, group, factor)
    page.table([head for head, _ in columns], [[value(r) for _, value in columns] for r in group])
    for line in data.findings(group, summary):
        page.line(line, "yellow")
    if caveat := data.caveat(group):
        page.line(caveat, "dim")
    if pads := data.padded(group):
        page.line(f"padded so that the ranks divide it: {pads}", "dim")
    _ratios(page, summary, group)


def rate_unit(group: Sequence[results.CollectiveResult]) -> tuple[str, float]:
    """Unit of a table's bandwidths, so that the largest has no zeros before its digits; "" for a barrier."""
    largest = max((result.algbw or 0.0 for result in group), default=0.0)
    if largest == 0:
        return "", 1.0
    return ("GB/s", 1e9) if largest >= 0.9995e9 else ("MB/s", 1e6)


def _columns(
    summary: results.CollectiveSummary, group: Sequence[results.CollectiveResult], factor: float
) -> list[Column]:
    """What no row has, or what says the same in all rows, is no column."""
    columns: list[Column] = [
        ("size", lambda r: data.size(r.cell.size_bytes)),
        ("count", lambda r: str(r.cell.count)),
        ("by", lambda r: data.side(r.cell, summary)),
        ("time [95%]", lambda r: interval(r.time)),
    ]
    if group[0].cell.collective == table.BARRIER.name:
        columns = columns[2:]
    for head, name in (("p50", "p50_s"), ("p95", "p95_s"), ("p99", "p99_s"), ("disp", "dispatch_s")):
        if any(getattr(result, name) is not None for result in group):
            columns.append((head, lambda r, name=name: duration(getattr(r, name))))  # type: ignore[misc]
    rates = [("algbw", "algbw"), ("busbw", "busbw")]
    if any(other_bytes(result) for result in group):
        rates.append(("low", "busbw_lowered"))
    for head, name in rates if group[0].algbw is not None else ():
        columns.append((head, lambda r, name=name: rate(getattr(r, name), factor)))  # type: ignore[misc]
    columns.append(("#wrong", lambda r: "-" if r.wrong is None else str(r.wrong)))
    return columns


def other_bytes(result: results.CollectiveResult) -> bool:
    """Whether the program that ran moves other bytes than the collective's nominal ones."""
    if result.busbw_lowered is None or not result.busbw:
        return False
    return abs(result.busbw_lowered / result.busbw - 1) > DIFFERENT_BYTES


def duration(seconds: float | None) -> str:
    """With its own unit: a sweep goes from microseconds to seconds."""
    return "-" if seconds is None else units.format_duration(seconds)


def rate(value: float | None, unit: float) -> str:
    """Bytes/s in a unit that the table names: three decimals below 1, so that a line stays a line (JSON has all)."""
    if value is None:
        return "-"
    if value / unit < 0.001:
        return "<.001"
    return f"{value / unit:.3f}" if value < unit else units.significant(value / unit)


def interval(time: estimates.Estimate | None) -> str:
    """A time with its interval; no interval for a figure that came without one."""
    if time is None:
        return "-"
    if time.df <= 0:
        return f"{duration(time.mean)} [?]"
    return units.format_duration_interval(time.mean, max(0.0, time.low), time.high)


def _ratios(page: pages.Page, summary: results.CollectiveSummary, group: list[results.CollectiveResult]) -> None:
    members = {result.cell for result in group}
    found = [r for r in summary.ratios if r.verdict is not None and {r.a, r.b} <= members]
    if len({ratio.a.size_bytes for ratio in found}) < 2:
        return  # the headline has said it all
    page.blank()
    found.sort(key=lambda ratio: ratio.a.size_bytes)
    page.table(
        ["size", "slower", "faster", "ratio [95%]", "verdict", "p, adjusted"], [_row(r, summary) for r in found], 3
    )


def _row(ratio: results.Ratio, summary: results.CollectiveSummary) -> list[str]:
    judged = ratio.verdict
    assert judged is not None
    value, low, high = judged.estimate.ratio()
    shown = f"{value:.2f}x [?]" if judged.estimate.df <= 0 else units.format_ratio(value, low, high)
    size = data.size(ratio.a.size_bytes)
    sides = [data.side(ratio.a, summary), data.side(ratio.b, summary)]
    return [size, *sides, shown, judged.kind.replace("_", " "), f"{judged.adjusted_p:.2g}"]


def _not_measured(page: pages.Page, summary: results.CollectiveSummary, expert: bool) -> None:
    failed, said = data.failures(summary), _left_out(summary)
    if not failed and not said and not summary.problems:
        return
    page.heading("Not measured")
    limit = 10_000 if expert else text.MAX_REASON
    for who, status, reason in failed:
        page.line(words.cut(f"{who}: {status}: {reason}", limit), "red" if status in LOST else "")
    for line in said:
        page.line(line)
    for line in summary.problems:
        page.line(line, "red")


def _left_out(summary: results.CollectiveSummary) -> list[str]:
    """Blocks that are no samples, clocks that are not trusted, values that nobody checked."""
    made = []
    compiled, disturbed = (sum(getattr(r, f"num_{name}") for r in summary.cells) for name in ("compiled", "disturbed"))
    used = sum(r.num_disturbed_used for r in summary.cells)
    if compiled:
        made.append(f"{words.number_of(compiled, 'block')} during which something was compiled, left out")
    if disturbed:
        but = f", but for {used} where too few others are left: the machine is busy, the times are too" if used else ""
        made.append(f"{words.number_of(disturbed, 'block')} disturbed by other processes and left out{but}")
    untrusted = dict.fromkeys(data.side(r.cell, summary) for r in summary.cells if r.fence_ok is False)
    if untrusted:
        made.append(f"the fence self-test failed, so the times may be too short: {', '.join(untrusted)}")
    imported = dict.fromkeys(r.imported for r in summary.cells if r.imported)
    if imported:
        made.append(f"imported, one figure each, by another method: {', '.join(imported)}; no ratio is made with them")
    return made


def _fits(page: pages.Page, summary: results.CollectiveSummary) -> None:
    fitted = [fit for fit in summary.fits if not fit.problem]
    if not summary.fits:
        return
    page.heading("Cost model: time = latency + bus bytes / bandwidth [95% interval]")
    columns = ["collective", "framework", "latency us", "GB/s", "half at", "from", "to", "off by"]
    several = len({fit.transport for fit in fitted}) > 1
    page.table(columns, [_fit_row(fit, several) for fit in fitted], 2)
    page.line("half at: size at which half of the time is latency; from, to: sizes for which the model holds", "dim")
    for fit in summary.fits:
        for line in fit_lines(fit):
            page.line(line)
    # What an algorithm cannot be told from differs from fit to fit; why not, and what would help, does not.
    notes = [f"algorithm: {fit.algorithm.rpartition(': ')[2]}" for fit in fitted if not fit.identified]
    notes += [note for fit in fitted for note in fit.notes if not note.startswith("the model holds")]
    for note in dict.fromkeys(notes):
        page.line(note, "dim")


def _fit_row(fit: results.Fit, with_transport: bool) -> list[str]:
    first, last = fit.low_bytes, fit.high_bytes
    return [
        fit.series.partition("/")[0],
        f"{fit.framework} {fit.transport}" if with_transport else fit.framework,
        "-" if fit.latency_s is None else scaled(fit.latency_s, US),
        "-" if fit.bandwidth is None else scaled(fit.bandwidth, 1e9),
        "-" if fit.crossover_bytes is None else units.format_bytes(fit.crossover_bytes[0]),
        "-" if first is None else data.size(int(first)),
        "-" if last is None else data.size(int(last)),
        "-" if fit.residual is None else f"{fit.residual:.0%}",
    ]


def fit_lines(fit: results.Fit) -> list[str]:
    """Beyond its row: why there is no fit, the algorithm where the data can tell, the gap to the floor."""
    who = f"{fit.series.partition('/')[0]}, {fit.framework} over {fit.transport}"
    if fit.problem:
        return [f"{who}: no fit: {fit.problem}"]
    made = [f"{who}: {fit.algorithm}"] if fit.identified and "only candidate" not in fit.algorithm else []
    if fit.above_floor:
        shares = list(fit.above_floor.values())
        span = f"{min(shares):.0%} to {max(shares):.0%} of its time"
        made.append(f"{who}, above {fit.floor} (the floor here): {span}; {fit.gap}")
    return made


def scaled(values: results.Interval, unit: float) -> str:
    """A value with its interval in a unit that the column names."""
    places = words.decimals([values[0] / unit])
    mean, low, high = (f"{max(0.0, value) / unit:.{places}f}" for value in values)  # nothing here can be below 0
    return f"{mean} [{low}, {high}]"


def _next(page: pages.Page, summary: results.CollectiveSummary) -> None:
    if not summary.config:
        return
    page.heading("Next")
    page.line(collective_advice.command(summary.config), hang=6)
    found = collective_advice.next_steps(summary)[: text.MAX_STEPS]
    width = max((len(step.flags) for step in found), default=0)
    for step in found:
        page.verbatim(f"    {step.flags or '(as it is)':<{max(width, 10)}}  {step.why}")
