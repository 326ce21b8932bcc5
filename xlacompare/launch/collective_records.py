"""What a collective's record holds, and the census of the program that ran."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from xlacompare import frameworks
from xlacompare.collectives import config, lowering
from xlacompare.core import collective_cell as cells
from xlacompare.core import environment, machine
from xlacompare.core.census import LoweredCollective
from xlacompare.graph import client
from xlacompare.launch import collective_grid, collective_session, launchers, rank_rows, worlds

NOTHING_RAN: dict[str, Any] = {
    "source": "none",
    "ops": [],
    "findings": [],
    "wire_bytes": None,
    "fingerprint": None,
    "problem": "",
}
DTYPE_POLICY = "buffers and reductions in the dtype of the cell"


class Census:
    """Reads what ran out of programs and logs; equal programs are parsed once."""

    def __init__(self, parser: client.Client) -> None:
        """`parser`: the child process that reads HLO."""
        self._parser = parser
        self._parsed: dict[str, list[LoweredCollective] | str] = {}

    def judge(self, cell: cells.CollectiveCell, lowered: dict[str, Any] | None) -> tuple[dict[str, Any], bool]:
        """The `lowering` of a record, and whether nothing ran where something had to."""
        if lowered is None or lowered["source"] == "none":
            return {**NOTHING_RAN, "problem": "the framework does not say what ran"}, False
        text = lowered.get("text")
        content = text if text is not None else json.dumps(lowered.get("ops", []), sort_keys=True)
        made = {**NOTHING_RAN, "source": lowered["source"], "fingerprint": _digest(content)}
        made |= {key: value for key, value in lowered.items() if key not in ("text", "ops", "source")}
        ops = self._operations(lowered, made["fingerprint"])
        if isinstance(ops, str):
            return {**made, "problem": ops}, False
        judged = lowering.judge(collective_grid.request_of(cell), ops)
        made |= {"ops": [op.to_dict() for op in ops], "findings": judged.findings, "wire_bytes": judged.wire_bytes}
        return made, judged.removed

    def _operations(self, lowered: dict[str, Any], fingerprint: str) -> list[LoweredCollective] | str:
        if "text" not in lowered:
            return [LoweredCollective.from_dict(op) for op in lowered.get("ops", [])]
        if fingerprint not in self._parsed:
            self._parsed[fingerprint] = self._parser.collectives([lowered["text"]])[0]
        return self._parsed[fingerprint]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(
    run: config.CollectiveConfig,
    cell: cells.CollectiveCell,
    launch: int | None,
    outcome: collective_session.Outcome,
    census: dict[str, Any],
    launcher: str,
    cores: tuple[int, ...],
) -> dict[str, Any]:
    """The record of one cell in one launch; without status `ok` it holds no times."""
    ok = outcome.status == "ok"
    blocks = outcome.blocks if ok else []
    iterations = outcome.iterations if ok else []
    copies = [answer["copy_s"] for answer in outcome.finished if answer["copy_s"] is not None]
    return {
        "comparison": cell.comparison,
        "launch": launch,
        "cell": cell.to_dict(),
        "status": outcome.status,
        "reason": outcome.reason,
        "values": values(outcome),
        "lowering": census,
        "compile": outcome.built,
        "warm_up": outcome.warm_up if ok else {},
        "fence": outcome.fence,
        "copy_s": max(copies) if copies and ok else None,
        "blocks": rank_rows.columns(blocks),
        "iterations": rank_rows.iteration_columns(iterations),
        "ranks": _ranks(outcome, blocks),
        "start": _start(outcome.started),
        "oversubscribed": worlds.oversubscribed(run, _local_ranks(run, outcome.started), cores),
        "launcher": launcher,
        "environment": _environment(run, cell, outcome.started, cores),
    }


def values(outcome: collective_session.Outcome) -> dict[str, Any]:
    """Values compared, over all processes."""
    found = [answer["values"] for answer in outcome.finished]
    message = next((value["message"] for value in found if value["wrong"]), "")
    total: Callable[[str], int] = lambda name: sum(value[name] for value in found)  # noqa: E731
    return {"checked": total("checked"), "wrong": total("wrong"), "message": message}


def _ranks(outcome: collective_session.Outcome, blocks: list[rank_rows.Row]) -> list[dict[str, Any]]:
    return [
        {
            **{name: process[name] for name in ("rank", "pid", "host", "affinity")},
            "total_s": [row.by_process[place] for row in blocks],
        }
        for place, process in enumerate(outcome.started)
    ]


def _start(started: list[dict[str, Any]]) -> dict[str, Any]:
    """Costs of the start by process, and what rank 0 says of its framework."""
    return {
        "import_s": [process["import_s"] for process in started],
        "start_s": [process["start_s"] for process in started],
        "describe": worlds.describe(started),
    }


def _local_ranks(run: config.CollectiveConfig, started: list[dict[str, Any]]) -> int:
    """Ranks on the busiest machine: all of them, unless processes of other machines hold some."""
    by_host: dict[str, int] = {}
    for process in started:
        by_host[process["host"]] = by_host.get(process["host"], 0) + len(process["local"])
    return max(by_host.values(), default=run.num_ranks)


def _environment(
    run: config.CollectiveConfig,
    cell: cells.CollectiveCell,
    started: list[dict[str, Any]],
    cores: tuple[int, ...],
) -> dict[str, Any]:
    here, described = machine.describe(), worlds.describe(started)
    variables: dict[str, str | None] = dict(os.environ)
    if cell.mode:
        spec = launchers.Spec(
            cell.framework, cell.transport, cell.mode, run.num_ranks, run.platform, cores, run.deadline_s
        )
        place = spec.place(0, 0, spec.num_processes, "", 0)
        variables |= launchers.environment(spec, place)
    return {
        "checked": {
            "machine": f"{here['host']}, {here['cpu']}, {here['cores_online']} cores",
            "platform": run.platform,
            "num_cores": len(cores),
            "dtype_policy": DTYPE_POLICY,
            "source_revision": environment.source_revision(),
            "transport": cell.transport,
        },
        "framework": described,
        "versions": environment.versions(frameworks.entry(cell.framework).distributions + ("numpy", "scipy")),
        "variables": environment.relevant_variables(variables),
        "load_average": here["load_average"],
    }
