"""The graph's child process: `python -m xlacompare.graph.worker`. One JSON object per line, asked and answered.

jaxlib is imported here and nowhere in the parent. Standard output carries answers only; what a library prints goes to
standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from xlacompare.core import errors

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Operation -> module and function; a module is imported when it is first asked for.
OPERATIONS = {
    "collectives": ("hlo_census", "collectives"),
    "count": ("reading", "count"),
    "count_bytecode": ("reading", "count_bytecode"),
    "count_hlo": ("reading", "count_hlo"),
    "count_stablehlo": ("reading", "count_stablehlo"),
    "compare": ("reading", "compare"),
    "costs": ("costs", "compare"),
    "computation": ("reading", "write_computation"),
    "run": ("runtime", "run"),
    "plugin_facts": ("pjrt", "facts"),
    "plugin_run": ("pjrt", "run"),
    "replay_pin": ("replays", "pin"),
    "replay_open": ("replays", "open_program"),
    "replay_visit": ("replays", "visit"),
}

USES = {"pypjrt": ("it loads PJRT plugins", "pjrt")}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Result of one request, or the line that says why there is none."""
    module, name = OPERATIONS[request["op"]]
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(f"xlacompare.graph.{module}"), name)
        return {"ok": _plain(function(*request["arguments"]))}
    except ModuleNotFoundError as error:
        what, extra = USES.get(error.name or "", ("it parses programs", "jax"))
        return {"error": f"{error.name} is not installed: {what}; install the extra {extra!r}"}
    except errors.BadInputError as error:
        return {"error": str(error)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def main() -> None:
    """Answers until standard input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
