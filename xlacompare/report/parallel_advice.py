"""What to run next after a parallel run: flags to add to its command, the most urgent first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xlacompare.core import effects, plan
from xlacompare.core import parallel_results as results
from xlacompare.parallel import arms
from xlacompare.report import advice
from xlacompare.report import parallel_data as data

# Fields of the configuration -> flag, in the order in which they are printed; others are not repeated.
FLAGS = {
    "strategies": "strategy", "frameworks": "framework", "workloads": "workload", "preset": "preset",
    "num_ranks": "num_devices", "transports": "transport", "modes": "mode", "compilers": "compiler",
    "communications": "communication", "dtypes": "dtype", "batch_size": "batch_size", "optimizer": "optimizer",
    "launches": "launches", "cell_s": "cell_s", "margin": "margin", "num_cores": "num_cores",
    "platform": "platform",
}  # fmt: skip


def command(values: Mapping[str, Any]) -> str:
    """The command of a run; what was left to a default that depends on the machine is left out."""
    parts = [advice.PROGRAM]
    for name, flag in FLAGS.items():
        value = values.get(name)
        if value is None or value == [] or value == ():
            continue
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}"
        parts.append(f"--{flag}={shown}")
    planted = [f"--planted={cause}" for cause in values.get("planted") or ()]
    return " ".join([*parts, *(f"--{n}={v}" for n, v in dict(values.get("settings") or {}).items()), *planted])


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
