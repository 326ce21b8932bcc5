"""A collective run for programs: JSON with everything, and one tidy CSV table.

JSON: the fields of `collectives.results.CollectiveSummary` by their names, nested dataclasses as objects, `schema`,
the `command` of this run, `headlines` (the sentences of the first screen) and `next`. Every ratio has `ratio` =
[ratio, low, high] of time(a) / time(b) beside its estimate, which is a natural logarithm. Seconds, bytes, bytes/s;
infinite and not a number are null. Booleans are booleans, and times have all their digits, unlike those of nccl-tests.

CSV: one row per fact; empty where a column does not apply.
  kind       cell, ratio, fit
  the fields of a cell (side a of a ratio); versus_framework, versus_mode: side b
  status, reason  ok, or why there is no time or ratio
  unit       "s" or "ratio", of value, low, high
then what the columns of the report's tables are called in `collectives.results`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any

from xlacompare.collectives import results
from xlacompare.core import collective_cell as cells
from xlacompare.core import estimates, record
from xlacompare.report import collective_advice
from xlacompare.report import collective_data as data

SCHEMA = 1
_CELL = tuple(field.name for field in dataclasses.fields(cells.CollectiveCell))
_RESULT = (
    "median_s", "p50_s", "p95_s", "p99_s", "num_iterations", "dispatch_s", "skew_s", "copy_s", "algbw", "busbw",
    "busbw_lowered", "wire_bytes", "checked", "wrong", "num_launches", "num_blocks", "num_disturbed", "num_compiled",
    "oversubscribed", "imported",
)  # fmt: skip
_FIT = (
    "series", "algorithm", "identified", "latency_s", "bandwidth", "crossover_bytes", "residual", "low_bytes",
    "high_bytes", "floor", "gap",
)  # fmt: skip
COLUMNS = (
    "kind", *_CELL, "versus_framework", "versus_mode", "status", "reason", "unit", "value", "low", "high", "level", "n",
    "df", "method", "verdict", "margin", "p_value", "adjusted_p", "family", *_RESULT, "findings", *_FIT,
)  # fmt: skip


def to_json(summary: results.CollectiveSummary) -> str:
    """One JSON object; see the module."""
    return json.dumps(record.finite(to_dict(summary)), indent=2, allow_nan=False) + "\n"


def to_dict(summary: results.CollectiveSummary) -> dict[str, Any]:
    """The object behind `to_json`; may still hold values that JSON has not."""
    made: dict[str, Any] = {"schema": SCHEMA, "mode": "collective"}
    made |= {field.name: plain(getattr(summary, field.name)) for field in dataclasses.fields(summary)}
    made["headlines"] = [data.headline(key, ratios, summary) for key, ratios in data.pairs(summary).items()]
    made["command"] = collective_advice.command(summary.config) if summary.config else ""
    made["next"] = [dataclasses.asdict(step) for step in collective_advice.next_steps(summary)]
    return made


def plain(value: Any) -> Any:
    """Dataclasses as objects; cells with their id, ratios with the ratio."""
    if isinstance(value, cells.CollectiveCell):
        return {**value.to_dict(), "id": value.id, "comparison": value.comparison, "series": value.series}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, results.Ratio):
            made["ratio"] = None if value.verdict is None else list(value.verdict.estimate.ratio())
        return made
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def to_csv(summary: results.CollectiveSummary) -> str:
    """One table; see the module."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(summary):
        writer.writerow({key: "" if record.finite(value) is None else value for key, value in row.items()})
    return file.getvalue()


def rows(summary: results.CollectiveSummary) -> Iterator[dict[str, Any]]:
    """Rows of the table; each has some of `COLUMNS`."""
    for result in summary.cells:
        row = {"kind": "cell", **_cell(result.cell), "status": result.status, "reason": result.reason}
        if result.time is not None:
            row |= _estimate(result.time) | {name: getattr(result, name) for name in _RESULT}
        yield row | {"findings": "; ".join(result.findings)}
    for ratio in summary.ratios:
        yield _ratio(ratio)
    for fit in summary.fits:
        named = {name: getattr(fit, name) for name in ("framework", "mode", "transport", *_FIT)}
        shown = {name: " ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in named.items()}
        yield {"kind": "fit", "status": "problem" if fit.problem else "ok", "reason": fit.problem, **shown}


def _cell(cell: cells.CollectiveCell) -> dict[str, Any]:
    return {**cell.to_dict(), "mesh": "x".join(map(str, cell.mesh))}


def _ratio(ratio: results.Ratio) -> dict[str, Any]:
    row = {"kind": "ratio", **_cell(ratio.a), "versus_framework": ratio.b.framework, "versus_mode": ratio.b.mode}
    if ratio.verdict is None:
        return {**row, "status": "problem", "reason": ratio.problem}
    named = {name: getattr(ratio.verdict, name) for name in ("margin", "p_value", "adjusted_p", "family")}
    return {**row, "status": "ok", **_estimate(ratio.verdict.estimate), "verdict": ratio.verdict.kind, **named}


def _estimate(estimate: estimates.Estimate) -> dict[str, Any]:
    log = estimate.scale == "log"
    value, low, high = estimate.ratio() if log else (estimate.mean, estimate.low, estimate.high)
    row = {"unit": "ratio" if log else "s", "value": value, "low": low, "high": high}
    return row | {key: getattr(estimate, key) for key in ("level", "n", "df", "method")}
