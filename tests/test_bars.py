"""The bars by programs and runtimes: they add up, each planted cause moves its own, and nothing is printed in part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments import planted_bars
from tests import report_samples as made
from xlacompare.core import analysis, bars, plan, results
from xlacompare.core import cell as cells
from xlacompare.report import render

XLA, JAX = made.make_cell("torch_xla"), made.make_cell("jax")
STEPS = {XLA: 30.0, JAX: 6.5}
# K(program, runtime) in ms.
REPLAYS = {("torch_xla", XLA): 7.5, ("jax", XLA): 8.6, ("torch_xla", JAX): 6.5, ("jax", JAX): 6.6}
DRIFT = (0.97, 1.0, 1.04)  # of the machine, launch by launch
HOST, LOWERING, BUILD, FIT = bars.HOST, bars.LOWERING, bars.BUILD, bars.FIT


def records(steps=STEPS, replays=REPLAYS, drift=DRIFT) -> list[made.Record]:
    """Three launches of both steps and all four replays."""
    found = [{"kind": "plan", "plan": plan.fixed(len(drift)).to_dict(), "mde": {}}]
    for launch, factor in enumerate(drift):
        for cell, ms in steps.items():
            found.append(made.cell_record(cell, launch, made.columns([1e-3 * ms * factor] * 6)))
        for (program, cell), ms in replays.items():
            replay = bars.replay_of(cell, program)
            found.append(made.cell_record(replay, launch, made.columns([1e-3 * ms * factor] * 6), kind="replay"))
    return found


def gap_of(found: list[made.Record]) -> results.Gap:
    return next(gap for gap in analysis.summarise(found).gaps if gap.how == "replays")


def terms(found: list[made.Record]) -> dict[str, float]:
    """Milliseconds by bar."""
    gap = gap_of(found)
    values = [1e3 * bar.seconds.mean for bar in (*gap.bars, *gap.beside)]
    return dict(zip((HOST, LOWERING, BUILD, FIT, bars.DISPATCH), values, strict=True))


def test_by_hand() -> None:
    found = terms(records(drift=(1.0, 1.0, 1.0)))
    assert found[HOST] == pytest.approx((30.0 - 7.5) - (6.5 - 6.6))
    assert found[LOWERING] == pytest.approx(((7.5 - 8.6) + (6.5 - 6.6)) / 2)
    assert found[BUILD] == pytest.approx(((7.5 - 6.5) + (8.6 - 6.6)) / 2)
    assert found[FIT] == pytest.approx(((7.5 - 8.6) - (6.5 - 6.6)) / 2)


def test_bars_add_up_launch_by_launch() -> None:
    rng = np.random.default_rng(0)
    times = bars.Square(*rng.uniform(1, 9, (8, 5)))
    found = times.terms()
    assert found[HOST] + found[LOWERING] + found[BUILD] == pytest.approx(times.step_a - times.step_b)
    assert found[LOWERING] + found[FIT] == pytest.approx(times.aa - times.ba)
    assert found[LOWERING] - found[FIT] == pytest.approx(times.ab - times.bb)
    gap = gap_of(records())
    assert sum(bar.seconds.mean for bar in gap.bars) == pytest.approx(gap.total.mean)


PLANTED = {
    HOST: ({XLA: 2.0}, {}),
    # In the program: wherever it runs, and in the step.
    LOWERING: ({XLA: 2.0}, {("torch_xla", XLA): 2.0, ("torch_xla", JAX): 2.0}),
    # In the XLA build: whatever runs there.
    BUILD: ({XLA: 2.0}, {("torch_xla", XLA): 2.0, ("jax", XLA): 2.0}),
}


@pytest.mark.parametrize("own", PLANTED)
def test_a_planted_cause_moves_its_own_bar(own) -> None:
    steps, replays = (
        {**base, **{k: base[k] + v for k, v in more.items()}}
        for base, more in zip((STEPS, REPLAYS), PLANTED[own], strict=True)
    )
    before, after = terms(records(drift=(1.0, 1.0, 1.0))), terms(records(steps, replays, (1.0, 1.0, 1.0)))
    change = {name: after[name] - before[name] for name in (HOST, LOWERING, BUILD, FIT)}
    assert change == pytest.approx({HOST: 0.0, LOWERING: 0.0, BUILD: 0.0, FIT: 0.0, own: 2.0}, abs=1e-9)


def test_the_report_says_when_the_split_depends_on_the_runtime() -> None:
    uneven = {**REPLAYS, ("torch_xla", XLA): 12.0}
    assert "depends on the runtime" in " ".join(gap_of(records(replays=uneven)).notes)
    even = {**REPLAYS, ("torch_xla", XLA): 9.6, ("torch_xla", JAX): 7.6}
    assert "depends on the runtime" not in " ".join(gap_of(records(replays=even)).notes)
    same = np.full(3, 3.0)
    corners = np.array([[1.0, 5, 4], [2, 1, 3], [2, 2, 2], [2, 2, 2]])
    times = bars.Square(same, same, same, same, *corners)
    assert times.terms()[FIT].mean() > bars.MAX_FIT * times.terms()[LOWERING].mean() > 0
    assert not bars.depends_on_runtime(times), "a fit that may be 0 is no reason to doubt the split"


@pytest.mark.parametrize("missing", list(REPLAYS))
def test_no_bars_without_every_replay(missing) -> None:
    replay = bars.replay_of(missing[1], missing[0])
    found = [r for r in records() if r.get("cell") != replay.to_dict()]
    found.append(made.cell_record(replay, None, status="mismatch", reason="params differ", kind="replay"))
    summary = analysis.summarise(found)
    assert not [gap for gap in summary.gaps if gap.how == "replays"]
    (said,) = summary.problems
    assert f"{missing[0]}'s program in {missing[1].framework}'s XLA" in said and "params differ" in said
    assert summary.pairs[0].verdict is not None, "the steps themselves are compared all the same"
    assert said[:40] in render.render(summary, "text", expert=False)


def test_runs_without_replays_say_nothing_of_them() -> None:
    found = [r for r in records() if r["kind"] != "replay"]
    summary = analysis.summarise(found)
    assert not summary.problems and "replays" not in {gap.how for gap in summary.gaps}


def operations(a: cells.Cell, b: cells.Cell) -> made.Record:
    entries = [
        {"what": "dot -> f32[8]", "layers": ["head"], "seconds": [5e-4, 1e-4], "count": [2, 1]},
        {"what": "copy -> f32[9]", "layers": [], "seconds": [1e-4, 9e-4], "count": [1, 3]},
        {"what": "reduce -> f32[9]", "layers": [], "seconds": [2e-4, 3e-4], "count": [1, 1]},
    ]
    sides = {"a": a.to_dict(), "b": b.to_dict()}
    return {"kind": "operations", **sides, "measured": True, "client": "jaxlib 1", "entries": entries}


def test_operations_are_those_in_the_direction_of_the_bar() -> None:
    """The lowering bar is negative: jax's program costs more, whichever of the two the record has first."""
    for flip in (False, True):
        record = operations(*((JAX, XLA) if flip else (XLA, JAX)))
        gap = gap_of([*records(), record])
        first = "dot" if flip else "copy"
        assert gap.operations[0].startswith(first), gap.operations
        assert len(gap.operations) == (1 if flip else 2)
        assert gap.operations_from == "measured in jaxlib 1"
    text = render.render(analysis.summarise([*records(), operations(XLA, JAX)]), "text", expert=False)
    assert "copy -> f32[9]: 0.1 ms (1) in torch_xla's, 0.9 ms (3) in jax's" in " ".join(text.split())
    assert "program fits runtime (not summed)" in text


def test_estimated_operations_say_so() -> None:
    entry = {"kind": "only in B", "what": "erf f32[8]", "count": 2, "flops": 0, "bytes": 4096, "layers": []}
    record = {"kind": "operations", "a": XLA.to_dict(), "b": JAX.to_dict(), "measured": False, "entries": [entry]}
    gap = gap_of([*records(), record])
    assert "estimated" in gap.operations_from and "erf" in gap.operations[0]


def test_older_records_have_cells_without_a_program() -> None:
    values = XLA.to_dict()
    del values["program"]
    assert cells.Cell.from_dict(values) == XLA
    assert dataclasses.replace(XLA, program="jax").id != XLA.id


def test_the_experiment_says_what_moved_and_what_was_left() -> None:
    """Simulated launches: a program's cause of 10% of the step, and a build's that only one program feels."""
    rng = np.random.default_rng(1)

    def square(aa: float, ab: float, ba: float, bb: float, sleep: float = 0.0) -> bars.Square:
        noise = 1 + 0.001 * rng.standard_normal((8, 5))
        means = np.array([30.0 + aa - 7 + sleep, 6.0 + bb - 6, 29.0, 1.0, aa, ab, ba, bb])
        return bars.Square(*(1e-3 * means[:, None] * noise))

    found = {
        planted_bars.BASE: square(7, 7, 8, 6),
        "transposes": square(7, 7, 11, 9),
        "no fusion": square(7, 7, 8, 16),
        "sleep": square(7, 7, 8, 6, sleep=2.0),
    }
    text = planted_bars.table(found)
    own = [line for line in text.splitlines() if line.endswith("<- its own")]
    assert len(own) == 3 and all("moved" in line for line in own)
    for name in ("host", "XLA build", "program fits"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{'transposes':<21}{name}")]
        assert "left" in line, line
    for label, of_jax, of_torch_xla in (("sleep", "left", "moved"), ("transposes", "left", "left")):
        for side, said in zip(planted_bars.SIDES, (of_jax, of_torch_xla), strict=True):
            (line,) = [line for line in text.splitlines() if line.startswith(label) and f"  host of {side}" in line]
            assert said in line, "a step's own replay is taken off it, and only host time is left"
    (line,) = [line for line in text.splitlines() if line.startswith("no fusion") and "lowering" in line]
    assert "moved" in line, "an unequal cost is no pure effect of the build, and is not hidden"
