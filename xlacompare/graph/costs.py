"""What two programs spend their time on in one client: seconds by kind and size of operation, from jax's profiler.

Runs in the graph's child process. Both programs are compiled by one XLA and run in one client, so that only the
programs differ. The compilers' fusions have no counterpart in the other program; what they do has: a group is a kind of
work (a fusion counts as the heaviest thing in it) with as many elements.
"""

from __future__ import annotations

import collections
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax

from xlacompare.core import program
from xlacompare.graph import layers, modules, parsing, program_file, runtime, work

WARM_UP, RUNS = 5, 20
MOST = 40  # groups that are kept
# What a fusion is called after: the first of these that it holds, else "elementwise".
HEROES = (
    *("convolution", "dot", "sort", "scatter", "gather", "reduce-window", "reduce", "concatenate", "transpose", "copy"),
    *("dynamic-update-slice", "dynamic-slice", "slice", "pad"),
)
ELEMENTWISE = "elementwise"
Group = tuple[str, int]  # kind, elements of the result (of a matrix product: FLOPs)


def compare(left: str, right: str) -> dict[str, Any]:
    """Times of two saved programs by group.

    Returns:
      {"client", "runs", "total_s": [left, right] summed over operations, "entries": [{"what", "layers", "seconds":
      [left, right], "count": [left, right]}], the largest differences first}; seconds of one run.

    Raises:
      BadInputError: A folder holds no program that this client runs.
    """
    sides = [program_file.load(pathlib.Path(folder)) for folder in (left, right)]
    client, found = "", []
    for captured in sides:
        made = runtime.prepare(captured)
        client = made.client
        found.append(_groups(captured, made.executable.hlo_modules()[0].to_string(), _seconds(made)))
        made.close()
    entries: list[dict[str, Any]] = []
    for group in dict.fromkeys([*found[0], *found[1]]):
        one, other = (side.get(group, Cost()) for side in found)
        entries.append(
            {
                "what": one.what or other.what,
                "layers": list(dict.fromkeys([*one.layers, *other.layers]))[:3],
                "seconds": [one.seconds, other.seconds],
                "count": [one.count, other.count],
            }
        )
    entries.sort(key=lambda entry: -abs(entry["seconds"][0] - entry["seconds"][1]))
    totals = [sum(cost.seconds for cost in side.values()) for side in found]
    return {"client": client, "runs": RUNS, "total_s": totals, "entries": entries[:MOST]}


class Cost:
    """Of a group: what it is, where, how often, how long."""

    def __init__(self) -> None:
        self.what, self.count, self.seconds = "", 0, 0.0
        self.layers: list[str] = []


def _seconds(made: runtime.JaxlibRunnable) -> dict[str, float]:
    """Seconds of one run by instruction of the optimised program."""
    for _ in range(WARM_UP):
        made.dispatch()
    made.synchronize()
    total: dict[str, float] = collections.defaultdict(float)
    with tempfile.TemporaryDirectory(prefix="xlacompare-profile-") as folder:
        with jax.profiler.trace(folder):
            for _ in range(RUNS):
                made.dispatch()
                made.synchronize()  # else runs overlap, and an operation waits for one of another run
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            for name, seconds in _events(path):
                total[name] += seconds / RUNS
    return total


def _events(path: pathlib.Path) -> Iterator[tuple[str, float]]:
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                name = next((value for key, value in event.stats if key == "hlo_op"), None)
                if name is not None:
                    yield str(name), event.duration_ns * 1e-9


def _groups(captured: program.Program, text: str, seconds: dict[str, float]) -> dict[Group, Cost]:
    module = parsing.hlo(text)
    of_layer = layers.of_module(module, captured.inputs)
    home = module.computations[module.entry]
    found: dict[Group, Cost] = {}
    for item in home.instructions:
        if item.name not in seconds:
            continue
        kind, size = _kind(module, home, item)
        cost = found.setdefault((kind, size), Cost())
        cost.what = cost.what or f"{kind} -> {', '.join(map(str, item.arrays[:2]))}"
        cost.count += 1
        cost.seconds += seconds[item.name]
        layer = of_layer.get((home.name, item.name), "")
        if layer and layer not in cost.layers:
            cost.layers.append(layer)
    return found


def _kind(module: modules.Module, home: modules.Computation, item: modules.Instruction) -> Group:
    called = modules.names(item.attributes.get("calls", "")) or modules.names(item.attributes.get("to_apply", ""))
    inside = [(module.computations[name], one) for name in called for one in module.computations[name].instructions]
    held = inside if item.opcode in ("fusion", "call") else [(home, item)]
    flops = sum(work.flops(where, one) for where, one in held)
    opcodes = {one.opcode for _, one in held}
    kind = next((opcode for opcode in HEROES if opcode in opcodes), ELEMENTWISE if inside else item.opcode)
    return kind, flops or sum(array.elements for array in item.arrays)
