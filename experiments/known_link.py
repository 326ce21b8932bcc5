"""Does a measured bandwidth equal that of the link, where the link's bandwidth is known?

Question: two frameworks all-reduce over gloo between network namespaces whose links are throttled. Is the fitted
bandwidth that of a bare socket on the same link, and do the two frameworks agree?

    python -m experiments.known_link --output_dir=experiments/results/known_link
    python -m experiments.known_link --rates=1gbit --ranks=2

Needs root (namespaces, tc). Runtime on 2 cores: 15 minutes for everything (3 rates, 2 to 4 ranks), 1 to 3 minutes
for a point. Expected: fitted bandwidth (sizes from 2 MiB) within 5% of the bare socket's, the frameworks' 16 MiB within
3% of each other. The socket sends before and after the collectives, one way (the reference: what the link carries) and
both ways at once (as the neighbours of a ring do; TCP loses more to acknowledgements); a rate is bytes over time of all
its rounds. With more ranks than cores the figures say what scheduling adds.
"""

from __future__ import annotations

import csv
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import on_link
from xlacompare import command
from xlacompare.collectives import table
from xlacompare.core import record
from xlacompare.launch import link as links

SOCKET_PORT = 29500
TRANSFER, ROUNDS = 32 << 20, 2
COMPARED = 16 << 20  # bytes of the all-reduce whose times are compared between the frameworks


def bare_socket(link: links.Link) -> list[tuple[float, float]]:
    """Bytes a second one way and of each direction both ways, of each round, between the first two ranks."""
    program, address = [sys.executable, "-m", "xlacompare.launch.bare_transfer"], link.addresses[0]
    server = link.start(0, [*program, "serve", address, str(SOCKET_PORT)], {})
    try:
        for _ in range(50):  # until it listens
            measure = [*program, "measure", address, str(SOCKET_PORT), str(TRANSFER), str(ROUNDS)]
            client = link.start(1, measure, {}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            out, _ = client.communicate(timeout=120)
            if client.returncode == 0:
                values = [float(word) for word in out.split()]
                return list(zip(values[::2], values[1::2], strict=True))
        raise RuntimeError("the bare socket never connected")
    finally:
        server.kill()
        server.wait()


def collectives(
    link: links.Link, frameworks: Sequence[str], sizes: str, cell_s: float, folder: pathlib.Path, timeout_s: float = 900
) -> list[dict[str, Any]]:
    """Records of the public command, one process in each namespace."""
    arguments = [
        *(f"--framework={','.join(frameworks)}", "--collective=all_reduce", f"--sizes={sizes}", "--transport=gloo"),
        *(f"--num_devices={len(link.names)}", "--launches=1", f"--cell_s={cell_s}"),
    ]
    on_link.run(link, arguments, folder, timeout_s)
    return [found for found in record.read(folder).records if found["kind"] == "collective"]


def mean_s(found: dict[str, Any]) -> float:
    """Seconds an operation, over all blocks."""
    blocks = found["blocks"]
    return sum(blocks["total_s"]) / sum(blocks["n"])


def fitted(records: Iterable[dict[str, Any]], ranks: int) -> float:
    """Bytes a second on the wire from the slope of time against size: bus factor / slope, relative errors alike."""
    points = np.array([(r["cell"]["size_bytes"], mean_s(r)) for r in records if r["status"] == "ok"])
    slope = np.polyfit(points[:, 0], points[:, 1], 1, w=1 / points[:, 1])[0]
    return float(table.TABLE["all_reduce"].factor(ranks) / slope)


def point(rate: str, ranks: int, frameworks: Sequence[str], sizes: str, cell_s: float) -> list[dict[str, Any]]:
    """One link: rows of the table."""
    with links.link(ranks, rate) as link, tempfile.TemporaryDirectory() as folder:
        before = bare_socket(link)
        records = collectives(link, frameworks, sizes, cell_s, pathlib.Path(folder))
        rates = before + bare_socket(link)
    one_way, both_ways = (len(rates) / sum(1 / r for r in of) for of in zip(*rates, strict=True))
    rows = []
    for name in frameworks:
        mine = [found for found in records if found["cell"]["framework"] == name]
        wire = fitted(mine, ranks)
        of_one_size = next(mean_s(found) for found in mine if found["cell"]["size_bytes"] == COMPARED)
        rows.append(
            {
                "rate": rate,
                "ranks": ranks,
                "framework": name,
                "socket_mbit": round(one_way * 8e-6, 1),
                "socket_both_ways_mbit": round(both_ways * 8e-6, 1),
                "fitted_mbit": round(wire * 8e-6, 1),
                "fitted_over_socket": round(wire / one_way, 4),
                "ms_16_mib": round(of_one_size * 1e3, 2),
            }
        )
    for row in rows:
        row["over_first"] = round(row["ms_16_mib"] / rows[0]["ms_16_mib"], 4)
    return rows


def define_flags() -> None:
    """Defines the flags. A function: tests import this module, and other experiments have flags of the same names."""
    flags.DEFINE_list("rates", ["1gbit", "500mbit", "200mbit"], "Rates of the links, in tc's words.")
    flags.DEFINE_list("ranks", ["2", "3", "4"], "Numbers of ranks.")
    flags.DEFINE_list("frameworks", ["torch", "jax"], "Frameworks that have gloo.")
    flags.DEFINE_string("sizes", "2MiB:64MiB:2", "Sizes of the all-reduce; 16MiB among them.")
    flags.DEFINE_float("cell_s", 2.0, "Seconds of timed blocks of each size and framework.")
    flags.DEFINE_string("output_dir", None, "Folder for the table; default: a new one.")


def body() -> int:
    """Runs every link and writes the table as it grows."""
    folder = pathlib.Path(flags.FLAGS.output_dir or tempfile.mkdtemp(prefix="known_link_"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for ranks in map(int, flags.FLAGS.ranks):
        for rate in flags.FLAGS.rates:
            rows += point(rate, ranks, flags.FLAGS.frameworks, flags.FLAGS.sizes, flags.FLAGS.cell_s)
            for row in rows[-len(flags.FLAGS.frameworks) :]:
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
            with open(folder / "known_link.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
