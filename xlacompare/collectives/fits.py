"""The cost model over a run's sweeps: a fit for each series, framework and transport, and what lies above the floor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from xlacompare.collectives import bandwidth, cost_choice, cost_fit, cost_gap, mesh, results, samples, table
from xlacompare.core import collective_cell as cells
from xlacompare.core import errors, estimates

MIN_SIZES = 3  # fewer sizes than this are no sweep, and nothing is said of a model
FLOORS = ("nccl", "nccl-tests", "osu")  # libraries without a framework above them

Key = tuple[str, str, str, str]  # series, transport, framework, mode


def fits(found: Mapping[str, samples.CellSamples]) -> list[results.Fit]:
    """Fits of every sweep; those of one series and transport against the fastest of them."""
    groups: dict[Key, list[samples.CellSamples]] = {}
    for entry in found.values():
        if entry.timed and entry.cell.collective != table.BARRIER.name:
            cell = entry.cell
            groups.setdefault((cell.series, cell.transport, cell.framework, cell.mode), []).append(entry)
    sweeps = {key: group for key, group in groups.items() if len(group) >= MIN_SIZES}
    made = {key: _fit(key, group) for key, group in sweeps.items()}
    floors = {(series, transport): _floor(series, transport, sweeps) for series, transport, *_ in sweeps}
    return [_above(made, key, floors[key[:2]], sweeps) for key in made]


def observations(group: Sequence[samples.CellSamples]) -> list[cost_fit.Observation]:
    """The mean of each launch and size, with its error inside the launch where there is one."""
    made = []
    for entry in group:
        cell = entry.cell
        for launch, of_launch in entry.launches.items():
            blocks = of_launch.operation_s
            within = estimates.t_interval(blocks).se if blocks.size > 1 else None
            made.append(
                cost_fit.Observation(
                    cell.collective, _ranks(cell), cell.size_bytes + cell.pad_bytes, of_launch.mean_s, launch, within
                )
            )
    return made


def _ranks(cell: cells.CollectiveCell) -> int:
    return mesh.group_size(cell.mesh, cell.axis)


def _fit(key: Key, group: Sequence[samples.CellSamples]) -> tuple[results.Fit, cost_fit.Fit | None]:
    series, transport, framework, mode = key
    blank = results.Fit(series, framework, mode, transport)
    try:
        chosen = cost_choice.choose(observations(group))
    except errors.BadInputError as error:
        return dataclasses.replace(blank, problem=str(error)), None
    cell, fit = group[0].cell, chosen.fit
    name, n = cell.collective, _ranks(cell)
    valid = fit.valid_bytes or (None, None)
    named = {each: fit.parameter(each) for each in fit.names}
    made = dataclasses.replace(
        blank,
        algorithm=chosen.text,
        identified=chosen.identified,
        latency_s=_interval(fit.intercept(name, n)),
        bandwidth=_rate(fit.bus_bandwidth(name, n)),
        parameters={each: _interval(value) for each, value in named.items() if value is not None},
        crossover_bytes=_crossover(fit, name, n),
        residual=max(abs(each.relative) for each in fit.residuals),
        low_bytes=valid[0],
        high_bytes=valid[1],
        notes=fit.notes,
    )
    return made, fit


def _interval(estimate: estimates.Estimate) -> results.Interval:
    return estimate.mean, estimate.low, estimate.high


def _rate(rate: bandwidth.Rate | None) -> results.Interval | None:
    return None if rate is None else (rate.value, rate.low, rate.high)


def _crossover(fit: cost_fit.Fit, name: str, n: int) -> results.Interval | None:
    """latency / seconds per byte, with Fieller's interval: at this size half of the time is latency."""
    at_zero, at_one = fit.row(name, n, 0), fit.row(name, n, 1)
    values, covariance = np.array(fit.values), np.array(fit.covariance)
    found = cost_gap.fieller(at_zero, at_one - at_zero, values, covariance, fit.df, fit.level)
    return None if found is None or found[0] <= 0 else found


def _floor(series: str, transport: str, sweeps: Mapping[Key, Sequence[samples.CellSamples]]) -> Key | None:
    """A bare library where one was measured, else the framework with the smallest times; none of one alone."""
    rivals = {key: group for key, group in sweeps.items() if key[:2] == (series, transport)}
    if len(rivals) < 2:
        return None
    bare = [key for key in rivals if key[2] in FLOORS]
    return bare[0] if bare else min(rivals, key=lambda key: _logarithm(rivals[key]))


def _logarithm(group: Sequence[samples.CellSamples]) -> float:
    """Mean logarithm of the times: every size counts alike."""
    known = [math.log(launch.mean_s) for entry in group for launch in entry.launches.values()]
    return sum(known) / len(known)


def _above(
    made: Mapping[Key, tuple[results.Fit, cost_fit.Fit | None]],
    key: Key,
    floor: Key | None,
    sweeps: Mapping[Key, Sequence[samples.CellSamples]],
) -> results.Fit:
    """A fit with what its framework takes more than the floor."""
    shown, fit = made[key]
    bare = made[floor][1] if floor is not None else None
    if floor is None or floor == key or fit is None or bare is None:
        return shown
    cell = sweeps[key][0].cell
    shares = cost_gap.shares(observations(sweeps[key]), observations(sweeps[floor]))
    gap = cost_gap.gap(fit, bare, cell.collective, _ranks(cell), (key[2], floor[2]))
    return dataclasses.replace(
        shown,
        floor=floor[2],
        above_floor={int(share.size_bytes): share.part for share in shares},
        gap=gap.text,
    )
