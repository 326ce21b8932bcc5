"""Asks a world to trace a few of its steps, and puts the ranks' answers together for the record."""

from __future__ import annotations

import pathlib
from typing import Any, Protocol

STEPS = 12  # traced steps of a cell: a t with 11 degrees of freedom is 12% wider than the normal's interval


class World(Protocol):
    """The part of `world.World` that is used."""

    def ask(self, request: dict[str, Any]) -> list[Any]: ...


def of_cell(world: World, cell: str, folder: pathlib.Path, n: int = STEPS) -> dict[str, Any]:
    """Traces n steps of a built training step on every rank.

    Args:
      world: That has built it.
      cell: Its id there.
      folder: Gets `rank0/`, `rank1/`, ... with the raw traces, for XProf and Perfetto; of each machine its own ranks'.
      n: Steps.

    Returns:
      {"steps": [timeline.Totals.to_dict(), ...] of all ranks, "folder", "files": below it, "notes", "reason": "" or why
      nothing can be said}; what a part of the ranks can say is not kept, since the rank that the others wait for may
      be another.
    """
    answers = world.ask({"op": "profile", "cell": cell, "n": n, "folder": str(folder)})
    reason = next((answer["reason"] for answer in answers if answer["reason"]), "")
    return {
        **failed(folder, reason),
        "steps": [] if reason else [step for answer in answers for step in answer["steps"]],
        "files": [name for answer in answers for name in answer["files"]],
        "notes": list(dict.fromkeys(note for answer in answers for note in answer["notes"])),
    }


def failed(folder: pathlib.Path, reason: str) -> dict[str, Any]:
    """The answer where the ranks gave none."""
    return {"steps": [], "folder": str(folder), "files": [], "notes": [], "reason": reason}
