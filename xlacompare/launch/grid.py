"""From a configuration to cells: what can be measured, what cannot and why."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

from xlacompare import frameworks, workloads
from xlacompare.core import cell as cells
from xlacompare.core import config, errors, plugin, xla_options
from xlacompare.launch import planted, process
from xlacompare.workloads import spec


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells to measure, and cells that a framework lacks with the reason."""

    cells: tuple[cells.Cell, ...]
    unsupported: tuple[tuple[cells.Cell, str], ...]

    def comparisons(self) -> dict[str, tuple[cells.Cell, ...]]:
        """Cells by comparison, in the order of the flags."""
        grouped: dict[str, list[cells.Cell]] = {}
        for cell in self.cells:
            grouped.setdefault(cell.comparison, []).append(cell)
        return {name: tuple(members) for name, members in grouped.items()}


def expand(run: config.RunConfig) -> Grid:
    """Expands a configuration.

    Raises:
      BadInputError: An unknown name, or no framework has any of the arms.
      MissingFrameworkError: A framework is not installed, or has no models.
    """
    for dtype in run.dtypes:
        if dtype not in spec.DTYPES:
            raise errors.BadInputError(f"unknown dtype {dtype!r}; known: {', '.join(spec.DTYPES)}")
    for name in run.frameworks:
        frameworks.arms(name)  # first, so that nobody installs what has no models
        frameworks.require(name)
    found: list[cells.Cell] = []
    lacking: list[tuple[cells.Cell, str]] = []
    for workload_name in run.workloads:
        workload = workloads.load_workload(workload_name, run.preset, run.batch_size, run.optimizer)
        for dtype in run.dtypes:
            for name in run.frameworks:
                for compiler in run.compilers:
                    variants = _variants(run, name, compiler, workload, dtype)
                    reason = why_not(name, compiler, run.platform, run.plugin)
                    if reason is None:
                        found.extend(variants)
                    else:
                        lacking.append((variants[0], reason))
    if run.ablate_flags and not any(cell.option for cell in found):
        raise errors.BadInputError(_no_options(run))
    if not found:
        raise errors.BadInputError("; ".join(dict.fromkeys(reason for _, reason in lacking)))
    return Grid((*found, *(_asked_replays(run, found) if run.replay else ())), tuple(lacking))


def _asked_replays(run: config.RunConfig, found: list[cells.Cell]) -> list[cells.Cell]:
    """Those of --replay: of the settings that the headline is about.

    Raises:
      BadInputError: There are no two frameworks whose programs XLA compiles.
    """
    label = "shipped" if run.settings == "shipped" else "matched"
    made = replays(cell for cell in found if cell.label == label)
    if not made:
        raise errors.BadInputError(
            "--replay runs each program in the other framework's XLA: give two frameworks whose whole step is one XLA "
            "program, --framework=jax,torch_xla --compiler=compiled"
        )
    return made


def replays(members: Iterable[cells.Cell]) -> list[cells.Cell]:
    """Every program in every runtime: a cell for each pair of frameworks that compile the same step with XLA.

    With two frameworks these are the 2x2 of programs and runtimes, their own programs in their own XLA included.
    """
    members = [m for m in members if m.compiler == getattr(frameworks.arms(m.framework), "REPLAY_ARM", None)]
    found = []
    for where, what in itertools.product(members, members):
        if (where.comparison, where.label) == (what.comparison, what.label):
            found.append(dataclasses.replace(where, program=what.framework))
    return [cell for cell in found if any(cell.program != other.program for other in found)]


def definitions(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Framework -> arm -> what it is and what one compiled program holds."""
    return {
        name: {arm.name: f"{arm.definition}; scope: {arm.scope}" for arm in frameworks.arms(name).ARMS.values()}
        for name in names
    }


def why_not(name: str, compiler: str, platform: str, chosen: plugin.PjrtPlugin | None = None) -> str | None:
    """Why a framework cannot run an arm on a platform or plugin; None where it can."""
    arms = frameworks.arms(name)
    try:
        _environment(name, platform, 1, chosen)
    except errors.UnsupportedError as error:
        return str(error)
    if compiler in arms.ARMS:
        return None
    reason = arms.LACKS.get(compiler, "not an arm of this framework")
    return f"{name} has no compiler arm {compiler!r}: {reason}; it has {', '.join(arms.ARMS)}"


def _environment(
    name: str, platform: str, num_threads: int, chosen: plugin.PjrtPlugin | None
) -> Mapping[str, str | None]:
    """Variables of a framework on its own runtime, or on a PJRT plugin.

    Raises:
      UnsupportedError: It has no such platform, or runs on no plugin.
    """
    arms = frameworks.arms(name)
    if chosen is None:
        return {**dict.fromkeys(plugin.VARIABLES), **arms.environment(platform, num_threads)}
    if not hasattr(arms, "plugin_environment"):
        raise errors.UnsupportedError(f"{name} runs on no PJRT plugin (--pjrt_plugin): it has no XLA of its own")
    made: Mapping[str, str | None] = arms.plugin_environment(chosen, platform, num_threads)
    return made


def _variants(run: config.RunConfig, name: str, compiler: str, workload: spec.Workload, dtype: str) -> list[cells.Cell]:
    base = cells.Cell(
        framework=name,
        compiler=compiler,
        workload=workload.name,
        preset=workload.preset,
        dtype=dtype,
        batch_size=workload.batch_size,
        optimizer=workload.optimizer.name,
    )
    differing = {s.name: s.shipped for s in frameworks.arms(name).SETTINGS.values() if s.shipped != s.matched}
    shipped = dataclasses.replace(base, label="shipped", changed=tuple(sorted(differing.items())))
    if run.settings == "matched":
        return [base, *_ablated(base, run)]
    if run.settings == "shipped":
        return [shipped]
    single = [
        dataclasses.replace(base, label=f"shipped:{setting}", changed=((setting, value),))
        for setting, value in sorted(differing.items())
    ]
    return [base, shipped, *(single if run.itemise else [])]


def _ablated(base: cells.Cell, run: config.RunConfig) -> list[cells.Cell]:
    """The cell with one XLA option changed, for each; none where its framework or arm has no XLA to hand them to."""
    takes = getattr(frameworks.arms(base.framework), "XLA_OPTIONS", None)
    if takes is None or base.compiler not in takes.arms:
        return []
    return [base.with_option(text) for text in xla_options.chosen(run.ablate_flags, run.platform)]


def options_between(run: config.RunConfig) -> bool:
    """Whether an XLA option of this run has a process of its own, so that its effect is a difference of launches."""
    takes = (getattr(frameworks.arms(name), "XLA_OPTIONS", None) for name in run.frameworks)
    return bool(run.ablate_flags) and any(found is not None and found.where == "environment" for found in takes)


def _no_options(run: config.RunConfig) -> str:
    """Why no cell of a run takes an XLA option, and what does."""
    able = [name for name in frameworks.known() if hasattr(frameworks.arms(name), "XLA_OPTIONS")]
    here = [name for name in run.frameworks if name in able]
    if not here:
        return f"--ablate_flags: {', '.join(run.frameworks)} has no XLA; give --framework={' or '.join(able)}"
    wanted = dict.fromkeys(arm for name in here for arm in frameworks.arms(name).XLA_OPTIONS.arms)
    return f"--ablate_flags: no arm that can be measured here takes XLA options; give --compiler={' or '.join(wanted)}"


def base_environment(
    name: str, platform: str, num_cores: int, chosen: plugin.PjrtPlugin | None = None
) -> dict[str, str | None]:
    """Variables of any worker of a framework, with matched settings.

    Raises:
      UnsupportedError: It has no such platform, or runs on no plugin.
    """
    fixed = {"PYTHONHASHSEED": "0", "XLACOMPARE_PLATFORM": platform}
    return {**fixed, **_environment(name, platform, num_cores, chosen)}


def worker_environment(
    cell: cells.Cell, run: config.RunConfig, cache: str | None, dumps: str | None = None
) -> dict[str, str | None]:
    """Variables that a worker for this cell is started with; cells with equal ones share a worker.

    Args:
      cell: The cell.
      run: The configuration.
      cache: Folder of the compilers' disk cache, or None to leave it as the user has it.
      dumps: Folder for what compilers write where programs are saved; None where they are not.
    """
    arms = frameworks.arms(cell.framework)
    environment = base_environment(cell.framework, run.platform, run.num_cores, run.plugin)
    changed: Mapping[str, Any] = dict(cell.changed)
    for setting in arms.SETTINGS.values():
        if setting.where == "environment" and setting.name in changed:
            environment.update(setting.environment)
    environment.update(planted.environment(changed))
    if cache is not None:
        environment.update(dict.fromkeys(arms.CACHE_VARIABLES, cache))
    if dumps is not None:
        environment.update(dict.fromkeys(getattr(arms, "PROGRAM_VARIABLES", ()), dumps))
    for key, value in [*arms.ARMS[cell.compiler].environment.items(), *_option_variables(cell)]:
        environment[key] = process.joined(key, environment.get(key, os.environ.get(key)), value)
    return environment


def _option_variables(cell: cells.Cell) -> list[tuple[str, str]]:
    """Variable and flag of the cell's XLA option where its framework takes it from the environment."""
    takes = getattr(frameworks.arms(cell.framework), "XLA_OPTIONS", None)
    if cell.option is None or takes is None or takes.where != "environment":
        return []
    return [xla_options.variable(cell.option)]


def pinned_cores(cell: cells.Cell, run: config.RunConfig, available: tuple[int, ...]) -> tuple[int, ...] | None:
    """Cores that the cell's worker is pinned to: the last ones, so that the first is left to the parent and the system.

    None (not pinned) where the cell is about the framework's own choice of threads.
    """
    return None if "threads" in dict(cell.changed) else available[-run.num_cores :]
