"""Does the attribution return causes that were planted: on the link, in the compute, in the compiler, in a rank?

Question: two ranks train the transformer with `dp` over a link whose rate is known. In one and the same processes, next
to each other: the same cells on a five times slower link; in a second run, with a chain of superfluous matrix products
in every step, and with one rank that is busy for a while in every step. Does each cause move its own effect, by its own
size, and nothing else? A second compiler arm stands beside (without fusion, or eager); what that costs is measured
apart, in a run on one device. The slower link is for preset `small`: with the 0.5 MB of gradients of `tiny` a step's
collectives are latency (jax over gloo: 28 all-reduces, one after the other, of 1 to 6 ms each, whatever the rate).

    python -m experiments.parallel_link --output_dir=experiments/results/parallel_link

Needs root (namespaces, tc). Runtime on 2 cores: about 6 minutes a framework. Leave the machine alone meanwhile.
Expected: the wire's bytes part grows by the factor of the rates; products move `compute`, the busy rank `imbalance`;
each within 10% of its planted size, all others stay within 3% of the step (two one-sided tests at 5%).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments import known_link, on_link, tables
from xlacompare import command
from xlacompare.core import effects, estimates, pairs, parallel_samples, record, samples
from xlacompare.launch import link as links

FAST, SLOW, FACTOR = "1gbit", "200mbit", 5.0
SLOW_RANK_S, PRODUCTS = 0.004, 6
MARGIN = 0.03
ARMS = ("real", "elided", "token", "alone", "alone_token")
COMPILERS = {"jax": ("compiled", "nofusion"), "torch": ("compiled", "eager")}
LINK, BUSY, EXTRA = f"planted_link={SLOW}", f"slow_rank=1:{SLOW_RANK_S}", f"extra_products={PRODUCTS}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One statement: what was planted, what was looked at, what came out.

    Attributes:
      expected, found, low, high: Milliseconds a step, or a factor; of a cause that should move nothing here expected
        is 0 and the interval is that of 90% (two one-sided tests at 5%).
      met: Within 10% with a half-width of 10% at most; of those that should stay: inside 3% of the step.
    """

    framework: str
    planted: str
    effect: str
    unit: str
    expected: float
    found: float
    low: float
    high: float
    met: bool


def records(link: links.Link, frameworks: Sequence[str], more: Sequence[str], folder: pathlib.Path) -> list[Any]:
    """Records of the public command, one process in each namespace.

    Args:
      link: With a namespace per rank.
      frameworks: With planted products, where a cell asks for them.
      more: Further flags.
      folder: For the records.
    """
    arguments = [f"--framework={','.join(frameworks)}", "--strategy=dp", "--workload=transformer"]
    arguments += ["--transport=gloo", f"--num_devices={len(link.names)}", *more]
    adapters = ",".join(f"{name}=experiments.planted_ranks_{name}" for name in frameworks)
    named = {"XLACOMPARE_FRAMEWORKS": adapters}
    on_link.run(link, arguments, folder, 1500, share_cores=True, variables=named)
    return record.read(folder).records


def size_of_products(framework: str) -> float:
    """Seconds of the planted products by themselves, on one core."""
    program = f"experiments.planted_ranks_{framework}.products"
    ran = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-m", program, str(PRODUCTS)], capture_output=True, text=True, check=True
    )
    return float(ran.stdout.split()[-1])


def size_of_compiler(framework: str, batch_size: int, preset: str, folder: pathlib.Path) -> estimates.Estimate:
    """What the second compiler arm costs more than the first, seconds a step, on one device with a rank's batch."""
    first, second = COMPILERS[framework]
    ran = [sys.executable, "-m", "xlacompare.run", f"--framework={framework}", f"--compiler={first},{second}"]
    ran += ["--workload=transformer", f"--preset={preset}", f"--batch_size={batch_size}", "--launches=3"]
    subprocess.run([*ran, "--num_cores=1", f"--output_dir={folder}", "--format=json"], check=True, capture_output=True)
    found = samples.collect(record.read(folder).records)
    arms = {made.cell.compiler: made for made in found.values()}
    both = [samples.neighbours(arms[second].launches[n], arms[first].launches[n]) for n in
            samples.common_launches(arms[second], arms[first])]  # fmt: skip
    return pairs.mean_effect(both)


def stays(framework: str, planted: str, effect: str, found: estimates.Estimate, step_s: float) -> Row:
    """An effect that the cause should leave alone."""
    narrow = found.at_level(0.90)
    inside = -MARGIN * step_s < narrow.low and narrow.high < MARGIN * step_s
    return Row(framework, planted, effect, "ms", 0.0, found.mean * 1e3, narrow.low * 1e3, narrow.high * 1e3, inside)


def moves(
    framework: str, planted: str, effect: str, found: estimates.Estimate, expected: float, unit: str = "ms"
) -> Row:
    """The effect that the cause should move, by how much."""
    scale = 1e3 if unit == "ms" else 1.0
    half = (found.high - found.low) / 2
    met = abs(found.mean - expected) <= 0.1 * abs(expected) and half <= 0.1 * abs(expected)
    ends = [value * scale for value in (expected, found.mean, found.low, found.high)]
    return Row(framework, planted, effect, unit, *ends, met)


def rows_of_link(framework: str, launches: Sequence[effects.Launch], sizes: Mapping[str, float]) -> list[Row]:
    """What a slower link moves, and what not."""
    first, second = COMPILERS[framework]
    slow, slow_second = (f"{compiler} planted:{LINK}" for compiler in (first, second))
    launches = effects.with_fastest(launches, [first, second, slow, slow_second])
    step_s = _of(launches, {(first, effects.REAL): 1}).mean
    bytes_of = {v: effects.terms(effects.WIRE_BYTES, v) for v in (first, slow)}
    factor = effects.ratio(launches, bytes_of[slow], bytes_of[first])
    assert factor is not None, "the wire's bytes part cannot be told from 0"
    compiler = {
        planted: {(b, effects.ELIDED): 1.0, (a, effects.ELIDED): -1.0}
        for planted, a, b in (("", first, second), (slow, slow, slow_second))
    }
    moved = effects.total([(1, compiler[slow]), (-1, compiler[""])])
    compute = effects.changes(first, slow)[effects.COMPUTE]
    return [
        moves(framework, LINK, "wire, bytes", factor, sizes["factor"], "x"),
        stays(framework, LINK, "compute", _of(launches, compute), step_s),
        stays(framework, LINK, f"{second} - {first}, elided", _of(launches, moved), step_s),
    ]


def rows_of_ranks(framework: str, launches: Sequence[effects.Launch], sizes: Mapping[str, float]) -> list[Row]:
    """What products, a busy rank and another compiler arm move, and what not."""
    first, second = COMPILERS[framework]
    busy, extra = (f"{first} planted:{cause}" for cause in (BUSY, EXTRA))
    launches = effects.with_fastest(launches, [first, second, busy, extra])
    step_s = _of(launches, {(first, effects.REAL): 1}).mean
    change = {planted: effects.changes(first, planted) for planted in (busy, extra)}
    compiler = {(second, effects.ELIDED): 1.0, (first, effects.ELIDED): -1.0}
    found = [
        moves(framework, EXTRA, "compute", _of(launches, change[extra][effects.COMPUTE]), sizes["products"]),
        stays(framework, EXTRA, "imbalance", _of(launches, change[extra][effects.IMBALANCE]), step_s),
        moves(framework, BUSY, "imbalance", _of(launches, change[busy][effects.IMBALANCE]), SLOW_RANK_S),
        stays(framework, BUSY, "compute", _of(launches, change[busy][effects.COMPUTE]), step_s),
        moves(framework, second, f"{second} - {first}, elided", _of(launches, compiler), sizes["compiler"]),
    ]
    for planted, cause in ((busy, BUSY), (extra, EXTRA)):
        for name in (effects.EXPOSED_LATENCY, effects.EXPOSED_BYTES, effects.WIRE_BYTES):
            found.append(stays(framework, cause, name, _of(launches, change[planted][name]), step_s))
    return found


def _of(launches: Sequence[effects.Launch], terms: effects.Terms) -> estimates.Estimate:
    found = effects.combined(launches, terms)
    assert found is not None, f"no launch has {sorted(terms)}"
    return found


def point(framework: str, cell_s: float, folder: pathlib.Path) -> list[Row]:
    """One framework: its two runs on the link, and the sizes of what was planted."""
    first, second = COMPILERS[framework]
    usual = [f"--compiler={first},{second}", f"--communication={','.join(ARMS)}", "--launches=1", f"--cell_s={cell_s}"]
    with links.link(2, SLOW) as link:
        slow = _rate(link)
    with links.link(2, FAST) as link:
        sizes = {"factor": _rate(link) / slow, "products": size_of_products(framework)}
        more = ["--preset=small", f"--planted={LINK}"]
        of_link = _launches(records(link, [framework], [*usual, *more], folder / "link"))
        more = ["--preset=tiny", f"--planted={BUSY}", f"--planted={EXTRA}"]
        kept = records(link, [framework], [*usual, *more], folder / "ranks")
    batch_size = next(found["cell"]["batch_size"] for found in kept if found["kind"] == parallel_samples.KIND)
    sizes["compiler"] = size_of_compiler(framework, batch_size // 2, "tiny", folder / "compiler").mean
    return rows_of_link(framework, of_link, sizes) + rows_of_ranks(framework, _launches(kept), sizes)


def _rate(link: links.Link) -> float:
    one_way = [pair[0] for pair in known_link.bare_socket(link)]
    return sum(one_way) / len(one_way)


def _launches(kept: Sequence[Any]) -> list[effects.Launch]:
    (world,) = parallel_samples.collect(kept)
    if failed := world.why():
        raise RuntimeError(f"cells without a time: {failed}")
    return list(world.launches().values())


def define_flags() -> None:
    """Defines the flags. A function: tests import this module."""
    flags.DEFINE_list("frameworks", ["torch", "jax"], "Frameworks that have gloo.")
    flags.DEFINE_float("cell_s", 3.0, "Seconds of timed blocks of each cell.")
    flags.DEFINE_string("output_dir", None, "Folder for table and records; default: a new one.")


def body() -> int:
    """Runs all and writes the table as it grows."""
    folder = pathlib.Path(flags.FLAGS.output_dir or tempfile.mkdtemp(prefix="parallel_link_"))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    for framework in flags.FLAGS.frameworks:
        with tempfile.TemporaryDirectory() as records_folder:
            found += point(framework, flags.FLAGS.cell_s, pathlib.Path(records_folder))
        for row in [row for row in found if row.framework == framework]:
            sys.stdout.write(f"{json.dumps(dataclasses.asdict(row))}\n")
            sys.stdout.flush()
        tables.write(folder / "parallel_link.csv", Row, found)
    return 0


if __name__ == "__main__":
    define_flags()
    command.launch(body)
