"""Captured programs: `python -m xlacompare.program census A`, `... diff A B`, `... run A`.

A and B are folders that `--save_program=DIR` wrote, or files (HLO text, StableHLO text or bytecode; not for `run`).

  census   operations, FLOPs, bytes, matrix products and convolutions, fusions, collectives, copies
  diff     operations in one program only, and operations that differ, by what is at stake
  run      in jaxlib's own CPU client, without the framework; values against the framework's own

Programs are read, and run, in a child process. Exit codes: 0 done; 1 `run` found other values; 2 bad input.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from xlacompare import command
from xlacompare.core import errors
from xlacompare.graph import client

COLUMNS = 160


def number(value: float) -> str:
    """Three digits and a prefix: "67.1 M"."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:g} "


def shortened(text: str) -> str:
    """Cut to the width of a line."""
    return text if len(text) <= COLUMNS else text[: COLUMNS - 3] + "..."


def census_text(found: dict[str, Any], limit: int) -> str:
    """A census for people."""
    total = (
        f"{number(found['flops'])}FLOP in matrix products and convolutions, {number(found['bytes'])}B read and written"
    )
    lines = [f"{found['instructions']} instructions, {total}", "operations: " + _tally(found["opcodes"], limit)]
    for name in ("fusions", "custom_calls", "converts"):
        lines.append(f"{name.replace('_', ' ')}: {_tally(found[name], limit) or 'none'}")
    if found["unknown_trips"]:
        lines.append(f"{found['unknown_trips']} instructions in loops of unknown length or branches, counted once")
    lines += _section("matrix products and convolutions", (_heavy(entry) for entry in found["heavy"]), limit)
    lines += _section("copies and transposes", (_move(entry) for entry in found["moves"]), limit)
    lines += _section("collectives", (_collective(entry) for entry in found["collectives"]), limit)
    return "\n".join(map(shortened, lines))


def _tally(counts: dict[str, int], limit: int) -> str:
    shown = [f"{name or '?'} {count}" for name, count in list(counts.items())[:limit]]
    return ", ".join(shown) + (", ..." if len(counts) > limit else "")


def _section(title: str, rows: Iterable[str], limit: int) -> list[str]:
    listed = list(rows)
    more = [f"  ... and {len(listed) - limit} more (--limit)"] if len(listed) > limit else []
    return [f"{title}:" + ("" if listed else " none"), *(f"  {row}" for row in listed[:limit]), *more]


def _heavy(entry: dict[str, Any]) -> str:
    widened = f", widened from {entry['promoted_from']}" if entry["promoted_from"] else ""
    layers = f"  [{', '.join(entry['layers'])}]" if entry["layers"] else ""
    return f"{number(entry['flops'])}FLOP  {entry['count']} x {entry['opcode']} {entry['shapes']}{widened}{layers}"


def _move(entry: dict[str, Any]) -> str:
    return f"{number(entry['bytes'])}B  {entry['count']} x {entry['opcode']} {entry['shapes']}"


def _collective(entry: dict[str, Any]) -> str:
    parts = [f"{entry['opcode']} {entry['dtype']}, {number(entry['operand_bytes'])}B in {entry['operands']} operand(s)"]
    parts += [entry["reduction"]] if entry["reduction"] else []
    parts += [f"promoted from {entry['promoted_from']}"] if entry["promoted_from"] else []
    parts += [f"groups {entry['groups'] or 'all'}" if not entry["pairs"] else f"pairs {entry['pairs']}"]
    return ", ".join(parts)


def diff_text(found: dict[str, Any], limit: int) -> str:
    """A diff for people; the entries are ranked by FLOPs, then bytes at stake."""
    counts, flops, moved = found["operations"], found["flops"], found["bytes"]
    sides = [
        f"{side}: {counts[place]} operations, {number(flops[place])}FLOP, {number(moved[place])}B"
        for place, side in enumerate("AB")
    ]
    lines = [f"{';  '.join(sides)};  the same in both: {found['same']}"]
    if not found["entries"]:
        lines.append("no difference")
    for place, entry in enumerate(found["entries"][:limit], start=1):
        stake = f"{number(entry['flops'])}FLOP, " if entry["flops"] else ""
        layers = f"  [{', '.join(entry['layers'])}]" if entry["layers"] else ""
        lines.append(f"{place:3}. {entry['kind']}: {entry['count']} x {entry['what']}{layers}")
        lines += [f"       {kind}: {change}" for kind, change in entry["changes"].items()]
        lines.append(f"       at stake: {stake}{number(entry['bytes'])}B; {', '.join(entry['sources'][:2])}")
    if len(found["entries"]) > limit:
        lines.append(f"... and {len(found['entries']) - limit} more (--limit)")
    return "\n".join(map(shortened, lines))


def run_text(found: dict[str, Any]) -> str:
    """The result of a run for people."""
    worst = max(found["outputs"], key=lambda item: item["of_allowed"])
    outputs = f"{len(found['outputs'])} outputs, largest error {worst['of_allowed']:.2g} of what rounding explains"
    lines = [f"{found['client']}: compiled in {found['compile_s']:.2f} s; {outputs} ({worst['name']})"]
    if found["median_s"] is not None:
        lines.append(f"median of the runs: {found['median_s'] * 1e3:.3f} ms")
    if found["wrong"]:
        lines.append(f"values differ from the framework's own: {', '.join(found['wrong'][:8])}")
    return "\n".join(lines)


def absolute(path: str) -> str:
    """The child has the same folder, but paths in its messages shall be whole."""
    return str(pathlib.Path(path).absolute())


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_enum("stage", "stablehlo", ["stablehlo", "optimised"], "Before, or after the framework's compiler.")
    flags.DEFINE_enum("format", "text", ["text", "json"], "What is printed.")
    flags.DEFINE_integer("limit", 20, "Entries of a list that are printed.", lower_bound=1)
    flags.DEFINE_integer("runs", 20, "Timed runs of `run`.", lower_bound=0)
    flags.DEFINE_float("deadline_s", 300.0, "Seconds for the child process.", lower_bound=1.0)


def body(words: list[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    values = flags.FLAGS
    wanted = {"census": 1, "diff": 2, "run": 1}
    if not words or words[0] not in wanted or len(words) != 1 + wanted[words[0]]:
        raise errors.BadInputError("usage: python -m xlacompare.program census A | diff A B | run A  (--help: flags)")
    name, paths = words[0], [absolute(path) for path in words[1:]]
    texts: dict[str, tuple[list[Any], Callable[[dict[str, Any]], str]]] = {
        "census": (["count", *paths, values.stage], lambda found: census_text(found, values.limit)),
        "diff": (["compare", *paths, values.stage], lambda found: diff_text(found, values.limit)),
        "run": (["run", *paths, values.runs], run_text),
    }
    question, text = texts[name]
    with client.Client(values.deadline_s) as reader:
        try:
            found = reader.ask(*question)
        except client.ProblemError as problem:
            raise errors.BadInputError(str(problem)) from None
    sys.stdout.write((json.dumps(found, indent=1) if values.format == "json" else text(found)) + "\n")
    return errors.EXIT_FAILED_CELL if found.get("wrong") else errors.EXIT_OK


if __name__ == "__main__":
    define_flags()
    WORDS, sys.argv = command.words_of(sys.argv)
    command.launch(lambda: body(WORDS))
