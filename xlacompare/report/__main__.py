"""Shows the records of a run again: `python -m xlacompare.report FOLDER [FOLDER...] [--format=json] [--expert]`.

Works for runs of any kind, complete or not. Several folders are shown one after another, and only where machine and
settings are alike. Exit codes: 0 shown; 2 no records, or records that cannot be shown together.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from xlacompare import command
from xlacompare.core import errors, record
from xlacompare.report import render

KINDS = ("cell", "collective", "parallel")  # of records with an environment
Rows = Sequence[Mapping[str, Any]]


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    flags.DEFINE_enum("format", "text", list(render.COLLECTIVE_FORMATS), "What is printed; nccl: collectives.")
    flags.DEFINE_bool("expert", False, "Also print expert arms, percentiles and definitions.")
    flags.DEFINE_string("run", None, "Which run, where a folder holds several.")


def one_run(found: record.Records, folder: str, wanted: str | None) -> Rows:
    """The records of the one run of a folder, or of the one that is wanted.

    Raises:
      BadInputError: There is no record, no such run, or more than one run and none was chosen.
    """
    if not found.records:
        raise errors.BadInputError(f"{folder}: no records in it")
    runs = list(dict.fromkeys(item["run"] for item in found.records if item.get("kind") == "run"))
    if wanted is not None:
        if wanted not in runs:
            raise errors.BadInputError(f"{folder}: no run {wanted!r}; it holds {', '.join(runs) or 'imports only'}")
        return record.of_run(found.records, wanted)
    if len(runs) > 1:
        raise errors.BadInputError(f"{folder}: holds the runs {' and '.join(runs)}; choose one with --run={runs[-1]}")
    return found.records


def check_alike(sides: Sequence[Rows]) -> None:
    """Refuses runs that a reader would compare and must not.

    Raises:
      RecordError: Names the key that differs.
    """
    for one, other in itertools.pairwise(sides):
        mine, theirs = _measured(one), _measured(other)
        for name in mine.keys() & theirs.keys():
            record.check_comparable(mine[name], theirs[name])
        if mine and theirs and not mine.keys() & theirs.keys():
            here, there = (next(iter(side.values()))["environment"]["checked"] for side in (mine, theirs))
            if here.get("machine") != there.get("machine"):
                raise errors.RecordError(
                    f"records cannot be compared: machine is {here.get('machine')!r} and {there.get('machine')!r}"
                )


def _measured(rows: Rows) -> dict[str, Mapping[str, Any]]:
    """One measured record for each comparison."""
    kept = [row for row in rows if row.get("status") == "ok" and row["kind"] in KINDS]
    return {_comparison(row): row for row in kept if row.get("environment")}


def _comparison(row: Mapping[str, Any]) -> str:
    return str(row.get("comparison") or sorted(row["cell"].items()))


def body(folders: list[str]) -> int:
    """Shows what the flags say; returns the exit code."""
    values = flags.FLAGS
    if not folders:
        raise errors.BadInputError("usage: python -m xlacompare.report FOLDER [FOLDER...]  (--help: flags)")
    if len(folders) > 1 and values.format != "text":
        raise errors.BadInputError(f"--format={values.format} is of one folder; {len(folders)} are given")
    found = [record.read(pathlib.Path(folder)) for folder in folders]
    rows = [one_run(held, folder, values.run) for held, folder in zip(found, folders, strict=True)]
    check_alike(rows)
    for i, (held, chosen, folder) in enumerate(zip(found, rows, folders, strict=True)):
        if len(folders) > 1:
            sys.stdout.write(f"{chr(10) if i else ''}== {folder}\n")
        sys.stdout.write(render.of_records(chosen, values.format, values.expert, held.problems))
    return errors.EXIT_OK


if __name__ == "__main__":
    define_flags()
    FOLDERS, sys.argv = command.words_of(sys.argv)
    command.launch(lambda: body(FOLDERS))
