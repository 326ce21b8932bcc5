"""The tables that `test_imports` enforces: families, layers, commands, exceptions. docs/architecture.md shows them."""

from __future__ import annotations

FAMILIES = ({"jax", "jaxlib", "flax", "optax"}, {"torch", "torch_xla", "_XLAC"}, {"tensorflow"})
FAMILY_NAMES = set().union(*FAMILIES)

# Layer -> layers it may import from; a name with a dot allows only that module.
LAYERS: dict[str, set[str]] = {
    "core": {"core"},
    "workloads": {"core", "workloads"},
    "collectives": {"core", "collectives"},
    "parallel": {"core", "workloads", "collectives", "parallel"},
    "frameworks": {"core", "workloads", "collectives", "parallel", "frameworks"},
    "graph": {"core", "graph"},
    "launch": {
        *("core", "workloads", "collectives", "parallel", "graph", "launch"),
        *("frameworks.interface", "frameworks.gate", "frameworks.ranks", "frameworks.strategy"),
    },
    "report": {"core", "collectives", "parallel", "report"},
}
# And every __main__.py: the only files that read flags and print.
COMMANDS = {
    "run",
    "run_steps",
    "run_collectives",
    "run_parallel",
    "entry",
    "importer",
    "doctor",
    "sweep",
    "selftest",
    "command",
    "program",
}
# Adapter folder -> other adapter folders that it may use: one torch definition serves torch and torch_xla.
SHARED = {"on_torch_xla": {"on_torch"}}
# Where framework packages must not be imported at all, even by a function.
FRAMEWORK_FREE = {"core", "workloads", "collectives", "parallel", "launch", "report", "graph"}
# But for the modules that run in the graph's child process, which read programs with jaxlib; `runtime` also puts arrays
# on the device.
GRAPH_CHILD = {
    "parsing": {"jaxlib"},
    "portable": {"jaxlib"},
    "runtime": {"jaxlib", "jax"},
    "costs": {"jax"},
    "pjrt": set(),
    "replays": set(),
    "hlo_census": set(),
    "reading": set(),
}
