"""From a configuration to cells of collectives: what can be measured, what cannot and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from xlacompare import frameworks
from xlacompare.collectives import config, mesh, sizes, table
from xlacompare.collectives import request as requests
from xlacompare.core.collective_cell import CollectiveCell
from xlacompare.frameworks import ranks

Lacking = tuple[CollectiveCell, str]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells to measure, and cells that cannot be, with the reason."""

    cells: tuple[CollectiveCell, ...]
    unsupported: tuple[Lacking, ...]

    def comparisons(self) -> dict[str, tuple[CollectiveCell, ...]]:
        """Cells by comparison, transports one after the other, so that few processes live at a time."""
        grouped: dict[str, list[CollectiveCell]] = {}
        transports = list(dict.fromkeys(cell.transport for cell in self.cells))
        for cell in sorted(self.cells, key=lambda cell: transports.index(cell.transport)):
            grouped.setdefault(cell.comparison, []).append(cell)
        return {name: tuple(members) for name, members in grouped.items()}


def expand(run: config.CollectiveConfig) -> Grid:
    """Expands a configuration; a grid without a cell to measure is legal, its reasons are the answer.

    Raises:
      BadInputError: An unknown name, or a pattern that the group does not have.
      MissingFrameworkError: A framework is not installed, or has no collectives at all.
    """
    for name in run.frameworks:
        frameworks.require(name)
        frameworks.transports(name)
    found: list[CollectiveCell] = []
    lacking: list[Lacking] = []
    for base in _wanted(run):
        for name in run.frameworks:
            for cell, reason in _variants(run, dataclasses.replace(base, framework=name)):
                if reason is None:
                    found.append(cell)
                else:
                    lacking.append((cell, reason))
    return Grid(tuple(found), tuple(lacking))


def request_of(cell: CollectiveCell) -> requests.Request:
    """What the ranks are asked for."""
    n = mesh.group_size(cell.mesh, cell.axis)
    return requests.Request(
        collective=cell.collective,
        dtype=cell.dtype,
        count=cell.count,
        mesh=cell.mesh,
        axis=cell.axis,
        reduction=cell.reduction,
        pairs=mesh.parse_pattern(cell.pattern, n) if cell.pattern else (),
        root=cell.root,
        placement=cell.placement,
    )


def _wanted(run: config.CollectiveConfig) -> Iterator[CollectiveCell]:
    """Every point but for its framework; a barrier has neither sizes nor dtypes."""
    for transport in run.transports:
        for name in run.collectives:
            entry = table.get(name)
            empty = entry is table.BARRIER
            for dtype in run.dtypes[:1] if empty else run.dtypes:
                for reduction in run.reductions if entry.reduces else ("",):
                    for pattern in run.patterns if name == "ppermute" else ("",):
                        for placement in run.placements[:1] if empty else run.placements:
                            for size in (0,) if empty else run.sizes:
                                yield _cell(run, transport, name, reduction, pattern, dtype, placement, size)


def _cell(
    run: config.CollectiveConfig,
    transport: str,
    name: str,
    reduction: str,
    pattern: str,
    dtype: str,
    placement: str,
    size: int,
) -> CollectiveCell:
    count, pad = sizes.counts(name, size, dtype, run.group_size)
    return CollectiveCell(
        framework="",
        transport=transport,
        mode="",
        collective=name,
        reduction=reduction,
        dtype=dtype,
        size_bytes=size,
        count=count,
        pad_bytes=pad,
        mesh=run.mesh,
        axis=run.axis,
        pattern=pattern,
        root=run.root if name == "broadcast" else 0,
        placement=placement,
        platform=run.platform,
    )


def _variants(run: config.CollectiveConfig, base: CollectiveCell) -> Iterator[tuple[CollectiveCell, str | None]]:
    """The modes of one framework at one point, each with the reason why not."""
    transports = frameworks.transports(base.framework)
    spec: ranks.TransportSpec | None = transports.TRANSPORTS.get(base.transport)
    if spec is None:
        reason = transports.LACKS.get(base.transport, "not a transport of this framework")
        yield base, f"{base.framework} has no transport {base.transport!r}: {reason}"
        return
    modes = [mode for mode in spec.modes if mode in run.modes] if run.modes else list(spec.modes[:1])
    if not modes:
        asked, has = ", ".join(run.modes), ", ".join(spec.modes)
        yield base, f"{base.framework} runs {base.transport} in mode {has}, not {asked}"
    for mode in modes:
        cell = dataclasses.replace(base, mode=mode)
        yield cell, _why_not(cell, spec)


def _why_not(cell: CollectiveCell, spec: ranks.TransportSpec) -> str | None:
    request = request_of(cell)
    reason = table.unsupported(cell.collective, cell.reduction, cell.dtype)
    if reason is not None:
        return reason
    table.validate(request)
    reason = frameworks.transports(cell.framework).unsupported(cell.transport, cell.mode, request, cell.platform)
    if reason is not None:
        return str(reason)
    return spec.missing()
