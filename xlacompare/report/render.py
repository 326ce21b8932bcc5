"""A summary as text, JSON or CSV."""

from __future__ import annotations

from collections.abc import Callable

from xlacompare.core import errors, results
from xlacompare.report import data, export, page, tables, text

FORMATS = ("text", "json", "csv")


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
