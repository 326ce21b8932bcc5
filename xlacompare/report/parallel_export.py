"""A parallel run for programs: JSON with everything, and one tidy CSV table.

JSON: the fields of `core.parallel_results.ParallelSummary` by their names, nested dataclasses as objects, `schema`,
`mode` ("parallel"), the `command` of this run, `headlines` (the sentences of the first screen) and `next`. Every pair
has `ratio` = [ratio, low, high] of time(a) / time(b) beside its estimate, which is a natural logarithm. Seconds and
bytes; infinite and not a number are null.

CSV: one row per fact; empty where a column does not apply.
  kind       arm, effect, waiting, pair, gap (sum of the bars), bar, finding
  comparison, framework, mode, variant, communication   the arm; of a pair side a
  versus     of an effect the variant before; versus_framework, versus_mode: side b of a pair
  name       of an effect, a bar, a finding; of waiting the rank
  status, reason  ok, or why there is no estimate; of a finding its evidence
  unit       "s" or "ratio", of value, low, high
  value, low, high, level, n, df, method, verdict, margin, p_value, adjusted_p, family
then of an arm: dispatch_share, collectives, wire_bytes, launches, visits, blocks, disturbed,
disturbed_used, compiled, oversubscribed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import claims
from xlacompare.core import parallel_results as results
from xlacompare.report import exports, parallel_advice
from xlacompare.report import parallel_data as data

SCHEMA = 1
_COUNTS = ("launches", "visits", "blocks", "disturbed", "disturbed_used", "compiled")
COLUMNS = (
    "kind", "comparison", "framework", "mode", "variant", "communication", "versus", "versus_framework", "versus_mode",
    "name", "status", "reason", "unit", "value", "low", "high", "level", "n", "df", "method", "verdict", "margin",
    "p_value", "adjusted_p", "family", "dispatch_share", "collectives", "wire_bytes", *_COUNTS, "oversubscribed",
)  # fmt: skip


def to_json(summary: results.ParallelSummary) -> str:
    """One JSON object; see the module."""
    return exports.to_json(to_dict(summary))


def to_dict(summary: results.ParallelSummary) -> dict[str, Any]:
    """The object behind `to_json`; may still hold values that JSON has not."""
    made: dict[str, Any] = {"schema": SCHEMA, "mode": "parallel"}
    made |= {field.name: exports.plain(getattr(summary, field.name), _more) for field in dataclasses.fields(summary)}
    made["headlines"] = [dataclasses.asdict(found) for found in data.headlines(summary)]
    made["command"] = parallel_advice.command(summary.config) if summary.config else ""
    made["next"] = [dataclasses.asdict(step) for step in parallel_advice.next_steps(summary)]
    return made


def _more(value: Any) -> dict[str, Any]:
    """Pairs with the ratio."""
    return exports.ratio(value.verdict) if isinstance(value, results.Pair) else {}


def to_csv(summary: results.ParallelSummary) -> str:
    """One table; see the module."""
    return exports.to_csv(COLUMNS, rows(summary))


def rows(summary: results.ParallelSummary) -> Iterator[dict[str, Any]]:
    """Rows of the table; each has some of `COLUMNS`."""
    yield from map(_arm, summary.arms)
    for of in summary.frameworks:
        for entry in of.effects:
            yield _effect(of, entry)
        for variant, found in of.waiting.items():
            for rank, wait in enumerate(found):
                yield {"kind": "waiting", **_side(of.cell, variant), "name": f"rank {rank}", **exports.estimate(wait)}
    for pair in summary.pairs:
        yield from _pair(pair)
    for finding in summary.findings:
        where = {name: getattr(finding, name) for name in ("comparison", "framework", "variant")}
        yield {"kind": "finding", **where, "name": finding.kind, "status": "found", "reason": finding.evidence}


def _side(cell: cells.Cell, variant: str) -> dict[str, Any]:
    return {"comparison": cell.comparison, "framework": cell.framework, "mode": cell.mode, "variant": variant}


def _arm(arm: results.ArmResult) -> dict[str, Any]:
    row = {"kind": "arm", **_side(arm.cell, arm.variant), "communication": arm.cell.communication}
    row |= {"status": arm.status, "reason": arm.reason, "oversubscribed": arm.oversubscribed}
    row |= {name: getattr(arm, f"num_{name}") for name in _COUNTS}
    if "ops" in arm.census:
        row |= {"collectives": len(arm.census["ops"]), "wire_bytes": arm.census.get("wire_bytes")}
    return row if arm.time is None else {**row, **exports.estimate(arm.time), "dispatch_share": arm.dispatch_share}


def _effect(of: results.FrameworkEffects, entry: claims.Effect) -> dict[str, Any]:
    row = {"kind": "effect", **_side(of.cell, entry.variant), "versus": entry.versus, "name": entry.name}
    if entry.estimate is None:
        return {**row, "status": data.judged(entry), "reason": entry.reason}
    row |= {"status": "ok", "reason": "; ".join(entry.notes), **exports.estimate(entry.estimate), "unit": entry.unit}
    return row if entry.verdict is None else {**row, **exports.judged(entry.verdict)}


def _pair(pair: results.Pair) -> Iterator[dict[str, Any]]:
    sides = {**_side(pair.a, pair.variant), "versus_framework": pair.b.framework, "versus_mode": pair.b.mode}
    if pair.verdict is None or pair.total is None:
        yield {"kind": "pair", **sides, "status": "problem", "reason": pair.problem}
        return
    yield {
        "kind": "pair",
        **sides,
        "status": "ok",
        **exports.estimate(pair.verdict.estimate),
        **exports.judged(pair.verdict),
    }
    yield {"kind": "gap", **sides, "status": "ok", "reason": pair.no_bars, **exports.estimate(pair.total)}
    for bar in pair.bars:
        yield {"kind": "bar", **sides, "name": bar.name, "status": "ok", **exports.estimate(bar.seconds),
               **exports.judged(bar.verdict)}  # fmt: skip
