"""The second opinion from traces as text: what a traced step is made of on every rank, and whether the arms agree."""

from __future__ import annotations

from xlacompare.core import estimates, second_opinion, timeline, units
from xlacompare.core import parallel_results as results
from xlacompare.report import page as pages
from xlacompare.report import words

COLUMNS = ["rank", "step", "compute alone", "at once [95%]", "exposed [95%]", "idle"]
MOST = 6  # types of operation of a kind


def write(page: pages.Page, where: str, variant: str, traced: results.Traced | None) -> None:
    """Writes it; nothing where nothing was traced."""
    if traced is None:
        return
    page.heading(f"{where} {variant}: a second opinion from traces of `real`: ms a step")
    for reason in traced.reasons:
        page.line(f"no second opinion: {reason}", words.STYLES["problem"])
    if traced.opinion is not None:
        page.table(COLUMNS, [_row(figures) for figures in traced.opinion.ranks])
        for kind in timeline.KINDS:
            _operations(page, traced.opinion, kind)
        _opinions(page, traced.opinion)
    for folder in traced.folders:
        page.line(f"for Perfetto and XProf: {folder}", "dim", hang=4)


def _opinions(page: pages.Page, found: second_opinion.SecondOpinion) -> None:
    for opinion in found.opinions:
        style = "yellow" if opinion.kind == "disagree" and not opinion.negligible else ""
        page.line(second_opinion.sentence(opinion), style)
    if not found.opinions:
        page.line("the arms have no exposed and no hidden communication to compare with")
    for line in second_opinion.remarks(found):
        page.line(line, "dim")


def _operations(page: pages.Page, found: second_opinion.SecondOpinion, kind: str) -> None:
    members = [one for one in found.operations if one.kind == kind]
    shown = [f"{one.operation} {one.count:g}x {units.format_duration(one.seconds)}" for one in members[:MOST]]
    more = f"; {words.number_of(len(members) - MOST, 'other type')}" if len(members) > MOST else ""
    page.line(f"{kind} by type, a step: {', '.join(shown) or 'none'}{more}", "dim")


def _row(figures: timeline.Figures) -> list[str]:
    places = words.decimals([figures.length.mean / words.MS], 4)

    def means(*found: estimates.Estimate) -> list[str]:
        return [f"{one.mean / words.MS:.{places}f}" for one in found]

    both, exposed = (_interval(part, places) for part in (figures.overlap, figures.exposed))
    return [str(figures.rank), *means(figures.length, figures.compute_only), both, exposed, *means(figures.idle)]


def _interval(found: estimates.Estimate, places: int) -> str:
    mean, low, high = (f"{value / words.MS:.{places}f}" for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]" if found.df > 0 else f"{mean} [?]"
