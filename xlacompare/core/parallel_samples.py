"""From `parallel` records to arms: seconds a step by visit, the same visits in every arm of a framework's world.

A world is the ranks of one framework, which run all its arms in turn: visit i of one arm lies next to visit i of the
others. The blocks of a visit are averaged (their order inside it is mirrored, so that slow drift cancels). A visit
during which something was compiled is no sample; one that others disturbed is left out while enough remain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlacompare.core import cell as cells
from xlacompare.core import effects, samples

KIND = "parallel"
Values = effects.Values


@dataclasses.dataclass(frozen=True)
class ArmLaunch:
    """One arm in one launch.

    Attributes:
      step_s: Visit -> seconds a step, the slowest rank's.
      ranks_s: Visit -> seconds a step of each rank, [ranks]; {} where ranks have no clock of their own.
      dispatch_s, host_s: Visit -> seconds a step until dispatch returned, and CPU seconds of the thread that
        dispatches; {} where the record does not say.
      disturbed: Visits during which others had the cores.
      processes: Process ids of the ranks; () where unknown.
    """

    step_s: Mapping[int, float]
    ranks_s: Mapping[int, Values]
    dispatch_s: Mapping[int, float]
    host_s: Mapping[int, float]
    disturbed: frozenset[int]
    processes: tuple[int, ...]


@dataclasses.dataclass
class Arm:
    """All records of one cell."""

    cell: cells.Cell
    records: list[dict[str, Any]]
    launches: dict[int, ArmLaunch]

    @property
    def key(self) -> effects.Key:
        """(variant, communication arm)."""
        return variant_of(self.cell), self.cell.communication

    @property
    def status(self) -> str:
        """`ok`, or how the cell failed: a failure in any launch is the cell's status, a failed gate is `mismatch`."""
        failed = [record["status"] for record in self.records if record["status"] != "ok"]
        if failed:
            return str(failed[0])
        return "mismatch" if any(gate_failed(record) for record in self.records) else "ok"

    @property
    def reason(self) -> str:
        """One line for a cell without a time."""
        if self.status == "ok":
            return "" if self.launches else "no visit without a compilation: none is a sample"
        said = [str(r.get("reason") or "") for r in self.records if r["status"] != "ok" or gate_failed(r)]
        return next((text for text in said if text), "the gate failed" if self.status == "mismatch" else "")

    @property
    def num_blocks(self) -> int:
        """Blocks of all launches, whatever became of them."""
        return sum(len(record["blocks"].get("total_s", ())) for record in self.records if record.get("blocks"))

    @property
    def num_compiled(self) -> int:
        """Blocks of all launches during which something was compiled."""
        known = [record["blocks"].get("compiles") or () for record in self.records if record.get("blocks")]
        return sum(count > 0 for counts in known for count in counts)

    @property
    def timed(self) -> bool:
        """Whether a time may be printed: a cell that failed anywhere has none, whatever it measured before."""
        return self.status == "ok" and bool(self.launches)


@dataclasses.dataclass
class World:
    """The arms of one framework on one comparison.

    Attributes:
      framework, comparison, mode: What the arms share.
      arms: By key, in the order of the records.
    """

    framework: str
    comparison: str
    mode: str
    arms: dict[effects.Key, Arm]

    @property
    def variants(self) -> list[str]:
        """Variants of which any arm was recorded."""
        return list(dict.fromkeys(variant for variant, _ in self.arms))

    def why(self) -> dict[effects.Key, str]:
        """Arm without a time -> status and reason."""
        failed = {key: arm for key, arm in self.arms.items() if not arm.timed}
        return {
            key: f"{'no sample' if arm.status == 'ok' else arm.status}: {arm.reason}" for key, arm in failed.items()
        }

    def launches(self) -> dict[int, effects.Launch]:
        """The launches with samples, aligned."""
        timed = [arm for arm in self.arms.values() if arm.timed]
        numbers = sorted({number for arm in timed for number in arm.launches})
        made = {n: _aligned({arm.key: arm.launches[n] for arm in timed if n in arm.launches}) for n in numbers}
        return {n: launch for n, launch in made.items() if launch is not None}

    def used(self) -> dict[int, list[int]]:
        """The visits of each launch that all arms have and that count."""
        timed = [arm for arm in self.arms.values() if arm.timed]
        numbers = sorted({number for arm in timed for number in arm.launches})
        return {n: common_visits([arm.launches[n] for arm in timed if n in arm.launches]) for n in numbers}


def variant_of(cell: cells.Cell) -> str:
    """The compiler arm, with the label where that is not the matched one."""
    return cell.compiler if cell.label == "matched" else f"{cell.compiler} {cell.label}"


def gate_failed(record: Mapping[str, Any]) -> bool:
    """Whether the gate of this record says that other work was done."""
    gate = record.get("gate") or {}
    return gate.get("passed") is False or gate.get("status") == "mismatch"


def collect(records: Iterable[Mapping[str, Any]]) -> list[World]:
    """The worlds of a run, in the order of the records."""
    found: dict[tuple[str, str, str], World] = {}
    for record in records:
        if record["kind"] != KIND:
            continue
        cell = cells.Cell.from_dict(record["cell"])
        where = (cell.framework, cell.comparison, cell.mode)
        world = found.setdefault(where, World(*where, {}))
        arm = world.arms.setdefault((variant_of(cell), cell.communication), Arm(cell, [], {}))
        arm.records.append(dict(record))
        if record["status"] == "ok" and record.get("launch") is not None and record.get("blocks"):
            made = arm_launch(record)
            if made.step_s:
                arm.launches[record["launch"]] = made
    return list(found.values())


def arm_launch(record: Mapping[str, Any]) -> ArmLaunch:
    """The samples of one record."""
    blocks = record["blocks"]
    count = len(blocks["total_s"])
    n = np.asarray(blocks["n"], dtype=np.float64)
    visit = np.asarray(blocks["visit"], dtype=int)
    main = np.asarray([s == "main" for s in blocks.get("series") or ["main"] * count], dtype=bool)
    main &= np.asarray([m == "block" for m in blocks.get("mode") or ["block"] * count], dtype=bool)
    compiled = np.asarray(blocks.get("compiles") or [0] * count) > 0
    disturbed = np.asarray(blocks.get("disturbed") or [False] * count, dtype=bool)
    spoilt = set(visit[compiled & main].tolist())
    chosen = {v: np.flatnonzero(main & (visit == v)) for v in dict.fromkeys(visit[main].tolist()) if v not in spoilt}
    per_step = np.asarray(blocks["total_s"], dtype=np.float64) / n
    ranks = [np.asarray(rank["total_s"], dtype=np.float64) / n for rank in record.get("ranks") or ()]
    return ArmLaunch(
        step_s={v: float(per_step[places].mean()) for v, places in chosen.items()},
        ranks_s={v: np.asarray([r[at].mean() for r in ranks]) for v, at in chosen.items()} if len(ranks) > 1 else {},
        dispatch_s=_column(blocks, "dispatch_s", n, chosen),
        host_s=_column(blocks, "host_s", n, chosen),
        disturbed=frozenset(v for v, places in chosen.items() if disturbed[places].any()),
        processes=tuple(int(rank["pid"]) for rank in record.get("ranks") or () if rank.get("pid") is not None),
    )


def _column(
    blocks: Mapping[str, Any], name: str, n: Values, chosen: Mapping[int, NDArray[np.int_]]
) -> dict[int, float]:
    values = blocks.get(name)
    if not values or any(value is None for value in values):
        return {}
    per_step = np.asarray(values, dtype=np.float64) / n
    return {v: float(per_step[places].mean()) for v, places in chosen.items()}


def common_visits(arms: Iterable[ArmLaunch]) -> list[int]:
    """Visits that all arms have, without the disturbed ones while `samples.MIN_UNDISTURBED` remain."""
    known = list(arms)
    if not known:
        return []
    shared = sorted(set.intersection(*(set(arm.step_s) for arm in known)))
    quiet = [v for v in shared if not any(v in arm.disturbed for arm in known)]
    return quiet if len(quiet) >= samples.MIN_UNDISTURBED else shared


def _aligned(arms: Mapping[effects.Key, ArmLaunch]) -> effects.Launch | None:
    visits = common_visits(arms.values())
    if not visits:
        return None
    ranks = {
        variant: np.stack([arm.ranks_s[v] for v in visits], axis=1)
        for (variant, communication), arm in arms.items()
        if communication == effects.ELIDED and arm.ranks_s
    }
    sets = list(dict.fromkeys(arm.processes for arm in arms.values()))
    return effects.Launch(
        {key: np.asarray([arm.step_s[v] for v in visits]) for key, arm in arms.items()},
        ranks,
        {key: sets.index(arm.processes) for key, arm in arms.items()},
    )
