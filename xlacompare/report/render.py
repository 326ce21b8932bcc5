"""A summary as text, JSON or CSV, of whatever job; that of a collective run also in the layout of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xlacompare.collectives import analysis as collective_analysis
from xlacompare.collectives import results as collective_results
from xlacompare.core import analysis, errors, parallel_analysis, parallel_results, results
from xlacompare.report import (
    collective_export,
    collectives,
    data,
    export,
    nccl_format,
    page,
    parallel,
    parallel_export,
    tables,
    text,
)

FORMATS = ("text", "json", "csv")
COLLECTIVE_FORMATS = (*FORMATS, "nccl")


def of_records(records: Sequence[Mapping[str, Any]], format: str, expert: bool, problems: Iterable[str] = ()) -> str:
    """The report of whatever run these records are of.

    Raises:
      BadInputError: An unknown format.
    """
    if collective_analysis.is_collective(records):
        return render_collectives(collective_analysis.summarise(records, problems), format, expert)
    if parallel_analysis.is_parallel(records):
        return render_parallel(parallel_analysis.summarise(records, problems), format, expert)
    return render(analysis.summarise(records, problems), format, expert)


def render_collectives(summary: collective_results.CollectiveSummary, format: str, expert: bool) -> str:
    """The report of a collective run, ending with a line end; `expert` as in `render`.

    Raises:
      BadInputError: An unknown format.
    """
    makers: dict[str, Callable[[], str]] = {
        "text": lambda: collectives_to_text(summary, expert),
        "json": lambda: collective_export.to_json(summary),
        "csv": lambda: collective_export.to_csv(summary),
        "nccl": lambda: nccl_format.to_nccl(summary),
    }
    if format not in makers:
        raise errors.BadInputError(f"unknown format {format!r}; known: {', '.join(COLLECTIVE_FORMATS)}")
    return makers[format]()


def collectives_to_text(summary: collective_results.CollectiveSummary, expert: bool, width: int | None = None) -> str:
    """The report of a collective run in at most `width` columns (default: 100)."""
    made = page.Page(width)
    collectives.write(made, summary, expert)
    return made.text()


def render_parallel(summary: parallel_results.ParallelSummary, format: str, expert: bool) -> str:
    """The report of a run of parallel steps, ending with a line end; `expert` as in `render`.

    Raises:
      BadInputError: An unknown format.
    """
    makers: dict[str, Callable[[], str]] = {
        "text": lambda: parallel_to_text(summary, expert),
        "json": lambda: parallel_export.to_json(summary),
        "csv": lambda: parallel_export.to_csv(summary),
    }
    if format not in makers:
        raise errors.BadInputError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    return makers[format]()


def parallel_to_text(summary: parallel_results.ParallelSummary, expert: bool, width: int | None = None) -> str:
    """The report of a run of parallel steps in at most `width` columns (default: 100)."""
    made = page.Page(width)
    parallel.write(made, summary, expert)
    return made.text()


def render(summary: results.Summary, format: str, expert: bool) -> str:
    """The report of a run.

    Args:
      summary: From `core.analysis.summarise`.
      format: One of `FORMATS`.
      expert: Text only: also expert arms, percentiles, definitions and whole reasons.

    Returns:
      A text that ends with a line end. JSON and CSV always hold everything.

    Raises:
      BadInputError: An unknown format.
    """
    summary = data.ordered(summary)
    makers: dict[str, Callable[[], str]] = {
        "text": lambda: to_text(summary, expert),
        "json": lambda: export.to_json(summary),
        "csv": lambda: export.to_csv(summary),
    }
    if format not in makers:
        raise errors.BadInputError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    return makers[format]()


def to_text(summary: results.Summary, expert: bool, width: int | None = None) -> str:
    """The first screen, and the tables below it, in at most `width` columns (default: 100)."""
    made, summary = page.Page(width), data.ordered(summary)
    text.write(made, summary, expert)
    tables.write(made, summary, expert)
    return made.text()
