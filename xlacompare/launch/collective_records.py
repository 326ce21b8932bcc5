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
        made, ops = self.read(lowered)
        if ops is None:
            return made, False
        judged = lowering.judge(collective_grid.request_of(cell), ops)
        return {**made, "findings": judged.findings, "wire_bytes": judged.wire_bytes}, judged.removed

    def read(self, lowered: dict[str, Any] | None) -> tuple[dict[str, Any], list[LoweredCollective] | None]:
        """What a record says of a program or log before anybody judges it, and its operations; None: not known."""
        if lowered is None or lowered["source"] == "none":
            return {**NOTHING_RAN, "problem": "the framework does not say what ran"}, None
        text = lowered.get("text")
        content = text if text is not None else json.dumps(lowered.get("ops", []), sort_keys=True)
        made = {**NOTHING_RAN, "source": lowered["source"], "fingerprint": _digest(content)}
        made |= {key: value for key, value in lowered.items() if key not in ("text", "ops", "source")}
        ops = self._operations(lowered, made["fingerprint"])
        if isinstance(ops, str):
            return {**made, "problem": ops}, None
        return {**made, "ops": [op.to_dict() for op in ops]}, ops

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
        "ranks": rank_rows.ranks(outcome.started, blocks),
        "start": rank_rows.start(outcome.started),
        "oversubscribed": worlds.oversubscribed(run, rank_rows.local_ranks(outcome.started, run.num_ranks), cores),
        "launcher": launcher,
        "environment": _environment(run, cell, outcome.started, cores),
    }


def values(outcome: collective_session.Outcome) -> dict[str, Any]:
    """Values compared, over all processes."""
    found = [answer["values"] for answer in outcome.finished]
    message = next((value["message"] for value in found if value["wrong"]), "")
    total: Callable[[str], int] = lambda name: sum(value[name] for value in found)  # noqa: E731
    return {"checked": total("checked"), "wrong": total("wrong"), "message": message}


def _environment(
    run: config.CollectiveConfig,
    cell: cells.CollectiveCell,
    started: list[dict[str, Any]],
    cores: tuple[int, ...],
) -> dict[str, Any]:
    here, described = machine.describe(), rank_rows.describe(started)
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
