"""What to run next after a parallel run: flags to add to its command, the most urgent first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from xlacompare.core import effects, plan
from xlacompare.core import parallel_results as results
from xlacompare.parallel import arms, config
from xlacompare.report import advice
from xlacompare.report import parallel_data as data

# Fields of the configuration whose flag has another name; those that are printed whatever their value.
FLAGS = {
    "strategies": "strategy", "frameworks": "framework", "workloads": "workload", "num_ranks": "num_devices",
    "transports": "transport", "modes": "mode", "compilers": "compiler", "communications": "communication",
    "dtypes": "dtype",
}  # fmt: skip
ALWAYS = ("frameworks", "strategies", "workloads", "num_ranks", "transports")
NO_FLAG = ("gate_steps",)


def command(values: Mapping[str, Any]) -> str:
    """The command of a run: what it is about, and every flag that differs from its default."""
    parts = [advice.PROGRAM]
    for field in dataclasses.fields(config.ParallelConfig):
        value = values.get(field.name, field.default)
        value = tuple(value) if isinstance(value, list) else value
        if value is dataclasses.MISSING or field.name in NO_FLAG:
            continue
        if field.name in ALWAYS or value != (field.default if field.name != "settings" else {}):
            parts += _flags(field.name, value)
    return " ".join(parts)


def _flags(name: str, value: Any) -> list[str]:
    if name == "settings":
        return [f"--{setting}={chosen}" for setting, chosen in dict(value).items()]
    if name == "planted":
        return [f"--planted={cause}" for cause in value]
    if value is True:
        return [f"--{name}"]
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
    return [f"--{FLAGS.get(name, name)}={shown}"]


def next_steps(summary: results.ParallelSummary) -> list[advice.Step]:
    """Suggestions, the most urgent first."""
    return [step for maker in (_finish, _undecided, _arms) for step in maker(summary)]


def _finish(summary: results.ParallelSummary) -> Iterator[advice.Step]:
    if summary.ending != "complete":
        yield advice.Step("", "the same again: this run did not come to its end")


def _undecided(summary: results.ParallelSummary) -> Iterator[advice.Step]:
    launches = data.launches(summary)
    judged = [pair.verdict for pair in summary.pairs if pair.verdict is not None]
    needed = [v.launches_needed for v in judged if v.kind == "inconclusive" and v.launches_needed is not None]
    if judged and 0 < launches < plan.MIN_LAUNCHES:
        yield advice.Step(f"--launches={plan.MIN_LAUNCHES}", "verdicts: the least that shows how launches differ")
    elif needed and max(needed) <= advice.MAX_LAUNCHES:
        yield advice.Step(f"--launches={max(needed)}", "would decide what is inconclusive between frameworks")
    elif judged and launches < advice.LAUNCHES_TO_DEFEND:
        yield advice.Step(f"--launches={advice.LAUNCHES_TO_DEFEND}", "narrower intervals, a verdict worth defending")


def _arms(summary: results.ParallelSummary) -> Iterator[advice.Step]:
    present = {arm.cell.communication for arm in summary.arms}
    for name, why in (
        (effects.ELIDED, "exposed communication: nothing is told apart without it"),
        (effects.SERIAL, "the closure: whether hidden time may be claimed"),
        (effects.ALONE, "the wire, and how much of it is hidden"),
    ):
        if present and name not in present:
            asked = [arm for arm in arms.ARMS if arm in present or arm == name]
            yield advice.Step(f"--communication={','.join(asked)}", why)
