"""A collective run in the column layout of nccl-tests, so that parsers of its output read ours.

A table for each framework, transport and collective; out of place and in place side by side, N/A where a placement was
not measured or has no time. Units as there: microseconds, 10^9 bytes/s, `count` as the NCCL call counts (elements of
one rank's part for all_gather, reduce_scatter and all_to_all). Its columns are seven and six characters wide; more
decimals than there are printed where they fit, so that small bandwidths are not 0.00.

"Avg bus bandwidth" is what that tool means by it: the arithmetic mean of the busbw column over sizes and placements. It
is a mean of rates and no bandwidth of any transfer; the line above it gives total bytes over total time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xlacompare.collectives import analysis, results, table
from xlacompare.core import collective_cell as cells

PROGRAMS = {"all_to_all": "alltoall", "ppermute": "sendrecv"}
TYPES = {"float32": "float", "float64": "double", "float16": "half"}
REDUCTIONS = {"mean": "avg", "": "none"}
PLACEMENTS = ("out_of_place", "in_place")
RATE_WIDTH, TIME_WIDTH = 6, 7
MISSING = "N/A"


def to_nccl(summary: results.CollectiveSummary) -> str:
    """All tables; cells without a time are comments, so that no parser takes them for a result."""
    groups: dict[tuple[str, ...], list[results.CollectiveResult]] = {}
    for result in summary.cells:
        if result.cell.collective != table.BARRIER.name:
            groups.setdefault(_group(result.cell), []).append(result)
    return "".join("\n".join(_table(group)) + "\n" for group in groups.values())


def _group(cell: cells.CollectiveCell) -> tuple[str, ...]:
    out_of_place = dataclasses.replace(cell, placement=PLACEMENTS[0])
    return (cell.framework, cell.mode, cell.transport, cell.platform, out_of_place.series)


def _table(group: Sequence[results.CollectiveResult]) -> list[str]:
    cell = group[0].cell
    program = f"{PROGRAMS.get(cell.collective, cell.collective)}_perf"
    lines = [
        f"# Collective test starting: {program}",
        f"# xlacompare: {cell.framework} ({cell.mode}) over {cell.transport} on {cell.platform}; {cell.series}",
        f"# nRanks {analysis.ranks(cell)} warmup and iterations: by time, see the records; validation: 1",
        "#",
        *_header(),
        *_rows(group),
    ]
    wrong = sum(result.wrong or 0 for result in group)
    lines += [f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}", *_average(group)]
    for result in group:
        if result.time is None:
            lines.append(f"# {result.cell.size_bytes} B {result.cell.placement}: {result.status}: {result.reason}")
    return [*lines, "#", f"# Collective test concluded: {program}"]


def _header() -> list[str]:
    first = ("size", "count", "type", "redop", "root")
    units = ("(B)", "(elements)", "", "", "")
    columns, of_columns = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    blank = _left(("", "", "", "", ""))
    return [
        f"# {blank}           out-of-place                       in-place          ",
        f"# {_left(first)}{_right(columns)}{_right(columns)}",
        f"# {_left(units)}{_right(of_columns)}{_right(of_columns)}",
    ]


def _left(words: Sequence[str], first: int = 10) -> str:
    widths = (first, 12, 8, 6, 6)
    return "  ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))


def _right(words: Sequence[str]) -> str:
    widths = (TIME_WIDTH, RATE_WIDTH, RATE_WIDTH, RATE_WIDTH)
    return "".join(f"  {word:>{width}}" for word, width in zip(words, widths, strict=True))


def _rows(group: Sequence[results.CollectiveResult]) -> list[str]:
    by_size: dict[int, dict[str, results.CollectiveResult]] = {}
    for result in group:
        by_size.setdefault(result.size_bytes, {})[result.cell.placement] = result
    rows = []
    for size, of_size in sorted(by_size.items()):
        if all(result.time is None for result in of_size.values()):
            continue
        cell = next(iter(of_size.values())).cell
        words = (str(size), str(_count(cell)), _type(cell), REDUCTIONS.get(cell.reduction, cell.reduction), _root(cell))
        rows.append(_left(words, 12) + "".join(_right(_figures(of_size.get(place))) for place in PLACEMENTS))
    return rows


def _count(cell: cells.CollectiveCell) -> int:
    """Elements as the NCCL call counts them: of one rank's part, where the size is that of all parts."""
    collective = table.get(cell.collective)
    return cell.count // analysis.ranks(cell) if collective.divided else cell.count


def _type(cell: cells.CollectiveCell) -> str:
    return TYPES.get(cell.dtype, cell.dtype)


def _root(cell: cells.CollectiveCell) -> str:
    return str(cell.root) if cell.collective == table.BROADCAST.name else "-1"


def _figures(result: results.CollectiveResult | None) -> tuple[str, str, str, str]:
    if result is None or result.time is None or result.algbw is None or result.busbw is None:
        return (MISSING,) * 4
    return (
        fitted(result.time.mean * 1e6, TIME_WIDTH),
        fitted(result.algbw / 1e9, RATE_WIDTH),
        fitted(result.busbw / 1e9, RATE_WIDTH),
        MISSING if result.wrong is None else str(result.wrong),
    )


def fitted(value: float, width: int) -> str:
    """A positive number in at most so many characters: as many decimals as fit, four at most, an exponent if it must.

    A column that overflows would run into its neighbour, and every parser would read another number.
    """
    forms = (*(f"{value:.{decimals}f}" for decimals in range(4, -1, -1)), f"{value:.1e}")
    return next((text for text in forms if len(text) <= width), f"{value:.0e}")


def _average(group: Sequence[results.CollectiveResult]) -> list[str]:
    timed = [result for result in group if result.time is not None and result.busbw is not None]
    if not timed:
        return []
    mean = sum(result.busbw or 0.0 for result in timed) / len(timed) / 1e9
    seconds = sum(result.time.mean for result in timed if result.time is not None)
    moved = sum((result.busbw or 0.0) * result.time.mean for result in timed if result.time is not None)
    return [
        f"# {'Total over total':<20} : {moved / seconds / 1e9:.6g} GB/s, all bus bytes over all time; the next line is",
        "# the mean of the busbw column as nccl-tests defines it, a mean of rates and no bandwidth of a transfer",
        f"# {'Avg bus bandwidth':<20} : {mean:.6g} ",
    ]
