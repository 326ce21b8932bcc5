"""The self-test's run: matched cells of one framework, and beside them, in the same processes, one twin for each cause.

As root the ranks stand on a link of known rate (`link`), so that a slower one can be planted too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator

from xlacompare import frameworks
from xlacompare.core import cell as cells
from xlacompare.core import effects, errors
from xlacompare.core import planted_causes as causes
from xlacompare.launch import campaign, crews, launchers, parallel_campaign, parallel_grid, planted
from xlacompare.launch import link as links
from xlacompare.parallel import config

SECONDS = 0.004  # of a busy or sleeping host: about a step of the tiny transformer
BYTES = 1 << 20
WRONG_EPSILON = 1e-3
FAST, SLOW, FACTOR = "1gbit", "200mbit", 5.0
EXTRA = f"{planted.EXTRA_ALL_REDUCE}={BYTES}"
OFF = ("nofusion", "opt0")  # compiler arms that leave something off, the first one that a framework has

_STEP = (effects.REAL, effects.ELIDED, effects.TOKEN)
_WIRE = (effects.REAL, effects.ELIDED, effects.ALONE)
_PARTS = (effects.EXPOSED_LATENCY, effects.EXPOSED_BYTES)
_LINK = (effects.REAL, effects.ELIDED, effects.ALONE, effects.ALONE_TOKEN)
EXTRA_WORK, DISPATCH, RANK = "extra work", "sleep in dispatch", "slower rank"
COLLECTIVE, LINK, FUSION = "extra all-reduce", "slower link", "fusion off"
RECOMPILE, EPSILON = "forced recompile", "wrong epsilon"

CAUSES: tuple[causes.Cause, ...] = (
    causes.Cause(
        EXTRA_WORK, f"{planted.EXTRA_STEP}=1", "compute", _STEP, (effects.COMPUTE,), (effects.IMBALANCE, *_PARTS),
        causes.AS_COMPUTE,
    ),
    causes.Cause(
        DISPATCH, f"{planted.HOST_S}={SECONDS}", "compute (host)", _STEP, (effects.COMPUTE,),
        (effects.IMBALANCE, *_PARTS), causes.KNOWN, SECONDS,
    ),
    causes.Cause(
        RANK, f"{planted.SLOW_RANK}=1:{SECONDS}", "imbalance", _STEP, (effects.IMBALANCE,), (effects.COMPUTE, *_PARTS),
        causes.KNOWN, SECONDS, of_clocks=True,
    ),
    causes.Cause(
        COLLECTIVE, EXTRA, "exposed, wire", _WIRE, (effects.EXPOSED, effects.WIRE),
        (effects.COMPUTE, effects.IMBALANCE), causes.AS_ALONE, apart=f"{EXTRA},{planted.ONLY}=1",
    ),
    causes.Cause(
        LINK, f"{planted.LINK}={SLOW}", "wire, bytes", _LINK, (effects.WIRE_BYTES,),
        (effects.COMPUTE, effects.IMBALANCE), causes.AS_FACTOR, FACTOR,
    ),
    causes.Cause(
        FUSION, "", "compute (compiler)", _WIRE, (effects.COMPUTE,), (effects.WIRE, effects.IMBALANCE), causes.UNKNOWN
    ),
    causes.Cause(RECOMPILE, f"{planted.RECOMPILE}=1", "no sample", (effects.REAL,), size=causes.RECOMPILED),
    causes.Cause(EPSILON, f"{planted.EPSILON}={WRONG_EPSILON}", "gate", (effects.REAL,), size=causes.REFUSED),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
      chosen: What is planted, and what could not be.
      compiler, other: The matched compiler arm, and the one with something off ("" for none).
      left_out: Cause -> why it is not planted.
    """

    run: config.ParallelConfig
    grid: parallel_grid.Grid
    chosen: tuple[causes.Cause, ...]
    compiler: str
    other: str
    left_out: dict[str, str]
    limits: causes.Limits

    def rows(self, records: list[dict[str, object]]) -> list[causes.Row]:
        """The table of records, of a whole run or of one cut short."""
        return causes.rows(records, self.chosen, self.left_out, self.compiler, self.other, self.limits)


def usual_framework() -> str:
    """The first one that is installed and trains over ranks.

    Raises:
      BadInputError: There is none.
    """
    for name in frameworks.known():
        if not frameworks.missing(name) and frameworks.strategies(name) is not None:
            return name
    raise errors.BadInputError("no framework that trains over ranks is installed; python -m xlacompare.doctor says how")


def make(
    framework: str,
    thorough: bool,
    no_link: str | None,
    chosen: tuple[causes.Cause, ...] = CAUSES,
    **changes: object,
) -> Plan:
    """Plans a self-test.

    Args:
      framework: Name.
      thorough: Longer cells, three launches, narrower limits.
      no_link: Why no slower link can be planted; None where it can.
      chosen: What is planted.
      **changes: Of the configuration.

    Raises:
      BadInputError: The framework has no such strategy or transport here, with the reason.
    """
    frameworks.arms(framework)
    frameworks.require(framework)
    module = frameworks.strategies(framework)
    own = None if module is None else module.STRATEGIES.get("dp")
    compilers = tuple(own.compilers) if own is not None else ("compiled",)
    other = next((name for name in OFF if name in compilers), "")
    left_out = {} if other else {FUSION: f"{framework} has no arm {' or '.join(OFF)} for dp"}
    if no_link is not None:
        left_out[LINK] = no_link
    lengths = {"cell_s": 3.0, "launches": 3} if thorough else {"cell_s": 0.7, "launches": 1}
    values = {
        "workloads": ("transformer",),
        "optimizer": "adamw",
        "compilers": (compilers[0], other) if other else compilers[:1],
        "min_block_s": 0.03,
        **lengths,
        **changes,
    }
    wanted = [cause for cause in chosen if cause.name not in left_out]
    arms = tuple(dict.fromkeys(arm for cause in wanted for arm in cause.arms))
    run = config.ParallelConfig((framework,), communications=arms, **values)  # type: ignore[arg-type]
    limits = causes.Limits(0.10, 0.03) if thorough else causes.Limits(0.15, 0.05)
    return Plan(run, _grid(run, wanted, compilers[0]), chosen, compilers[0], other, left_out, limits)


def _grid(run: config.ParallelConfig, wanted: list[causes.Cause], compiler: str) -> parallel_grid.Grid:
    """Matched cells and twins, only the arms that a cause needs."""
    whole = parallel_grid.expand(run)
    if reasons := [reason for cell, reason in whole.unsupported if cell.compiler in ("", compiler)]:
        raise errors.BadInputError(f"the self-test needs every arm of dp: {reasons[0]}")
    found: list[cells.Cell] = []
    for cell in whole.cells:
        if cell.compiler != compiler:
            found += [cell] if cell.communication in _WIRE else []
            continue
        found.append(cell)
        for cause in wanted:
            if cause.text and cell.communication in cause.arms:
                found += parallel_grid.twins(cell, [cause.text])
            if cause.apart and cell.communication == effects.ALONE:
                found += parallel_grid.twins(cell, [cause.apart])
    return parallel_grid.Grid(tuple(found), ())


@contextlib.contextmanager
def _on_link(folder: pathlib.Path, size: int) -> Iterator[launchers.Launcher]:
    """Starts ranks on a link of known rate; the link and its variables are gone afterwards."""
    with links.link(size, FAST) as made:
        variables = made.variables()
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            prefixes = tuple(("ip", "netns", "exec", name) for name in made.names)
            yield crews.BuiltIn(folder, prefixes, made.addresses[0])
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def execute(
    plan: Plan, folder: pathlib.Path, run_id: str, command: list[str], progress: campaign.Progress
) -> list[dict[str, object]]:
    """Runs a plan; returns its records. Those of an interrupted run are in the folder.

    Raises:
      UnsupportedError: The link cannot be made after all.
    """
    launcher: contextlib.AbstractContextManager[launchers.Launcher | None] = contextlib.nullcontext(None)
    if LINK not in plan.left_out:
        launcher = _on_link(folder, plan.run.num_ranks)
    with launcher as who:
        made = parallel_campaign.execute(plan.run, plan.grid, folder, run_id, command, progress, who)
    return made.records
