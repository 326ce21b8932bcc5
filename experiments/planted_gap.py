"""Do the bars of a gap between two frameworks find a cause where it was planted?

Question: jax (gloo) and torch (gloo) train the transformer with `dp` on two ranks over a link of 1 Gbit/s. Beside
torch's own step stand three of torch with a planted cause: superfluous matrix products, a rank that is busy for a
while in every step, a link five times slower. How do the bars of the gap change?

    python -m experiments.planted_gap --output_dir=experiments/results/planted_gap

Needs root (namespaces, tc). Runtime on 2 cores: about 5 minutes. Leave the machine alone meanwhile.
Expected: products move `compute of the fastest rank`, the busy rank `imbalance of the ranks`, the link `exposed:
bytes`;
every other bar stays, within 3% of the step (two one-sided tests at 5%) where launches are enough to tell.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags

from experiments import parallel_link, tables
from xlacompare import command
from xlacompare.core import parallel_analysis, parallel_gaps, parallel_samples, plan
from xlacompare.launch import link as links

A, OF_A, B, OF_B = "jax", "compiled", "torch", "eager"
CAUSES = {
    parallel_link.EXTRA: "compute of the fastest rank",
    parallel_link.BUSY: "imbalance of the ranks",
    parallel_link.LINK: "exposed: bytes",
}
MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class Row:
    """One bar under one cause, milliseconds of torch's step minus jax's; `verdict` is about the change.

    Attributes:
      without, with_cause: The bar without and with the cause.
      change, low, high: The difference, paired by launch, with its 95% interval.
    """

    planted: str
    bar: str
    without: float
    with_cause: float
    change: float
    low: float
    high: float
    verdict: str


def rows(records: list[dict[str, Any]]) -> list[Row]:
    """All bars under all causes."""
    sides = {entry.world.framework: entry for entry in map(parallel_analysis.side, parallel_samples.collect(records))}
    a, b = sides[A], sides[B]
    chosen = plan.fixed(len(b.launches))
    before, bars, why = parallel_gaps.split(b, a, OF_B, OF_A, chosen)
    assert before is not None, why
    found = []
    for cause, own in CAUSES.items():
        variant = f"{OF_B} planted:{cause}"
        total, after, why = parallel_gaps.split(b, a, variant, OF_A, chosen)
        assert total is not None, why
        change = {bar.name: bar.estimate for bar in parallel_gaps.split(b, b, variant, OF_B, chosen)[1]}
        for one, other in zip(bars, after, strict=True):
            moved = change[one.name]
            narrow, margin = moved.at_level(0.90), MARGIN * _step_s(b)
            left = -margin < narrow.low and narrow.high < margin
            seen = moved.low > 0 or moved.high < 0
            said = "moved" if seen and not left else "left" if left else "undecided"
            expected = "moved" if one.name == own else "left"
            values = [one.estimate.mean, other.estimate.mean, moved.mean, moved.low, moved.high]
            found.append(Row(cause, one.name, *(value * 1e3 for value in values), f"{said} (expected: {expected})"))
    return found


def _step_s(side: parallel_gaps.Side) -> float:
    """Mean seconds a step of torch's own."""
    times = [launch.arms[OF_B, "real"].mean() for launch in side.launches.values()]
    return float(sum(times) / len(times))


def define_flags() -> None:
    """Defines the flags. A function: tests import this module."""
    flags.DEFINE_integer("launches", 4, "Launches.")
    flags.DEFINE_float("cell_s", 1.0, "Seconds of timed blocks of each cell and launch.")
    flags.DEFINE_string("output_dir", None, "Folder for the table; default: a new one.")


def body() -> int:
    """Runs, prints, writes the table."""
    folder = pathlib.Path(flags.FLAGS.output_dir or tempfile.mkdtemp(prefix="planted_gap_"))
    folder.mkdir(parents=True, exist_ok=True)
    more = ["--communication=real,elided,token", f"--launches={flags.FLAGS.launches}", f"--cell_s={flags.FLAGS.cell_s}"]
    more += [f"--planted={cause}" for cause in CAUSES]
    with tempfile.TemporaryDirectory() as kept, links.link(2, parallel_link.FAST) as link:
        found = rows(parallel_link.records(link, [A, B], more, pathlib.Path(kept)))
    for row in found:
        ends = f"{row.change:+.2f} [{row.low:+.2f}, {row.high:+.2f}] ms"
        sys.stdout.write(
            f"{row.planted:24} {row.bar:28} {row.without:+8.2f} {row.with_cause:+8.2f}  {ends}  {row.verdict}\n"
        )
    tables.write(folder / "planted_gap.csv", Row, found)
    return 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
