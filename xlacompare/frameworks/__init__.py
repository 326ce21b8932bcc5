"""The registry of frameworks: the only table of their names. Adding a framework is one folder and one line here."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from xlacompare.core import census, errors, program, timeline, xla_dump, xla_options
from xlacompare.frameworks import interface, ranks


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where an adapter lives and what it needs.

    Attributes:
      package: Package that holds the adapter's files.
      requires: Importable names that must be there.
      extra: The extra of setup.cfg that installs them.
      distributions: Distributions whose versions go into the environment.
    """

    package: str
    requires: tuple[str, ...]
    extra: str
    distributions: tuple[str, ...]


# A third party's adapter (and the stand-in of our own tests) joins without touching this file:
# XLACOMPARE_FRAMEWORKS="name=package" names a package with the same files. Several are separated by commas.
EXTRA_VARIABLE = "XLACOMPARE_FRAMEWORKS"

FRAMEWORKS: dict[str, Entry] = {
    "jax": Entry("xlacompare.frameworks.on_jax", ("jax", "flax", "optax"), "jax", ("jax", "jaxlib", "flax", "optax")),
    "torch": Entry("xlacompare.frameworks.on_torch", ("torch",), "torch", ("torch",)),
    "torch_xla": Entry(
        "xlacompare.frameworks.on_torch_xla", ("torch", "torch_xla"), "torch_xla", ("torch", "torch_xla")
    ),
}

# Collectives only, no models: `entry` and `transports` know them, the main job refuses them, the doctor lists none.
COLLECTIVE_ONLY: dict[str, Entry] = {
    "nccl": Entry("xlacompare.frameworks.on_nccl", ("nccl", "cuda"), "cuda12", ("nccl4py", "nvidia-nccl-cu12")),
}


def known() -> dict[str, Entry]:
    """All frameworks by name: the table and those of the environment variable."""
    table = dict(FRAMEWORKS)
    for item in filter(None, os.environ.get(EXTRA_VARIABLE, "").split(",")):
        name, _, package = item.partition("=")
        table[name] = Entry(package, (), name, ())
    return table


def entry(name: str) -> Entry:
    """The entry of a framework.

    Raises:
      BadInputError: No framework has this name.
    """
    table = known() | COLLECTIVE_ONLY
    if name not in table:
        raise errors.BadInputError(f"unknown framework {name!r}; known: {', '.join(table)}")
    return table[name]


def missing(name: str) -> list[str]:
    """Packages that this framework needs and that are not installed (found without importing them)."""
    return [package for package in entry(name).requires if importlib.util.find_spec(package) is None]


def require(name: str) -> None:
    """Raises MissingFrameworkError, with the command that installs it, when a framework is not installed."""
    lacking = missing(name)
    if lacking:
        raise errors.MissingFrameworkError(
            f"framework {name!r} needs {', '.join(lacking)}, not installed here; "
            f"install with: pip install -e '.[{entry(name).extra}]'"
        )


def arms(name: str) -> ModuleType:
    """The framework's `arms` module; importing it imports no framework.

    It has ARMS (name -> ArmSpec), LACKS (name -> reason), GATE_ARM (whose step the float64 gate takes: the one that is
    built soonest), SETTINGS (name -> Setting), CACHE_VARIABLES (variables that name the folder of the compiler's disk
    cache) and environment(platform, num_threads); where the framework runs on PJRT plugins that are not its own also
    plugin_environment(plugin, platform, num_threads).

    One whose compiler is XLA also has XLA_OPTIONS (`interface.XlaOptions`).

    Raises:
      MissingFrameworkError: There is none: the framework has collectives only, or its package cannot be imported.
    """
    package = entry(name).package
    if name in COLLECTIVE_ONLY:
        raise errors.MissingFrameworkError(
            f"framework {name!r} has collectives only, no models: give --collective=all_reduce, or leave it out"
        )
    try:
        return importlib.import_module(f"{package}.arms")
    except ModuleNotFoundError as error:
        raise errors.MissingFrameworkError(
            f"framework {name!r} has no module {package}.arms ({error}); "
            f"{EXTRA_VARIABLE} must name an importable package"
        ) from None


def transports(name: str) -> ModuleType:
    """The framework's `transports` module (see `ranks`); importing it imports no framework.

    Raises:
      MissingFrameworkError: The framework has no collectives.
    """
    package = entry(name).package
    try:
        return importlib.import_module(f"{package}.transports")
    except ModuleNotFoundError as error:
        raise errors.MissingFrameworkError(
            f"framework {name!r} has no collectives: no module {package}.transports ({error})"
        ) from None


def connect(name: str, transport: str, mode: str, place: ranks.Place) -> ranks.Ranks:
    """Imports a framework and connects this process's ranks to the others. Call it in a rank's process only."""
    require(name)
    module = importlib.import_module(f"{entry(name).package}.collectives")
    connected: ranks.Ranks = module.connect(transport, mode, place)
    return connected


def strategies(name: str) -> ModuleType | None:
    """The framework's `strategies` module (see `strategy`), None without one; importing it imports no framework."""
    return _file(name, "strategies")


def parallel(name: str) -> ModuleType:
    """The framework's `parallel` module. Call it in a rank's process only, after `connect`."""
    return importlib.import_module(f"{entry(name).package}.parallel")


def profiled(name: str, connected: ranks.Ranks, step: Any, n: int, folder: pathlib.Path) -> timeline.Trace:
    """A few steps under the framework's own profiler. Every rank of a world calls this with the same n.

    Args:
      name: The framework of this rank's process.
      connected: What `connect` gave.
      step: A `strategy.ParallelStep` that has run before; `run`, `synchronize` and `communications` are used.
      n: Steps that are traced, each with a fence; one more runs before them.
      folder: Where the raw traces are kept; each process needs one of its own.

    Raises:
      UnsupportedError: The framework, or its profiler here, does not say what ran when.
    """
    module = _file(name, "profiling")
    if module is None:
        raise errors.UnsupportedError(f"framework {name!r} traces no steps: its folder has no profiling.py")
    traced: timeline.Trace = module.profiled(connected, step, n, folder)
    return traced


def settings(name: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a framework: the matched values, but for those in `changed`."""
    return {setting.name: changed.get(setting.name, setting.matched) for setting in arms(name).SETTINGS.values()}


def build_settings(name: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that go to `Framework.build`, and the XLA option of an ablation where the build takes it."""
    table = arms(name).SETTINGS
    chosen = {key: value for key, value in settings(name, changed).items() if table[key].where == "build"}
    takes = getattr(arms(name), "XLA_OPTIONS", None)
    if takes is not None and takes.where == "build" and xla_options.CHANGED in changed:
        chosen[xla_options.CHANGED] = changed[xla_options.CHANGED]
    return chosen


def load_framework(name: str) -> interface.Framework:
    """Imports and starts an adapter. Call it in a worker process only."""
    require(name)
    module = importlib.import_module(f"{entry(name).package}.framework")
    return module.Adapter()


def _file(name: str, file: str) -> ModuleType | None:
    """A file of a framework's folder that it may lack. Importing most of them imports the framework, which only its
    worker may do.
    """
    module = f"{entry(name).package}.{file}"
    return importlib.import_module(module) if importlib.util.find_spec(module) is not None else None


def capture(name: str, step: interface.TrainStep, title: str = "") -> program.Program:
    """The program of a step that `Framework.build` made. Call it in the worker process that built it only.

    Raises:
      UnsupportedError: The framework, or this arm, has no program in StableHLO.
    """
    module = _file(name, "program")
    if module is None:
        raise errors.UnsupportedError(f"framework {name!r} captures no program: its folder has no program.py")
    captured: program.Program = module.capture(step, title)
    return captured


def own_clients() -> list[str]:
    """Frameworks that run captured programs in an XLA of their own, installed or not; jaxlib is one by itself."""
    found = {name: entry for name, entry in known().items() if "jaxlib" not in entry.distributions}
    return [name for name, entry in found.items() if importlib.util.find_spec(f"{entry.package}.replay") is not None]


def replay(name: str, captured: program.Program, computation: bytes) -> Any:
    """A captured program, of whatever framework, in this framework's own XLA and client (a `graph.runnable.Runnable`).

    Args:
      name: The framework of this worker process.
      captured: The program with its inputs.
      computation: The same as a serialised HLO module, without donation.

    Raises:
      UnsupportedError: The framework runs no programs but its own.
    """
    module = _file(name, "replay")
    if module is None:
        raise errors.UnsupportedError(f"framework {name!r} runs no captured programs: its folder has no replay.py")
    return module.prepare(captured, computation)


def count(name: str, step: interface.TrainStep) -> census.Counted:
    """What a step that `Framework.build` made does; not its compiler's output. For the worker that built it only.

    Raises:
      UnsupportedError: The framework, or this arm, cannot say.
    """
    module = _file(name, "program")
    if module is None:
        raise errors.UnsupportedError(f"framework {name!r} counts no operations: its folder has no program.py")
    if not hasattr(module, "count"):
        raise errors.UnsupportedError(f"framework {name!r} counts no operations: its program.py has no `count`")
    counted: census.Counted = module.count(step)
    return counted


def evidence(name: str, step: interface.TrainStep) -> xla_dump.Evidence:
    """What XLA dumped of a built step's compilation; empty where it dumped nothing. For its worker only."""
    function = getattr(_file(name, "program"), "evidence", None)
    found: xla_dump.Evidence = xla_dump.Evidence() if function is None else function(step)
    return found
