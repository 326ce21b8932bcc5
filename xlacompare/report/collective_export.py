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

import dataclasses
from collections.abc import Iterator
from typing import Any

from xlacompare.collectives import results
from xlacompare.core import collective_cell as cells
from xlacompare.report import collective_advice, exports
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
    return exports.to_json(to_dict(summary))


def to_dict(summary: results.CollectiveSummary) -> dict[str, Any]:
    """The object behind `to_json`; may still hold values that JSON has not."""
    made: dict[str, Any] = {"schema": SCHEMA, "mode": "collective"}
    made |= {field.name: exports.plain(getattr(summary, field.name), _more) for field in dataclasses.fields(summary)}
    made["headlines"] = [data.headline(key, ratios, summary) for key, ratios in data.pairs(summary).items()]
    made["command"] = collective_advice.command(summary.config) if summary.config else ""
    made["next"] = [dataclasses.asdict(step) for step in collective_advice.next_steps(summary)]
    return made


def _more(value: Any) -> dict[str, Any]:
    """Cells with their series, ratios with the ratio."""
    if isinstance(value, cells.CollectiveCell):
        return {"series": value.series}
    return exports.ratio(value.verdict) if isinstance(value, results.Ratio) else {}


def to_csv(summary: results.CollectiveSummary) -> str:
    """One table; see the module."""
    return exports.to_csv(COLUMNS, rows(summary))


def rows(summary: results.CollectiveSummary) -> Iterator[dict[str, Any]]:
    """Rows of the table; each has some of `COLUMNS`."""
    for result in summary.cells:
        row = {"kind": "cell", **_cell(result.cell), "status": result.status, "reason": result.reason}
        if result.time is not None:
            row |= exports.estimate(result.time) | {name: getattr(result, name) for name in _RESULT}
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
    return {**row, "status": "ok", **exports.estimate(ratio.verdict.estimate), **exports.judged(ratio.verdict)}
