"""nccl-tests (and rccl-tests): the text table, and the JSON of `-J`.

Its size is ours: the total array of all_gather, reduce_scatter and all_to_all, each rank's buffer else. Its time is the
host's over back-to-back launches, by default the average over ranks (`-a`), not the maximum; the record says so.
JSON as it is written (src/util.cu): booleans are the strings "true" and "false", a missing number is the string "nan",
`root` is a padded string, times have six decimals of a microsecond, and `nwrong` is null where nothing was checked.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from xlacompare.collectives.importers import common
from xlacompare.core import errors

TOOL = "nccl-tests"
COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "ppermute",
}  # fmt: skip
DTYPES = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"}
DTYPES |= {name: name for name in common.ITEM_BYTES}
REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "max", "min": "min", "none": "", "": ""}
REDUCING = ("all_reduce", "reduce_scatter")
NOTE = "time by the host over back-to-back launches, averaged over ranks unless -a said otherwise"
PLACES = ("out_of_place", "in_place")

_PROGRAM = re.compile(r"(\w+?)_perf\b")
_VERSION = re.compile(r"nccl-tests version (\S+)")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b", re.MULTILINE)


def read(text: str, told: common.Told) -> list[dict[str, Any]]:
    """Records of a file.

    Raises:
      BadInputError: It is no output of nccl-tests, or it does not say what a record needs.
    """
    return _read_json(text, told) if text.lstrip().startswith("{") else _read_text(text, told)


def _read_text(text: str, told: common.Told) -> list[dict[str, Any]]:
    lines = text.splitlines()
    version = _VERSION.search(text)
    ranks = told.need("num_devices", len(set(_RANK.findall(text))) or None, "no '# Rank' line says how many ranks")
    name, columns, made = told.collective, None, []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            if "Collective test starting" in line:
                name = _collective(line, told)
            words = line.lstrip("# ").split()
            if "busbw" in words and "size" in words:
                columns = words
        elif columns and line.split() and line.split()[0].isdigit():
            name = told.need("collective", name, "no line says which collective this is")
            row = _row(columns, line.split(), told, number)
            made += _records(row, name, int(ranks), version[1] if version else "", told, number)
    if not made:
        raise errors.BadInputError(f"{told.name}: no table of nccl-tests here (a line with size ... algbw busbw)")
    return made


def _collective(line: str, told: common.Told) -> str:
    program = _PROGRAM.search(line)
    known = COLLECTIVES.get(program[1]) if program else None
    if known is None:
        raise errors.BadInputError(f"{told.name}: {line.strip(' #')!r}: not among {', '.join(COLLECTIVES)}")
    return known


def _row(columns: list[str], words: list[str], told: common.Told, number: int) -> dict[str, Any]:
    """A line as JSON has it: fixed columns, and a group for each `time ... #wrong` run of columns."""
    if len(words) < len(columns):
        raise errors.BadInputError(
            f"{told.name}:{number}: {len(words)} columns where the header names {len(columns)}; is the file cut?"
        )
    row: dict[str, Any] = {}
    groups: list[dict[str, str]] = []
    for column, word in zip(columns, words):
        if column in ("time", "cputime"):
            groups.append({"time": word})
        elif groups:
            groups[-1][column.removeprefix("#")] = word
        else:
            row[column] = word
    for place, group in zip(PLACES, groups):
        row[place] = {"time": group["time"], "nwrong": group.get("wrong", group.get("error"))}
    return row


def _read_json(text: str, told: common.Told) -> list[dict[str, Any]]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise errors.BadInputError(f"{told.name}: not JSON ({error}); was the run ended before its end?") from None
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise errors.BadInputError(f"{told.name}: JSON, but not that of nccl-tests -J (no list 'results')")
    devices = data.get("config", {}).get("devices") or []
    ranks = told.need("num_devices", len(devices) or None, "no list of devices says how many ranks")
    program = str((data.get("args") or [""])[0])
    name = _collective(program, told) if _PROGRAM.search(program) else told.collective
    name = told.need("collective", name, "'args' does not say which collective this is")
    made = []
    for number, row in enumerate(data["results"], 1):
        made += _records(row, name, int(ranks), f"NCCL {data.get('nccl_version', '?')}", told, number)
    return made


def _records(
    row: dict[str, Any], name: str, ranks: int, version: str, told: common.Told, number: int
) -> list[dict[str, Any]]:
    dtype, redop = DTYPES.get(str(row.get("type", ""))), str(row.get("redop", "none"))
    if dtype is None or (name in REDUCING and redop not in REDUCTIONS):
        raise errors.BadInputError(f"{told.name}:{number}: type {row.get('type')!r} with {redop!r} has no counterpart")
    root = common.whole(str(row.get("root", "-1")).strip(), "root", told, number)
    made = []
    for place in PLACES:
        group = row.get(place)
        if not group or _absent(group.get("time", group.get("cpu_time"))):
            continue
        seconds = common.positive(str(group.get("time", group.get("cpu_time"))), "time", told, number) * 1e-6
        wrong = None if _absent(group.get("nwrong")) else int(float(group["nwrong"]))
        figure = common.Figure(
            collective=name,
            dtype=dtype,
            size_bytes=common.whole(str(row["size"]), "size", told, number),
            seconds=seconds,
            ranks=ranks,
            transport=told.transport or "nccl",
            reduction=REDUCTIONS[redop] if name in REDUCING else "",
            root=max(root, 0),
            placement=place,
            wrong=wrong,
            note=NOTE,
            percentiles=_percentiles(row.get(f"{place}_per_iter")),
        )
        made.append(common.to_record(figure, TOOL, version, told))
    return made


def _percentiles(stats: Any) -> dict[str, float]:
    """Of single iterations (`-I`): the maximum over processes of each."""
    if not isinstance(stats, dict):
        return {}
    named = {f"p{q}_s": stats.get(f"p{q}_us") for q in (50, 95, 99)}
    return {key: float(value) * 1e-6 for key, value in named.items() if value is not None and not _absent(value)}


def _absent(value: Any) -> bool:
    """null, "nan" (a string), N/A, or a number that is none."""
    if value is None or str(value).strip().lower() in ("nan", "-nan", "n/a", ""):
        return True
    return isinstance(value, float) and math.isnan(value)


def boolean(value: Any) -> bool:
    """A boolean of its JSON, which is the string "true" or "false"; bool("false") would be True."""
    return value is True or value == "true"
