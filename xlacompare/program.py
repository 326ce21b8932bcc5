"""Captured programs: `python -m xlacompare.program census A`, `... diff A B`, `... run A`, `... clients A B`.

A and B are folders that `--save_program=DIR` wrote, or, but for `run` and `clients`, files (HLO text, StableHLO text or
bytecode).

  census   operations, FLOPs, bytes, matrix products and convolutions, fusions, collectives, copies
  diff     operations in one program only, and operations that differ, by what is at stake
  run      in jaxlib's own CPU client, or in PJRT plugins (--pjrt_plugin), without the framework; values against its own
  clients  `clients A B ...`: table of the times of programs in jaxlib's client, in plugins and in torch_xla's own
           client, with intervals

Programs are read, and run, in child processes. Exit codes: 0 done; 1 other values than the framework's own, or a
program that did not run in one of the clients of the table; 2 bad input.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from xlacompare import command
from xlacompare.core import config, errors
from xlacompare.graph import client, clients, plugins, program_file
from xlacompare.launch import own_clients

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


def clients_text(table: clients.Table) -> str:
    """Times of programs in clients, one line each."""
    lines, program = ["milliseconds a run [95% interval over launches]"], ""
    for (name, library), entry in table.items():
        if name != program:
            lines.append(name)
            program = name
        lines.append(f"  {library:28} {_entry(entry)}")
    return "\n".join(lines)


def _entry(entry: clients.Entry) -> str:
    found = entry.estimate()
    if entry.absent:
        return f"absent: {entry.absent}"
    if entry.wrong:
        return f"no time: values differ from the framework's own: {', '.join(entry.wrong[:4])}"
    if found is None:
        return f"no time: {entry.problem}"
    mean, low, high = (value * 1e3 for value in found.ratio())
    ends = f"[{low:.3g}, {high:.3g}]" if found.df > 0 else "[no interval: one launch]"
    return f"{mean:8.3g} {ends:20} values within {entry.worst:.2g} of what rounding explains"


def absolute(path: str) -> str:
    """The child has the same folder, but paths in its messages shall be whole."""
    return str(pathlib.Path(path).absolute())


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_enum("stage", "stablehlo", ["stablehlo", "optimised"], "Before, or after the framework's compiler.")
    flags.DEFINE_enum("format", "text", ["text", "json"], "What is printed.")
    flags.DEFINE_integer("limit", 20, "Entries of a list that are printed.", lower_bound=1)
    flags.DEFINE_integer("runs", 20, "Timed runs of `run`.", lower_bound=0)
    flags.DEFINE_list("pjrt_plugin", [], "PJRT plugins of `run` and `clients`: paths or packages; see the doctor.")
    flags.DEFINE_integer("launches", 3, "Fresh processes of every client of `clients`.", lower_bound=1)
    flags.DEFINE_float("cell_s", 0.5, "Seconds of timed blocks per program, client and launch of `clients`, about.")
    flags.DEFINE_bool("own", True, "Also the clients of frameworks that bring an XLA of their own, in `clients`.")
    flags.DEFINE_float("deadline_s", 300.0, "Seconds for the child process.", lower_bound=1.0)


def body(words: list[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    values = flags.FLAGS
    wanted = {"census": 1, "diff": 2, "run": 1}
    name, paths = (words or [""])[0], [absolute(path) for path in words[1:]]
    if name == "clients" and paths:
        return in_clients(paths)
    if name not in wanted or len(paths) != wanted[name]:
        raise errors.BadInputError(
            "usage: python -m xlacompare.program census A | diff A B | run A | clients A B ...  (--help: flags)"
        )
    if name == "run" and values.pjrt_plugin:
        return in_plugins(paths[0])
    texts: dict[str, tuple[list[Any], Callable[[dict[str, Any]], str]]] = {
        "census": (["count", *paths, values.stage], lambda found: census_text(found, values.limit)),
        "diff": (["compare", *paths, values.stage], lambda found: diff_text(found, values.limit)),
        "run": (["run", *paths, values.runs], run_text),
    }
    question, text = texts[name]
    with client.Client(values.deadline_s) as reader:
        found = asked(reader, *question)
    sys.stdout.write((json.dumps(found, indent=1) if values.format == "json" else text(found)) + "\n")
    return errors.EXIT_FAILED_CELL if found.get("wrong") else errors.EXIT_OK


def asked(child: client.Client, *question: Any) -> dict[str, Any]:
    """Answer of a child; what it refuses is bad input."""
    try:
        found: dict[str, Any] = child.ask(*question)
    except client.ProblemError as problem:
        raise errors.BadInputError(str(problem)) from None
    return found


def in_plugins(path: str) -> int:
    """`run` in the plugins that were asked for, one child each."""
    values, every = flags.FLAGS, []
    for plugin in [plugins.resolve(text) for text in values.pjrt_plugin]:
        with client.Client(values.deadline_s, plugins.plugin_environment(), f"child of {plugin.name}") as child:
            every.append(asked(child, "plugin_run", path, values.runs, str(plugin.path), plugin.name))
        if values.format == "text":
            sys.stdout.write(run_text(every[-1]) + "\n")
    if values.format == "json":
        sys.stdout.write(json.dumps(every, indent=1) + "\n")
    return errors.EXIT_FAILED_CELL if any(found["wrong"] for found in every) else errors.EXIT_OK


def in_clients(paths: list[str]) -> int:
    """The table of `clients`: jaxlib's, the plugins that were asked for or all that are installed, frameworks' own."""
    values = flags.FLAGS
    config.check_seconds("cell_s", values.cell_s)
    found = [plugins.resolve(text) for text in values.pjrt_plugin] or plugins.installed()
    folders = [pathlib.Path(path) for path in paths]
    for folder in folders:
        program_file.load(folder)
    cores = clients.default_cores()
    plan = clients.Plan(values.launches, values.cell_s, deadline_s=values.deadline_s, cores=cores)
    with own_clients.columns(folders if values.own else (), values.deadline_s) as own:
        table = clients.measure(folders, [*clients.readers(found), *(own if values.own else ())], plan)
    rows = [{"program": name, "in": library, **entry.to_dict()} for (name, library), entry in table.items()]
    sys.stdout.write((json.dumps(rows, indent=1) if values.format == "json" else clients_text(table)) + "\n")
    failed = any(entry.problem or entry.wrong for entry in table.values())
    return errors.EXIT_FAILED_CELL if failed else errors.EXIT_OK


if __name__ == "__main__":
    define_flags()
    WORDS, sys.argv = command.words_of(sys.argv)
    command.launch(lambda: body(WORDS))
