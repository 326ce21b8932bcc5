"""Programs kept open in one client and timed in blocks, as the parent asks. Runs in the graph's child process."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from xlacompare.core import program, timing
from xlacompare.graph import program_file, runnable, runtime

_OPEN: dict[str, runnable.Repeated] = {}  # of this child, by the name that the parent gave


def pin(cores: list[int]) -> list[int]:
    """Before any client starts: they size their thread pools by the cores of the process. Returns those in force."""
    os.sched_setaffinity(0, cores)
    return sorted(os.sched_getaffinity(0))


def open_program(name: str, folder: str, plugin: str | None, label: str) -> dict[str, Any]:
    """Compiles a program, checks its values, warms it up.

    Args:
      name: For later requests.
      folder: Of the program.
      plugin: Path of a plugin's library; None: jaxlib's client.
      label: What the plugin is called.

    Returns:
      As `runtime.run`, and "step_s", seconds of the last, fenced step of the warm-up.

    Raises:
      BadInputError: The program does not run there.
    """
    captured = program_file.load(pathlib.Path(folder))
    made = _prepared(captured, plugin, label)
    found = runtime.outcome(captured, made, 0)
    _OPEN[name] = runnable.Repeated(made)
    return {**found, "step_s": timing.warm_up(_OPEN[name], 0, _compiles).step_s}


def _prepared(captured: program.Program, plugin: str | None, label: str) -> runnable.Runnable:
    if plugin is None:
        return runtime.prepare(captured)
    from xlacompare.graph import pjrt  # pypjrt is needed for plugins only

    return pjrt.prepare(captured, plugin, label)


def _compiles() -> int:
    """Everything is compiled when a program is opened."""
    return 0


def visit(items: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """One block of each (name, n) in this order; the first run after a switch of programs is untimed."""
    blocks, previous = [], None
    for name, n in items:
        replay = _OPEN[name]
        if name != previous:
            replay.run(0)
            replay.synchronize()
        blocks.append(timing.time_block(replay, n, 0, _compiles).to_dict())
        previous = name
    return blocks
