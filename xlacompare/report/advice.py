"""What to run next: the flags that answer what this run left open, the most urgent first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from xlacompare.core import config, plan, results
from xlacompare.report import data

PROGRAM = "python -m xlacompare.run"
MAX_LAUNCHES = 50  # more fresh processes than anybody will wait for
LAUNCHES_TO_DEFEND = 6
# Fields of the configuration whose flag has another name; those that are no flag at all.
_FLAGS = {"frameworks": "framework", "compilers": "compiler", "workloads": "workload", "dtypes": "dtype"}
_NO_FLAG = ("gate_steps", "plugin")
# Always printed: a command that leaves them out is another run as soon as a default changes.
_ALWAYS = ("frameworks", "workloads")


@dataclasses.dataclass(frozen=True)
class Step:
    """One suggestion: flags to add to the command (or a command of its own), and why."""

    flags: str
    why: str


def command(values: dict[str, Any], machine: Mapping[str, Any]) -> str:
    """The command of a run: what it was about, and every flag that differs from its default.

    Args:
      values: The run's configuration.
      machine: The run's machine: the default of --num_cores follows from it.
    """
    parts = [PROGRAM]
    for field in dataclasses.fields(config.RunConfig):
        value = values.get(field.name, field.default)
        if isinstance(value, list):
            value = tuple(value)
        if field.name in _NO_FLAG or value is dataclasses.MISSING:
            continue
        if field.name in _ALWAYS or value != _default(field, values, machine):
            parts.append(_flag(field.name, value))
    return " ".join(parts)


def _default(field: dataclasses.Field[Any], values: dict[str, Any], machine: Mapping[str, Any]) -> Any:
    """What the run would have had without the flag."""
    if field.name == "launches":
        return config.default_launches(len(values.get("frameworks", ())))
    if field.name == "num_cores":
        cores = machine.get("cores_available")
        return config.default_cores(len(cores)) if cores else None
    return field.default


def _flag(name: str, value: Any) -> str:
    shown = _listed(value) if isinstance(value, tuple) else f"{value:g}" if _is_float(value) else value
    flag = _FLAGS.get(name, name)
    return f"--{flag}" if value is True else f"--{flag}={shown}"


def _listed(items: tuple[Any, ...]) -> str:
    """Items by commas, as absl reads a list (CSV): one with a comma in quotes, which the shell must not take."""
    text = ",".join(f'"{item}"' if "," in str(item) else str(item) for item in items)
    return f"'{text}'" if '"' in text else text


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def next_steps(summary: results.Summary, expert: bool) -> list[Step]:
    """Suggestions, the most urgent first."""
    urgent = [step for maker in (_finish, _failed, _undecided) for step in maker(summary)]
    hidden = data.hidden_arms(summary, expert)
    if hidden:
        urgent.append(Step("--expert", f"{', '.join(hidden)}: measured, not shown without it"))
    return urgent + [step for maker in (_replay, _eager, _settings, _size, _others) for step in maker(summary)]


def _finish(summary: results.Summary) -> Iterator[Step]:
    if summary.ending != "complete":
        yield Step("", "the same again: this run did not come to its end")


def _failed(summary: results.Summary) -> Iterator[Step]:
    first = {r.status: r for r in reversed(summary.cells) if r.step is None and r.cell.option is None}
    if "mismatch" in first:
        cell = first["mismatch"].cell
        flags = f"--framework={cell.framework} --workload={cell.workload} --compiler={cell.compiler} --launches=1"
        yield Step(flags, "only the failed gate, after the first tensor that differs was looked into")
    if "hang" in first:
        deadline = 2 * float(summary.config.get("deadline_s", config.RunConfig.deadline_s))
        yield Step(f"--deadline_s={deadline:g}", "if it was only slow; else its log says where it hangs")
    if "out_of_memory" in first:
        yield Step(f"--batch_size={max(1, first['out_of_memory'].cell.batch_size // 2)}", "what ran out of memory")
    if "crash" in first:
        cell = first["crash"].cell
        yield Step(
            f"--framework={cell.framework} --compiler={cell.compiler}", "only what crashed; its log is named above"
        )


def _undecided(summary: results.Summary) -> Iterator[Step]:
    pairs = data.lead_pairs(summary)
    open_ones = [p for p in pairs if p.verdict is not None and p.verdict.kind == "inconclusive"]
    launches = int(summary.config.get("launches", 0))
    if 0 < launches < plan.MIN_LAUNCHES and open_ones and open_ones[0].how == "launches":
        yield Step(f"--launches={plan.MIN_LAUNCHES}", "the least that shows how launches differ")
    elif open_ones:
        yield from _more(summary, open_ones)
    elif 0 < launches < LAUNCHES_TO_DEFEND and pairs:
        yield Step(f"--launches={LAUNCHES_TO_DEFEND}", "narrower intervals, a verdict worth defending")


def _more(summary: results.Summary, open_ones: list[results.Comparison]) -> Iterator[Step]:
    called = data.names(summary.cells)
    which = ", ".join(dict.fromkeys(called[p.a.comparison] for p in open_ones))
    by_unit: dict[str, list[int]] = {}
    for pair in open_ones:
        if pair.verdict is not None and pair.verdict.launches_needed is not None:
            by_unit.setdefault(pair.verdict.unit, []).append(pair.verdict.launches_needed)
    needed, why = max(by_unit.get("launches", [0])), f"would decide what is inconclusive ({which})"
    if not by_unit and any(p.verdict is not None and p.verdict.p_value <= plan.OVERALL_ALPHA for p in open_ones):
        needed = max(LAUNCHES_TO_DEFEND, 2 * data.launches(summary))
        why = f"for a difference that was lost in its family ({which})"
    if 0 < needed <= MAX_LAUNCHES:
        yield Step(f"--launches={needed}", why)
    elif pairs := by_unit.get("block pairs"):
        have = min(p.verdict.estimate.n for p in open_ones if p.verdict is not None)
        cell_s = float(summary.config.get("cell_s", 1.0)) * math.ceil(max(pairs) / max(1, have))
        yield Step(f"--cell_s={cell_s:g}", why)
    elif any(p.a.framework != p.b.framework for p in open_ones):
        margin = float(summary.config.get("margin", config.RunConfig.margin))
        wider = 2 * margin or plan.MARGIN_BETWEEN
        yield Step(f"--margin={wider:g}", f"if so much does not matter: {which} is too close to call")
    else:  # the margin inside a process is fixed; --margin would change nothing
        cell_s = 2 * float(summary.config.get("cell_s", config.RunConfig.cell_s))
        yield Step(f"--cell_s={cell_s:g}", f"more blocks of each arm: {which} is too close to call")


def _eager(summary: results.Summary) -> Iterator[Step]:
    measured = {r.cell.compiler for r in summary.cells}
    if summary.cells and "eager" not in measured:
        yield Step(
            f"--compiler=eager,{','.join(data.arms(summary, True))}", "the bars: how much is the compiler's part"
        )


def _replay(summary: results.Summary) -> Iterator[Step]:
    """Where two frameworks' steps are programs that were read, so that each could run in the other's XLA."""
    read = {r.cell.framework for r in summary.cells if "StableHLO" in str(r.census.get("source", ""))}
    if len(read) > 1 and not summary.config.get("replay", False):
        yield Step("--replay", "the gap as host, lowering and XLA build: each program in each XLA")


def _settings(summary: results.Summary) -> Iterator[Step]:
    if summary.flags:
        return  # --ablate_flags and --settings exclude each other
    if summary.config.get("settings", "matched") == "matched":
        yield Step("--settings=both", "what each framework's own defaults change")
    elif summary.settings and not any(":" in changed.label for changed in summary.settings):
        yield Step("--settings=both --itemise", "which of the settings it is")


def _size(summary: results.Summary) -> Iterator[Step]:
    if summary.config.get("preset") in data.NOT_TRANSFERABLE:
        yield Step("--preset=small", "steps long enough for a ratio that carries over")


def _others(summary: results.Summary) -> Iterator[Step]:
    if len(data.frameworks(summary)) == 1:
        yield Step("python -m xlacompare.doctor", "which other frameworks work here, for --framework=A,B")
