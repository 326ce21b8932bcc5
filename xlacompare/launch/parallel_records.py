"""What the record of a training step over ranks holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import environment, machine
from xlacompare.launch import collective_records, launchers, parallel_building, preparation, rank_rows, worlds
from xlacompare.parallel import config

KIND = "parallel"


def record(
    run: config.ParallelConfig,
    cell: cells.Cell,
    launch: int | None,
    outcome: parallel_building.Outcome,
    inputs: preparation.Inputs | None,
    launcher: str,
    spec: launchers.Spec,
) -> dict[str, Any]:
    """The record of one cell in one launch; without status `ok` it holds no times.

    Args:
      run: The configuration.
      cell: The cell.
      launch: Its number; None for a cell that was never tried.
      outcome: What became of it.
      inputs: What its ranks read; None where that was never made.
      launcher: Name of who starts the ranks.
      spec: Its world.
    """
    ok = outcome.status == "ok"
    blocks = outcome.blocks if ok else []
    local = rank_rows.local_ranks(outcome.started, run.num_ranks)
    return {
        "comparison": cell.comparison,
        "launch": launch,
        "cell": cell.to_dict(),
        "status": outcome.status,
        "reason": outcome.reason,
        "gate": outcome.gate,
        "census": collective_records.NOTHING_RAN if outcome.seen is None else outcome.seen.record,
        "work": outcome.work,
        "compile": outcome.built,
        "warm_up": outcome.warm_up if ok else {},
        "fence": outcome.fence,
        "profile": outcome.profile if ok else {},
        "steps_per_block": outcome.n if ok else None,
        "facts": {} if inputs is None else inputs.facts,
        "blocks": rank_rows.columns(blocks),
        "ranks": rank_rows.ranks(outcome.started, blocks),
        "start": rank_rows.start(outcome.started),
        "oversubscribed": worlds.oversubscribed(run, local, spec.cores),
        "launcher": launcher,
        "environment": _environment(run, cell, outcome.started, inputs, spec),
    }


def _environment(
    run: config.ParallelConfig,
    cell: cells.Cell,
    started: Sequence[dict[str, Any]],
    inputs: preparation.Inputs | None,
    spec: launchers.Spec,
) -> dict[str, Any]:
    here = machine.describe()
    variables: dict[str, str | None] = dict(os.environ)
    if cell.mode:
        variables |= launchers.environment(spec, spec.place(0, 0, spec.num_processes, "", 0))
    settings = frameworks.settings(cell.framework, dict(cell.changed))
    return {
        "checked": {
            "machine": f"{here['host']}, {here['cpu']}, {here['cores_online']} cores",
            "platform": run.platform,
            "num_cores": len(spec.cores),
            "data_sha256": inputs.sha256 if inputs else None,
            "dtype_policy": preparation.DTYPE_POLICY,
            "source_revision": environment.source_revision(),
            "transport": cell.transport,
            "matmul_precision": settings.get("matmul_precision"),
        },
        "framework": rank_rows.describe(started),
        "versions": environment.versions(frameworks.entry(cell.framework).distributions + ("numpy", "scipy")),
        "variables": environment.relevant_variables(variables),
        "load_average": here["load_average"],
    }
