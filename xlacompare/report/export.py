"""A summary for programs: JSON with everything, and one tidy CSV table.

JSON: the fields of `core.results.Summary` by their names, nested dataclasses as objects, and
  schema     version of this layout
  headlines  [{kind, sentence, a, b, comparison}]: the sentences of the first screen
  next       [{flags, why}]: suggestions, and `command`, the command of this run
Every comparison has `ratio` = [ratio, low, high] of time(a) / time(b) and `sentence` beside its estimates, which are
natural logarithms where `scale` is "log". Times are in seconds, sizes in bytes; infinite and not a number are null.

CSV: one row per fact; empty where a column does not apply.
  kind         cell, pair (frameworks), arm (eager against another arm of a framework), setting (changed against
               matched), flag (an XLA option against the default), gap (sum of its bars), bar, settings_bar and
               beside (not in the sum)
  comparison, label, framework, compiler          the cell, or side a
  versus_label, versus_framework, versus_compiler side b
  name         of a bar; of a flag the option
  status, reason  of a cell: ok, or why there is no time; of a pair: `problem` and why there is no ratio
  unit         "s" or "ratio", of value, low, high
  value, low, high, level, n, df, method          the estimate; of a cell its seconds a step
  verdict, margin, p_value, adjusted_p, family    of pairs and arms
  gain         of a bar: share of a's step
then the fields of a cell: median_s, p90_s, p99_s, dispatch_share, host_share, bound, hidden_s, cold_s, disk_s,
memory_s, break_even_step, memory_bytes, flops_per_s, launches, blocks, disturbed, compiled; program, of a flag: whether
the optimised HLO is another than the default's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import results
from xlacompare.report import advice, data, exports, flag_table

SCHEMA = 1
COLUMNS = (
    "kind", "comparison", "label", "framework", "compiler", "versus_label", "versus_framework", "versus_compiler",
    "name", "status", "reason", "unit", "value", "low", "high", "level", "n", "df", "method", "verdict", "margin",
    "p_value", "adjusted_p", "family", "gain", "median_s", "p90_s", "p99_s", "dispatch_share", "host_share", "bound",
    "hidden_s", "cold_s", "disk_s", "memory_s", "break_even_step", "memory_bytes", "flops_per_s", "launches",
    "blocks", "disturbed", "compiled", "program",
)  # fmt: skip
_OF_A_CELL = ("median_s", "p90_s", "p99_s", "dispatch_share", "host_share", "bound")


def to_json(summary: results.Summary) -> str:
    """One JSON object; see the module."""
    return exports.to_json(to_dict(summary))


def to_dict(summary: results.Summary) -> dict[str, Any]:
    """The object behind `to_json`; may still hold values that JSON has not."""
    made: dict[str, Any] = {"schema": SCHEMA}
    made |= {
        field.name: exports.plain(getattr(summary, field.name), _more(summary)) for field in dataclasses.fields(summary)
    }
    headlines = [data.headline(pair, summary) for pair in data.lead_pairs(summary)]
    made["headlines"] = [
        {
            "kind": found.kind,
            "sentence": found.text(),
            "a": found.comparison.a.id,
            "b": found.comparison.b.id,
            "comparison": found.comparison.a.comparison,
        }
        for found in headlines
    ]
    made["command"] = advice.command(summary.config, summary.machine)
    made["next"] = [dataclasses.asdict(step) for step in advice.next_steps(summary, expert=False)]
    return made


def _more(summary: results.Summary) -> exports.More:
    """Comparisons with their ratio and sentence."""

    def more(value: Any) -> dict[str, Any]:
        if not isinstance(value, results.Comparison):
            return {}
        return {**exports.ratio(value.verdict), "sentence": data.headline(value, summary).text()}

    return more


def to_csv(summary: results.Summary) -> str:
    """One table; see the module."""
    return exports.to_csv(COLUMNS, rows(summary))


def rows(summary: results.Summary) -> Iterator[dict[str, Any]]:
    """Rows of the table; each has some of `COLUMNS`."""
    yield from map(_cell, summary.cells)
    for kind, pairs in (("pair", summary.pairs), ("arm", summary.arms)):
        for pair in pairs:
            yield _comparison(kind, pair)
    for changed in summary.settings:
        yield _comparison("setting", changed.effect)
    for found in summary.flags:
        yield _flag(found)
    for gap in summary.gaps:
        yield {**_sides("gap", gap.a, gap.b), **exports.estimate(gap.total), "name": f"total by {gap.how}"}
        settings = data.settings_bar(summary, gap) if data.first_of_pair(summary, gap) else None
        if settings is not None:
            yield {**_sides("settings_bar", gap.a, gap.b), **exports.estimate(settings), "name": "settings"}
        for bar in gap.bars:
            yield {**_sides("bar", gap.a, gap.b), **exports.estimate(bar.seconds), "name": bar.name, "gain": bar.gain}
        for bar in gap.beside:
            yield {**_sides("beside", gap.a, gap.b), **exports.estimate(bar.seconds), "name": bar.name}


def _cell(result: results.CellResult) -> dict[str, Any]:
    first = result.first_step_s
    row = {**_sides("cell", result.cell, None), "status": result.status, "reason": result.reason}
    if result.step is None:
        return row
    return {
        **row,
        **exports.estimate(result.step),
        **{key: getattr(result, key) for key in _OF_A_CELL},
        "hidden_s": None if result.pipelining is None else result.pipelining.mean,
        **{f"{state}_s": first.get(state) for state in ("cold", "disk", "memory")},
        **{key: getattr(result, key) for key in ("break_even_step", "memory_bytes", "flops_per_s")},
        **{key: getattr(result, f"num_{key}") for key in ("launches", "blocks", "disturbed", "compiled")},
    }


def _comparison(kind: str, pair: results.Comparison) -> dict[str, Any]:
    row = _sides(kind, pair.a, pair.b)
    judged = pair.verdict
    if judged is None:
        return {**row, "status": "problem", "reason": pair.problem}
    return {
        **row,
        "status": "ok",
        **exports.estimate(judged.estimate),
        **exports.judged(judged),
    }


def _flag(found: results.FlagEffect) -> dict[str, Any]:
    row = {**_comparison("flag", found.effect), "name": found.option, "program": flag_table.program(found)}
    return row if found.status == "ok" else {**row, "status": found.status, "reason": found.reason}


def _sides(kind: str, a: cells.Cell, b: cells.Cell | None) -> dict[str, Any]:
    row = {"kind": kind, "comparison": a.comparison, "label": a.label, "framework": a.framework, "compiler": a.compiler}
    if b is not None:
        row |= {"versus_label": b.label, "versus_framework": b.framework, "versus_compiler": b.compiler}
    return row
