"""Does overlap show where it exists? DDP's buckets against one flat all-reduce after the backward pass.

Question: torch trains the transformer with `dp` on two ranks over a throttled link, once with small buckets that are
reduced while the backward pass goes on, once with all gradients in one all-reduce after it. What do the saving and the
overlap efficiency say, and does the closure hold (serial = elided + alone)?

    python -m experiments.overlap --output_dir=experiments/results/overlap

Needs root (namespaces, tc). Runtime on 2 cores: 3 minutes. Leave the machine alone meanwhile.
Expected (Li et al., VLDB 2020, figures 6 and 7): buckets hide a part of the communication, the flat all-reduce nothing;
on a link that takes longer than the backward pass, at most the backward pass can be hidden.
"""

from __future__ import annotations

import csv
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags

from experiments import parallel_link
from xlacompare import command
from xlacompare.core import effects, parallel_analysis, parallel_samples
from xlacompare.launch import link as links

BUCKETS, FLAT = "eager", "eager planted:flat=1"
NAMES = (effects.EXPOSED, effects.WIRE, effects.HIDDEN, effects.SHARE, effects.EFFICIENCY, effects.CLOSURE)


def rows(rate: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per variant and effect; milliseconds a step, or a share."""
    (world,) = parallel_samples.collect(records)
    side = parallel_analysis.side(world)
    found = []
    for variant in side.effects:
        called = "flat" if variant.endswith("flat=1") else "buckets"
        time = effects.combined(list(side.launches.values()), {(variant, effects.REAL): 1})
        assert time is not None
        found.append(_row(rate, called, "real step", time.mean * 1e3, time.low * 1e3, time.high * 1e3))
        for entry in (entry for entry in side.effects[variant] if entry.name in NAMES):
            if entry.estimate is None:
                found.append({**_row(rate, called, entry.name, None, None, None), "note": entry.reason})
                continue
            shown = entry.estimate
            scale = 1e3 if entry.unit == "s" else 1.0
            found.append(_row(rate, called, entry.name, shown.mean * scale, shown.low * scale, shown.high * scale))
    return found


def _row(rate: str, called: str, effect: str, *values: float | None) -> dict[str, Any]:
    mean, low, high = (None if value is None else round(value, 4) for value in values)
    return {"rate": rate, "gradients": called, "effect": effect, "mean": mean, "low": low, "high": high, "note": ""}


def define_flags() -> None:
    """Defines the flags. A function: tests import this module."""
    flags.DEFINE_list("rates", ["1gbit", "200mbit"], "Rates of the link.")
    flags.DEFINE_float("bucket_mb", 0.1, "Size of DDP's buckets.")
    flags.DEFINE_float("cell_s", 2.0, "Seconds of timed blocks of each cell.")
    flags.DEFINE_string("output_dir", None, "Folder for the table; default: a new one.")


def body() -> int:
    """Runs every rate, prints, writes the table."""
    folder = pathlib.Path(flags.FLAGS.output_dir or tempfile.mkdtemp(prefix="overlap_"))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for rate in flags.FLAGS.rates:
        more = [f"--bucket_mb={flags.FLAGS.bucket_mb}", "--planted=flat=1", "--launches=1"]
        more += [f"--cell_s={flags.FLAGS.cell_s}"]
        with tempfile.TemporaryDirectory() as kept, links.link(2, rate) as link:
            found += rows(rate, parallel_link.records(link, ["torch"], more, pathlib.Path(kept)))
        for row in [row for row in found if row["rate"] == rate]:
            sys.stdout.write(f"{row}\n")
        with open(folder / "overlap.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    return 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
