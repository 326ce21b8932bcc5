"""Builds the arms of one comparison in the worlds of a launch: request, gate, what is communicated, warm-up, fence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import timing
from xlacompare.core.census import LoweredCollective
from xlacompare.launch import parallel_census, parallel_grid, preparation, rank_rows, world
from xlacompare.launch import worlds as worlds_of_launch
from xlacompare.parallel import arms, config

MAX_STEPS_PER_BLOCK = 10000
FENCE_S, FENCE_TRIES = 0.1, 3
GATE_ORDER = ("gradient", "update", "buffer", "trace")


@dataclasses.dataclass
class Outcome:
    """What became of a cell in a launch."""

    status: str = "ok"
    reason: str = ""
    n: int = 1
    step_s: float = 0.0
    built: dict[str, Any] = dataclasses.field(default_factory=dict)
    gate: dict[str, Any] = dataclasses.field(default_factory=dict)
    seen: parallel_census.Seen | None = None
    work: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_up: dict[str, Any] = dataclasses.field(default_factory=dict)
    fence: dict[str, Any] | None = None
    profile: dict[str, Any] = dataclasses.field(default_factory=dict)
    blocks: list[rank_rows.Row] = dataclasses.field(default_factory=list)
    started: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def block_s(self) -> float:
        """Expected seconds of a block."""
        return self.n * self.step_s


class Building:
    """The cells of one comparison in one launch, and what became of them."""

    def __init__(
        self,
        run: config.ParallelConfig,
        worlds: worlds_of_launch.Worlds,
        members: Sequence[cells.Cell],
        inputs: preparation.Inputs,
        launch: int,
        reader: parallel_census.Reader,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Makes the session; `measure` runs it.

        Args:
          run: The configuration.
          worlds: The worlds of the launch.
          members: Cells of one comparison.
          inputs: Files that all ranks read.
          launch: Its number; in the first one fences are tested and the work is counted.
          reader: Judges what the arms do.
          tell: Hears what is done now.
        """
        self.run, self.worlds, self.inputs, self.launch, self.reader = run, worlds, inputs, launch, reader
        self.tell = tell
        self.outcomes = {cell: Outcome() for cell in members}
        self.loaded: set[worlds_of_launch.Key] = set()

    def ask(self, cell: cells.Cell, op: str, **values: Any) -> list[Any]:
        return self.worlds.of(cell).ask({"op": op, "cell": cell.id, **values})

    def build_one(self, cell: cells.Cell, outcome: Outcome) -> None:
        """Builds, checks and warms up a cell; a failed check is a `mismatch`, and frees the step.

        Raises:
          WorldError: It could not be built.
        """
        self.tell(f"building {cell.framework} {cell.compiler} {cell.communication}")
        outcome.started = self.worlds.of(cell).started
        self._load(cell)
        asked = parallel_grid.request_of(cell, self._schedule(cell))
        name = self._inputs_name
        answers = self.ask(cell, "build_step", point=cell.to_dict(), inputs=name, request=asked.to_dict())
        outcome.built = max((answer["compile"] for answer in answers), key=lambda made: made["build_s"])
        outcome.built["compiles"] = max(answer["compile"]["compiles"] for answer in answers)
        outcome.gate = answers[0]["gate"]
        lowered = next((said for said in self.ask(cell, "communications") if said is not None), None)
        outcome.seen = self.reader.communication(cell, lowered, self._seen_of_real(cell))
        if problem := _gate_problem(answers, outcome) or outcome.seen.violation:
            outcome.status, outcome.reason = "mismatch", problem
            self.ask(cell, "close")
            return
        self._warm_up(cell, outcome, rank_rows.merged([answer["warm"] for answer in answers], outcome.started))
        if self.launch == 0 and cell.communication == parallel_grid.REAL:  # without it ranks drift, and a read waits
            outcome.fence = self._fence(cell, max(1, min(200, round(FENCE_S / max(outcome.step_s, 1e-7)))))

    def _fence(self, cell: cells.Cell, n: int) -> dict[str, Any]:
        """The fence's self-test; once more where it failed: a busy machine fails it too, a fence that does not wait
        fails it always.
        """
        for _ in range(FENCE_TRIES):
            reports = self.ask(cell, "fence", n=n)
            made: dict[str, Any] = next((report for report in reports if not report["passed"]), reports[0])
            if made["passed"]:
                break
        return made

    @property
    def _inputs_name(self) -> str:
        return self.inputs.sha256

    def _load(self, cell: cells.Cell) -> None:
        key = self.worlds.key(cell)
        if key not in self.loaded:
            files = {"archive": str(self.inputs.archive), "reference": str(self.inputs.reference)}
            self.ask(cell, "load", inputs=self._inputs_name, **files)
            self.loaded.add(key)

    def _real_of(self, cell: cells.Cell) -> cells.Cell | None:
        """The cell whose collectives this one is held against: `real` with the same changes, else the matched one."""
        own = dataclasses.replace(cell, communication=parallel_grid.REAL)
        return next((found for found in (own, own.matched) if found in self.outcomes), None)

    def _seen_of_real(self, cell: cells.Cell) -> parallel_census.Seen | None:
        real = self._real_of(cell)
        return self.outcomes[real].seen if real is not None and real != cell else None

    def _schedule(self, cell: cells.Cell) -> Sequence[LoweredCollective]:
        """What an arm without compute replays.

        Raises:
          WorldError: It is not known.
        """
        if cell.communication not in arms.WITHOUT_COMPUTE:
            return ()
        real = self._real_of(cell)
        outcome = None if real is None else self.outcomes[real]
        if outcome is None or outcome.status != "ok" or outcome.seen is None:
            why = "was not asked for" if outcome is None else f"ended as {outcome.status}"
            raise world.unsupported(f"`real`, whose collectives {cell.communication} replays, {why}")
        if not outcome.seen.ops:
            said = outcome.seen.record["problem"] or "communicates nothing"
            raise world.unsupported(f"`real`, whose collectives {cell.communication} replays: {said}")
        return outcome.seen.ops

    def _warm_up(self, cell: cells.Cell, outcome: Outcome, last: rank_rows.Row) -> None:
        """Steps until two blocks in a row compiled nothing on any rank; the last one sizes the blocks."""
        runs, seconds, compiles, quiet = 1, last.total_s, last.compiles, int(not last.compiles)
        while quiet < 2:
            if runs >= timing.MAX_WARM_UP_STEPS and last.compiles:
                raise world.unsupported(f"still compiling after {runs} steps ({compiles} compilations)")
            # A single fenced step takes longer than a step inside a block: a short block sizes the long ones.
            n = max(1, min(MAX_STEPS_PER_BLOCK, round(self.run.min_block_s / 4 / max(last.total_s / last.n, 1e-6))))
            last = self.rows(cell, outcome, 1 if last.compiles else n, 1, False, "pilot")[0]
            runs, seconds, compiles = runs + last.n, seconds + last.total_s, compiles + last.compiles
            quiet = 0 if last.compiles else quiet + 1
        outcome.step_s = last.total_s / last.n
        outcome.n = min(MAX_STEPS_PER_BLOCK, timing.steps_per_block(outcome.step_s, self.run.min_block_s))
        outcome.warm_up = {"steps": runs, "seconds": seconds, "step_s": outcome.step_s, "compiles": compiles}

    def rows(
        self, cell: cells.Cell, outcome: Outcome, n: int, count: int, untimed: bool, series: str
    ) -> list[rank_rows.Row]:
        """`count` blocks of n steps, merged over the processes."""
        answers = self.ask(cell, "blocks", n=n, count=count, untimed=untimed, series=series)
        return [rank_rows.merged([answer[i] for answer in answers], outcome.started) for i in range(count)]


def _gate_problem(answers: Sequence[dict[str, Any]], outcome: Outcome) -> str:
    """The rank whose gate failed first in program order, and what it said; its details are the cell's then.

    A rank whose gradients are wrong makes the others' losses wrong, a few checks later.
    """
    failed = [place for place, answer in enumerate(answers) if not answer["gate"]["passed"]]
    if not failed:
        return ""
    place = min(failed, key=lambda place: _order(answers[place]["gate"].get("first")))
    outcome.gate = answers[place]["gate"]
    return f"rank {outcome.started[place]['rank']}: {outcome.gate['message']}"


def _order(first: Mapping[str, Any] | None) -> int:
    """Where in the gate's program order a difference stands."""
    if first is None:
        return 0
    if first["kind"] == "trace" and first["name"] == "step0":
        return GATE_ORDER.index("update")
    return GATE_ORDER.index(first["kind"])
