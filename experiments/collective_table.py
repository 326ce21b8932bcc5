"""Which collective runs where? Every collective of every framework over every transport, on 2 and on 4 ranks.

Question: where is there a blank? There must be none: a cell is `ok` (its values were checked on every rank), or
`unsupported` with the reason.

    python -m experiments.collective_table --output_dir=experiments/results/collective_table

Runtime: 5 minutes on 2 cores. The times are of no interest here, so blocks are short; 4 ranks share 2 cores.
"""

from __future__ import annotations

import csv
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags

from xlacompare import command
from xlacompare.core import record

COLLECTIVES = "all_reduce,all_gather,reduce_scatter,all_to_all,ppermute,broadcast,barrier"
# (frameworks, transport, modes): what `python -m xlacompare.doctor` lists for a CPU.
COLUMNS = (
    ("jax", "inprocess", "spmd"),
    ("jax", "gloo", "process"),
    ("jax", "mpi", "process"),
    ("torch", "gloo", "process"),
    ("torch", "mpi", "process"),
    ("torch_xla", "inprocess", "threads"),
    ("torch_xla", "inprocess", "spmd"),
)


def measured(column: tuple[str, str, str], ranks: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Records of one column."""
    framework, transport, mode = column
    arguments = [
        *(sys.executable, "-m", "xlacompare.run", f"--framework={framework}", f"--collective={COLLECTIVES}"),
        *(f"--transport={transport}", f"--mode={mode}", "--reduction=sum,mean,max,min", f"--num_devices={ranks}"),
        *("--sizes=64KiB", "--cell_s=0.05", f"--output_dir={folder}", "--format=json"),
    ]
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False)
    return [found for found in record.read(folder).records if found["kind"] == "collective"]


def rows_of(column: tuple[str, str, str], ranks: int, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the long table."""
    rows = []
    for found in records:
        cell = found["cell"]
        rows.append(
            {
                "collective": " ".join(filter(None, (cell["collective"], cell["reduction"]))),
                "framework": column[0],
                "transport": column[1],
                "mode": column[2],
                "ranks": ranks,
                "status": found["status"],
                "reason": found["reason"] or "",
            }
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The wide table: a row for each collective, a column for each framework, transport and mode; 2 / 4 ranks."""
    heads = list(dict.fromkeys((r["framework"], r["transport"], r["mode"]) for r in rows))
    order = COLLECTIVES.split(",")
    names = sorted(dict.fromkeys(r["collective"] for r in rows), key=lambda name: order.index(name.split()[0]))
    known = {(r["collective"], r["framework"], r["transport"], r["mode"], r["ranks"]): r["status"] for r in rows}
    ranks = sorted({r["ranks"] for r in rows})
    lines = ["| collective | " + " | ".join(" ".join(head) for head in heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        shown = [" / ".join(known.get((name, *head, n), "BLANK") for n in ranks) for head in heads]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    reasons = {(r["collective"], r["framework"], r["transport"], r["mode"], r["reason"]) for r in rows if r["reason"]}
    return "\n".join([*lines, "", *(f"- {' '.join(r[:4])}: {r[4]}" for r in sorted(reasons))]) + "\n"


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_list("ranks", ["2", "4"], "Numbers of ranks.")
    flags.DEFINE_string("output_dir", None, "Folder for the tables; default: a new one.")


def body() -> int:
    """Runs everything; 1 where there is a blank, or a cell that neither ran nor says why it is not supported."""
    folder = pathlib.Path(flags.FLAGS.output_dir or tempfile.mkdtemp(prefix="collective_table_"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for ranks in map(int, flags.FLAGS.ranks):
        for column in COLUMNS:
            with tempfile.TemporaryDirectory() as records:
                rows += rows_of(column, ranks, measured(column, ranks, pathlib.Path(records) / "run"))
    with open(folder / "cells.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    text = markdown(rows)
    (folder / "table.md").write_text(text)
    sys.stdout.write(text)
    bad = "BLANK" in text or any(row["status"] not in ("ok", "unsupported") for row in rows)
    return 1 if bad else 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
