"""How a command starts: nothing heavy is imported before Ctrl-C has an answer.

Importing SciPy, DuckDB and their kin takes a second or two; a Ctrl-C in it must end as one at any other time does.
"""

from __future__ import annotations

import importlib
import signal
import sys

from xlacompare.core import errors


def answer_interrupts() -> None:
    """A scheduler's TERM ends a run as Ctrl-C does; and Ctrl-C works where a background shell had it ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def main(module: str) -> None:
    """Imports a command's module, defines its flags and runs its body; ends the process with the body's exit code.

    Args:
      module: Has `define_flags()` and `body()`, which returns an exit code.
    """
    answer_interrupts()
    try:
        found = importlib.import_module(module)
        command = importlib.import_module("xlacompare.command")
        found.define_flags()
    except KeyboardInterrupt:
        sys.stderr.write("xlacompare: interrupted before anything was run\n")
        sys.exit(errors.EXIT_INTERRUPTED)
    command.launch(found.body)
