"""What a record holds of all ranks: a block as the slowest saw it, and the processes themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass
class Row:
    """A block of n runs, over all processes of a world.

    Attributes:
      total_s, dispatch_s, host_s: Maximum over the processes.
      skew_s: Last start minus first start, by a machine's one clock; None over several machines.
      by_process: `total_s` of each process, in the order of ranks.
    """

    n: int
    start_s: float
    total_s: float
    dispatch_s: float
    host_s: float
    compiles: int
    skew_s: float | None
    by_process: list[float]
    mode: str = "block"
    visit: int = 0
    position: int = 0
    disturbed: bool = False


def merged(blocks: Sequence[Mapping[str, Any]], started: Sequence[Mapping[str, Any]]) -> Row:
    """One row of the same block on every process.

    Args:
      blocks: `timing.Block.to_dict()` by process.
      started: The processes' answers to `start`, for their hosts.
    """
    starts = [block["start_s"] for block in blocks]
    one_clock = len({process["host"] for process in started}) == 1
    return Row(
        n=blocks[0]["n"],
        start_s=min(starts),
        total_s=max(block["total_s"] for block in blocks),
        dispatch_s=max(block["dispatch_s"] for block in blocks),
        host_s=max(block["host_s"] for block in blocks),
        compiles=max(block["compiles"] for block in blocks),
        skew_s=max(starts) - min(starts) if one_clock else None,
        by_process=[block["total_s"] for block in blocks],
    )


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Blocks as lists of equal length, for a record."""
    names = ("visit", "position", "mode", "n", "start_s", "total_s", "dispatch_s", "host_s", "compiles", "disturbed")
    made: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in (*names, "skew_s")}
    return {**made, "series": ["main"] * len(rows)}


def iteration_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Single runs, for a record."""
    return {name: [getattr(row, name) for row in rows] for name in ("total_s", "dispatch_s", "skew_s")}


def ranks(started: Sequence[Mapping[str, Any]], blocks: Sequence[Row]) -> list[dict[str, Any]]:
    """Each process with its own times, block by block."""
    return [
        {
            **{name: process[name] for name in ("rank", "pid", "host", "affinity")},
            "total_s": [row.by_process[place] for row in blocks],
        }
        for place, process in enumerate(started)
    ]


def start(started: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Costs of the start by process, and what rank 0 says of its framework."""
    return {
        "import_s": [process["import_s"] for process in started],
        "start_s": [process["start_s"] for process in started],
        "describe": describe(started),
    }


def local_ranks(started: Sequence[Mapping[str, Any]], size: int) -> int:
    """Ranks on the busiest machine: all of them, unless processes of other machines hold some."""
    by_host: dict[str, int] = {}
    for process in started:
        by_host[process["host"]] = by_host.get(process["host"], 0) + len(process["local"])
    return max(by_host.values(), default=size)


def describe(started: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What rank 0's process says of its framework."""
    found: dict[str, Any] = started[0]["describe"] if started else {}
    return found
