"""OSU micro-benchmarks: the text of osu_allreduce, osu_allgather and so on (C, versions 5 to 7).

Its size is what one rank contributes: for allgather and alltoall (a pair's chunk) it is multiplied by the ranks here;
for allreduce, bcast and reduce_scatter (the whole vector) it is ours already. Its time is the mean over ranks of each
rank's mean; with `-f` the largest of those means is printed as well and is taken: ours is the maximum over ranks.
"""

from __future__ import annotations

import re
from typing import Any

from xlacompare.collectives.importers import common
from xlacompare.core import errors

TOOL = "osu"
# Name in the title -> our collective, whether its size is per rank (to be multiplied by the ranks), the type that it
# uses where it prints none (before version 7).
TESTS = {
    "Allreduce": ("all_reduce", False, "MPI_FLOAT"),
    "Allgather": ("all_gather", True, "MPI_CHAR"),
    "Reduce_scatter": ("reduce_scatter", False, "MPI_FLOAT"),
    "All-to-All Personalized Exchange": ("all_to_all", True, "MPI_CHAR"),
    "Broadcast": ("broadcast", False, "MPI_CHAR"),
    "Barrier": ("barrier", False, "MPI_CHAR"),
}
DTYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64"}
NOTE_AVERAGE = "time: mean over ranks of each rank's mean (osu -f prints the largest as well)"
NOTE_MAXIMUM = "time: the largest of the ranks' means"

_TITLE = re.compile(r"^# OSU (?:MPI|NCCL|RCCL|UPC\S*)\S* (.+?) Latency Test(?: v?(\S+))?")
_TYPE = re.compile(r"^# Datatype: (\w+)")


def read(text: str, told: common.Told) -> list[dict[str, Any]]:
    """Records of a file, one test or several.

    Raises:
      BadInputError: It is no output of a collective of OSU's, or it does not say what a record needs.
    """
    made: list[dict[str, Any]] = []
    test: tuple[str, bool, str] | None = None
    version, dtype, columns = "", "", [""]
    for number, line in enumerate(text.splitlines(), 1):
        title, typed = _TITLE.match(line), _TYPE.match(line)
        if title:
            test, version = _test(title[1], told, number), title[2] or ""
            dtype, columns = test[2], []
        elif typed:
            dtype = typed[1]
        elif test and line.startswith("#") and "Latency" in line:
            columns = re.split(r"\s{2,}", line.lstrip("# ").strip())
        elif test and columns and line.split() and line.split()[0].replace(".", "", 1).isdigit():
            figure = _figure(test, dtype, columns, line.split(), told, number)
            made.append(common.to_record(figure, TOOL, version, told))
    if not made:
        raise errors.BadInputError(f"{told.name}: no output of an OSU collective here (# OSU MPI ... Latency Test)")
    return made


def _test(title: str, told: common.Told, number: int) -> tuple[str, bool, str]:
    if title not in TESTS:
        raise errors.BadInputError(f"{told.name}:{number}: OSU test {title!r} is none of {', '.join(TESTS)}")
    return TESTS[title]


def _figure(
    test: tuple[str, bool, str], dtype: str, columns: list[str], words: list[str], told: common.Told, number: int
) -> common.Figure:
    name, per_rank, _ = test
    if dtype not in DTYPES:
        raise errors.BadInputError(f"{told.name}:{number}: type {dtype} has no counterpart")
    if len(words) < len(columns):
        raise errors.BadInputError(f"{told.name}:{number}: {len(words)} columns where the header names {len(columns)}")
    row = dict(zip(columns, words))
    ranks = int(told.need("num_devices", None, "OSU does not print the number of ranks"))
    size = common.whole(row["Size"], "size", told, number) if "Size" in row else 0
    longest = next((row[column] for column in columns if column.startswith("Max Latency")), None)
    time = longest or row[next(column for column in columns if column.startswith("Avg Latency"))]
    failed = row.get("Validation", "Pass").lower() == "fail"
    checked = "Validation" in row
    return common.Figure(
        collective=name,
        dtype=DTYPES[dtype],
        size_bytes=size * ranks if per_rank else size,
        seconds=common.positive(time, "latency", told, number) * 1e-6,
        ranks=ranks,
        transport=told.transport or "mpi",
        reduction="sum" if name in ("all_reduce", "reduce_scatter") else "",
        wrong=1 if failed else 0 if checked else None,
        note=NOTE_MAXIMUM if longest else NOTE_AVERAGE,
    )
