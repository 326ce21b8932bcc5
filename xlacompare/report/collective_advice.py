"""What to run next after a collective run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from xlacompare.collectives import config, results
from xlacompare.core import plan
from xlacompare.report import advice

# Fields of the configuration -> flag; the mesh has two.
FLAGS = {
    "frameworks": "framework", "collectives": "collective", "transports": "transport", "modes": "mode",
    "dtypes": "dtype", "reductions": "reduction", "placements": "placement",
}  # fmt: skip
ALWAYS = ("frameworks", "collectives", "transports", "sizes", "mesh")


def command(values: dict[str, Any]) -> str:
    """The command of a run: what it is about, and every flag that differs from its default."""
    parts = [advice.PROGRAM]
    for field in dataclasses.fields(config.CollectiveConfig):
        value = values.get(field.name, field.default)
        value = tuple(value) if isinstance(value, list) else value
        if value is dataclasses.MISSING or (value == field.default and field.name not in ALWAYS):
            continue
        parts += _flags(field.name, value)
    return " ".join(parts)


def _flags(name: str, value: Any) -> list[str]:
    if name == "sizes":
        return [f"--sizes={sizes_text(value)}"]
    if name == "mesh":
        return [f"--num_devices={value[0]}" if len(value) == 1 else f"--mesh={'x'.join(map(str, value))}"]
    if name == "patterns":
        return [f"--pattern='{pattern}'" for pattern in value]
    shown = (
        ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
    )
    return [f"--{FLAGS.get(name, name)}={shown}"]


def sizes_text(sizes: Sequence[int]) -> str:
    """Sizes as the flag has them: a range where they are one."""
    if len(sizes) > 2:
        factor = sizes[1] // sizes[0]
        if all(other == size * factor for size, other in zip(sizes, sizes[1:], strict=False)):
            return f"{_size(sizes[0])}:{_size(sizes[-1])}:{factor}"
    return ",".join(map(_size, sizes))


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def next_steps(summary: results.CollectiveSummary) -> list[advice.Step]:
    """Suggestions, the most urgent first."""
    return [step for maker in (_finish, _failed, _undecided, _fits, _others) for step in maker(summary)]


def _finish(summary: results.CollectiveSummary) -> Iterator[advice.Step]:
    if summary.ending != "complete":
        yield advice.Step("", "the same again: this run did not come to its end")


def _failed(summary: results.CollectiveSummary) -> Iterator[advice.Step]:
    first = {result.status: result.cell for result in reversed(summary.cells) if result.time is None}
    if "hang" in first:
        deadline = 2 * float(summary.config.get("deadline_s", config.CollectiveConfig.deadline_s))
        yield advice.Step(f"--deadline_s={deadline:g}", "if it was only slow; else its log says where it hangs")
    for status in ("mismatch", "crash"):
        if status in first:
            cell = first[status]
            flags = f"--framework={cell.framework} --collective={cell.collective} --sizes={_size(cell.size_bytes)}"
            yield advice.Step(flags, f"only what ended as {status}")


def _undecided(summary: results.CollectiveSummary) -> Iterator[advice.Step]:
    judged = [ratio.verdict for ratio in summary.ratios if ratio.verdict is not None]
    open_ones = [verdict for verdict in judged if verdict.kind == "inconclusive"]
    launches = int(summary.config.get("launches", 1))
    if judged and 0 < launches < plan.MIN_LAUNCHES:
        yield advice.Step(f"--launches={plan.MIN_LAUNCHES}", "verdicts: one launch says nothing of how launches differ")
        return
    needed = [v.launches_needed for v in open_ones if v.launches_needed is not None]
    if needed and min(needed) <= advice.MAX_LAUNCHES:
        most = max(count for count in needed if count <= advice.MAX_LAUNCHES)
        yield advice.Step(f"--launches={most}", "would decide what is inconclusive")
    elif open_ones:
        margin = float(summary.config.get("margin", config.CollectiveConfig.margin))
        wider = 2 * margin or plan.MARGIN_BETWEEN
        yield advice.Step(f"--margin={wider:g}", "if so much does not matter: too close to call")


def _fits(summary: results.CollectiveSummary) -> Iterator[advice.Step]:
    if len(summary.config.get("sizes", ())) < 4:
        yield advice.Step("--sizes=1KiB:64MiB:4", "a sweep: latency and bandwidth by the cost model")


def _others(summary: results.CollectiveSummary) -> Iterator[advice.Step]:
    statuses = {result.status for result in summary.cells}
    if len({result.cell.framework for result in summary.cells}) == 1 or "unsupported" in statuses:
        yield advice.Step("python -m xlacompare.doctor", "which frameworks have which transport here")
