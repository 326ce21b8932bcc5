"""From a configuration to cells of training over ranks: what can be measured, what cannot and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from xlacompare import frameworks, workloads
from xlacompare.collectives import request as collective_requests
from xlacompare.core import cell as cells
from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks import ranks, strategy
from xlacompare.launch import planted
from xlacompare.parallel import arms, config, request, shards, table
from xlacompare.workloads import spec

Judged = tuple[cells.Cell, str | None]
REAL = "real"


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells to measure, and cells that cannot be, with the reason."""

    cells: tuple[cells.Cell, ...]
    unsupported: tuple[tuple[cells.Cell, str], ...]

    def comparisons(self) -> dict[str, tuple[cells.Cell, ...]]:
        """Cells by comparison, transports one after the other, so that few processes live at a time."""
        grouped: dict[str, list[cells.Cell]] = {}
        transports = list(dict.fromkeys(cell.transport for cell in self.cells))
        for cell in sorted(self.cells, key=lambda cell: transports.index(cell.transport)):
            grouped.setdefault(cell.comparison, []).append(cell)
        return {name: tuple(members) for name, members in grouped.items()}


def expand(run: config.ParallelConfig) -> Grid:
    """Expands a configuration; a grid without a cell to measure is legal, its reasons are the answer.

    Raises:
      BadInputError: An unknown name, a batch that does not divide, or a setting that no strategy has.
      MissingFrameworkError: A framework is not installed, or has no models.
    """
    for name in run.frameworks:
        frameworks.arms(name)  # first, so that nobody installs what has no models
        frameworks.require(name)
    _check_settings(run)
    found: list[cells.Cell] = []
    lacking: list[tuple[cells.Cell, str]] = []
    for base in _wanted(run):
        for name in run.frameworks:
            for cell, reason in _variants(run, dataclasses.replace(base, framework=name)):
                if reason is None:
                    found += [cell, *twins(cell, run.planted)]
                else:
                    lacking.append((cell, reason))
    return Grid(tuple(found), tuple(lacking))


def twins(cell: cells.Cell, causes: Sequence[str]) -> list[cells.Cell]:
    """A cell with each planted cause, in the same world and visited next to it: their difference is paired.

    Raises:
      BadInputError: A cause that cannot be read.
    """
    changes = {text: {**dict(cell.changed), **dict(planted.parsed(text))} for text in causes}
    return [
        dataclasses.replace(cell, label=f"planted:{text}", changed=tuple(sorted(changed.items())))
        for text, changed in changes.items()
    ]


def _wanted(run: config.ParallelConfig) -> Iterator[cells.Cell]:
    """Every point but for framework, arms and mode."""
    for transport in run.transports:
        for name in run.strategies:
            for workload_name in run.workloads:
                workload = workloads.load_workload(workload_name, run.preset, run.batch_size, run.optimizer)
                if table.get(name).splits_batch:
                    shards.check(workload, run.num_ranks)
                for dtype in run.dtypes:
                    yield _cell(run, transport, name, workload, dtype)


def _cell(run: config.ParallelConfig, transport: str, name: str, workload: spec.Workload, dtype: str) -> cells.Cell:
    return cells.Cell(
        framework="",
        compiler=run.compilers[0] if run.compilers else "",
        workload=workload.name,
        preset=workload.preset,
        dtype=dtype,
        batch_size=workload.batch_size,
        optimizer=workload.optimizer.name,
        communication=run.communications[0],
        strategy=name,
        mesh=(run.num_ranks,),
        transport=transport,
    )


def _check_settings(run: config.ParallelConfig) -> None:
    known = {key for name in run.frameworks for own in _strategies(name).values() for key in own.settings}
    for key, value in run.settings:
        if key not in known:
            raise errors.BadInputError(f"--{key}={value}: no strategy of {', '.join(run.frameworks)} has this setting")


def _strategies(name: str) -> dict[str, strategy.StrategySpec]:
    module = frameworks.strategies(name)
    return {} if module is None else dict(module.STRATEGIES)


def _variants(run: config.ParallelConfig, base: cells.Cell) -> Iterator[Judged]:
    """The arms and modes of one framework at one point, each with the reason why not."""
    name, module = base.framework, frameworks.strategies(base.framework)
    if module is None:
        yield base, f"{name} trains over no ranks: its folder has no strategies.py"
        return
    own: strategy.StrategySpec | None = module.STRATEGIES.get(base.strategy)
    if own is None:
        reason = module.LACKS.get(base.strategy, "not a strategy of this framework")
        yield base, f"{name} has no strategy {base.strategy!r}: {reason}"
        return
    transport: ranks.TransportSpec | None = frameworks.transports(name).TRANSPORTS.get(base.transport)
    if transport is None:
        reason = frameworks.transports(name).LACKS.get(base.transport, "not a transport of this framework")
        yield base, f"{name} has no transport {base.transport!r}: {reason}"
        return
    has = own.modes.get(base.transport, ())
    modes = [mode for mode in has if mode in run.modes] if run.modes else list(has[:1])
    if not modes:
        asked = f", not {', '.join(run.modes)}" if has else ""
        yield base, f"{name} runs {base.strategy} over {base.transport} in {', '.join(has) or 'no mode'}{asked}"
    for mode in modes:
        for compiler in run.compilers or tuple(own.compilers)[:1]:
            cell = dataclasses.replace(base, mode=mode, compiler=compiler, changed=_changed(run, own))
            yield from _communications(run, cell, own, transport)


def _changed(run: config.ParallelConfig, own: strategy.StrategySpec) -> tuple[tuple[str, Any], ...]:
    """Settings of the run that this strategy has, where they are not the matched ones."""
    return tuple((key, value) for key, value in run.settings if key in own.settings and value != own.settings[key])


def _communications(
    run: config.ParallelConfig, cell: cells.Cell, own: strategy.StrategySpec, transport: ranks.TransportSpec
) -> Iterator[Judged]:
    """The arms of one compiler; those without compute replay the collectives of `real`, which joins them unasked."""
    if cell.compiler not in own.compilers:
        has = ", ".join(own.compilers)
        yield cell, f"{cell.framework} has no compiler arm {cell.compiler!r} for {cell.strategy}; it has {has}"
        return
    real = dataclasses.replace(cell, communication=REAL)
    without = any(arm in arms.WITHOUT_COMPUTE for arm in run.communications)
    wanted = dict.fromkeys((REAL, *run.communications) if without else run.communications)
    no_real = _why_not(real, run, own, transport)
    for arm in wanted:
        made = dataclasses.replace(cell, communication=arm)
        reason = no_real if arm == REAL else _why_not(made, run, own, transport)
        if reason is None and no_real is not None and arm in arms.WITHOUT_COMPUTE:
            reason = f"there is no `real` to take the collectives of: {no_real}"
        yield made, reason


def _why_not(
    cell: cells.Cell, run: config.ParallelConfig, own: strategy.StrategySpec, transport: ranks.TransportSpec
) -> str | None:
    reason = table.unsupported(cell.strategy, cell.communication, cell.workload)
    if reason is not None:
        return reason
    if cell.communication not in own.communication:
        return f"{cell.framework} has no communication arm {cell.communication!r} for {cell.strategy}"
    module, transports = frameworks.strategies(cell.framework), frameworks.transports(cell.framework)
    assert module is not None
    reason = module.unsupported(request_of(cell), cell.transport, cell.mode, cell.workload)
    if reason is not None:
        return str(reason)
    usual = collective_requests.Request("all_reduce", "float32", 1, (run.num_ranks,), reduction="sum")
    reason = transports.unsupported(cell.transport, cell.mode, usual, run.platform)
    return str(reason) if reason is not None else transport.missing()


def request_of(cell: cells.Cell, schedule: Sequence[LoweredCollective] = ()) -> request.Request:
    """What the ranks are asked for: what a cell changes and nobody here knows goes to the adapter as it is."""
    changed, module = dict(cell.changed), frameworks.strategies(cell.framework)
    own: dict[str, Any] = {} if module is None else dict(module.STRATEGIES[cell.strategy].settings)
    known = {*planted.NAMES, *frameworks.arms(cell.framework).SETTINGS}
    settings = {
        **frameworks.build_settings(cell.framework, changed),
        **own,
        **{key: value for key, value in changed.items() if key not in known},
    }
    return request.Request(
        strategy=cell.strategy,
        communication=cell.communication,
        compiler=cell.compiler,
        dtype=cell.dtype,
        num_ranks=cell.mesh[0],
        settings=tuple(sorted(settings.items())),
        schedule=tuple(schedule),
    )


def arm_of(cell: cells.Cell) -> str:
    """The compiler arm where it must have processes of its own, because the runtime reads its variables once."""
    arm = frameworks.arms(cell.framework).ARMS.get(cell.compiler)
    return cell.compiler if arm is not None and arm.environment else ""


def definitions(run: config.ParallelConfig) -> dict[str, Any]:
    """What the words of the records mean."""
    own = {
        name: {key: dataclasses.asdict(found) for key, found in _strategies(name).items() if key in run.strategies}
        for name in run.frameworks
    }
    return {
        "strategies": {name: table.get(name).definition for name in run.strategies},
        "communication": {name: arms.DEFINITIONS[name] for name in run.communications},
        "frameworks": own,
    }
