"""What works here, and what to do about the rest: `python -m xlacompare.doctor`.

Looks at packages without importing them, then starts each installed framework in a child process with a deadline and
lets it compute one loss. Exit codes: 0 at least one framework works; 1 none does; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

import rich.box
import rich.console
import rich.markup
import rich.table
from absl import flags

from xlacompare import command, frameworks
from xlacompare.core import errors
from xlacompare.launch import diagnosis, plugin_diagnosis, transport_diagnosis

STYLES = {diagnosis.OK: "green", diagnosis.LACKING: "yellow", diagnosis.FAILED: "red"}


def to_text(findings: Sequence[diagnosis.Finding], definitions: bool = False, width: int | None = None) -> str:
    """A table; the fixes are below it, one a line, so that they can be copied.

    Args:
      findings: What `diagnosis.examine` returned.
      definitions: One line per arm with its definition, instead of one line per framework with its arms.
      width: Columns; the terminal's, or 100 where the output is none.
    """
    table = rich.table.Table("what", "name", "status", "detail", box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for finding in findings if definitions else with_arms_merged(findings):
        style = STYLES[finding.status]
        table.add_row(finding.area, finding.name, f"[{style}]{finding.status}[/]", rich.markup.escape(finding.detail))
    console = rich.console.Console(width=width or (None if sys.stdout.isatty() else 100), highlight=False)
    with console.capture() as captured:
        console.print(table)
        for finding in findings:
            if finding.fix:
                console.print(f"{finding.name}: {finding.fix}", markup=False, soft_wrap=True)
        console.print(verdict(findings), markup=False, soft_wrap=True, end="")
    return captured.get()


def with_arms_merged(findings: Sequence[diagnosis.Finding]) -> list[diagnosis.Finding]:
    """The arms, and the transports, that work as one line per framework, each in the place of the first."""
    merged: dict[str, diagnosis.Finding] = {}
    for finding in findings:
        framework, mark, part = finding.name.partition("/")
        key = f"{finding.area} of {framework}"
        if finding.area not in ("arm", "transport") or not mark or finding.status != diagnosis.OK:
            merged[finding.area + finding.name] = finding
        elif key in merged:
            merged[key] = dataclasses.replace(merged[key], detail=f"{merged[key].detail}, {part}")
        else:
            merged[key] = dataclasses.replace(finding, name=framework, detail=part)
    return list(merged.values())


def verdict(findings: Sequence[diagnosis.Finding]) -> str:
    """The last line: what can be run now, or how to get there."""
    working = [finding.name for finding in findings if finding.area == "framework" and finding.status == diagnosis.OK]
    if working:
        return f"Next: python -m xlacompare.run --framework={','.join(working)}"
    return "No framework works here. Next: pip install -e '.[cpu]' (or cuda12, tpu: see BUILD_NOTES.md)"


def to_json(findings: Sequence[diagnosis.Finding]) -> str:
    """One JSON object: {"findings": [...], "verdict": ...}."""
    rows = [dataclasses.asdict(finding) for finding in findings]
    return json.dumps({"findings": rows, "verdict": verdict(findings)}, indent=2)


def exit_code(findings: Sequence[diagnosis.Finding]) -> int:
    """0 when a framework works."""
    works = any(finding.area == "framework" and finding.status == diagnosis.OK for finding in findings)
    return errors.EXIT_OK if works else errors.EXIT_FAILED_CELL


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    flags.DEFINE_list("framework", list(frameworks.known()), "Frameworks to look at.")
    flags.DEFINE_enum("platform", "cpu", ["cpu", "gpu", "tpu"], "Where they shall start.")
    flags.DEFINE_enum("format", "text", ["text", "json"], "What is printed.")
    flags.DEFINE_bool("definitions", False, "Also print what each compiler arm and each transport is.")
    flags.DEFINE_float("deadline_s", 120.0, "Seconds that a framework has to start.", lower_bound=0.1)


def body() -> int:
    """Examines and prints; returns the exit code."""
    values = flags.FLAGS
    for name in values.framework:
        frameworks.entry(name)
    findings = diagnosis.examine(values.framework, values.platform, values.deadline_s)
    findings += transport_diagnosis.examine(values.framework)
    findings += plugin_diagnosis.examine(values.deadline_s)
    print(to_json(findings) if values.format == "json" else to_text(findings, values.definitions))
    return exit_code(findings)


if __name__ == "__main__":
    define_flags()
    command.launch(body)
