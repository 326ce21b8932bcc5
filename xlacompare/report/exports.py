"""What the JSON and CSV of all jobs have in common: dataclasses as objects, one tidy table, estimates and verdicts."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xlacompare.core import cell, collective_cell, estimates, record, verdict

More = Callable[[Any], Mapping[str, Any]]


def to_json(made: Mapping[str, Any]) -> str:
    """One JSON object; infinite and not a number become null."""
    return json.dumps(record.finite(made), indent=2, allow_nan=False) + "\n"


def plain(value: Any, more: More) -> Any:
    """Dataclasses as objects, cells with their id.

    Args:
      value: Anything of a summary.
      more: Further entries of a dataclass; {} for most.
    """
    if isinstance(value, cell.Cell | collective_cell.CollectiveCell):
        return {**value.to_dict(), "id": value.id, "comparison": value.comparison, **more(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), more) for field in dataclasses.fields(value)} | more(
            value
        )
    if isinstance(value, dict):
        return {str(key): plain(item, more) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, more) for item in value]
    return value


def ratio(judged: verdict.Verdict | None) -> dict[str, Any]:
    """[ratio, low, high] of what was judged, beside its logarithm; null without a verdict."""
    return {"ratio": None if judged is None else list(judged.estimate.ratio())}


def to_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """One table; each row has some of the columns, what is not a finite number is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if record.finite(value) is None else value for key, value in row.items()})
    return file.getvalue()


def estimate(found: estimates.Estimate) -> dict[str, Any]:
    """Columns of an estimate: a ratio where it is a logarithm, else seconds."""
    log = found.scale == "log"
    value, low, high = found.ratio() if log else (found.mean, found.low, found.high)
    row = {"unit": "ratio" if log else "s", "value": value, "low": low, "high": high}
    return row | {key: getattr(found, key) for key in ("level", "n", "df", "method")}


def judged(found: verdict.Verdict) -> dict[str, Any]:
    """Columns of a verdict."""
    named = {name: getattr(found, name) for name in ("margin", "p_value", "adjusted_p", "family")}
    return {"verdict": found.kind, **named}
