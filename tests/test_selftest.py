"""The self-test: what is planted is found, what is not planted is not, what moves beside it is named."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from experiments.effect_truth import Truth, more
from tests import parallel_samples as made
from tests import worlds
from xlacompare import selftest as command
from xlacompare.core import errors, parallel_samples, record
from xlacompare.core import planted_causes as causes
from xlacompare.launch import campaign, parallel_grid, planted, planted_ranks, selftest

WHERE, OTHER = ("jax", "compiled"), ("jax", "nofusion")
BASE = Truth(compute=8e-3, waiting=0.2e-3, latency=0.5e-3, bytes=1e-3, wire_latency=0.6e-3, wire_bytes=2e-3)
SIZE, ALONE_S = selftest.SECONDS, 3e-3
TEXTS = {cause.name: f"planted:{cause.text}" for cause in selftest.CAUSES}
APART = f"planted:{selftest.EXTRA},{planted.ONLY}=1"
LIMITS = causes.Limits(0.15, 0.05)
TWINS = {
    selftest.EXTRA_WORK: more(BASE, compute=BASE.compute),
    selftest.DISPATCH: more(BASE, compute=SIZE),
    selftest.RANK: more(BASE, waiting=SIZE),
    selftest.COLLECTIVE: more(BASE, bytes=ALONE_S, wire_bytes=ALONE_S),
    selftest.LINK: more(BASE, bytes=4 * BASE.wire_bytes, wire_bytes=4 * BASE.wire_bytes),
}


def records(
    twins=TWINS, other=None, noise=0.002, recompiled=True, gate="gate failed at update a.kernel: 1 > 0", **more_
):
    """Of a run in which these twins were planted."""
    labels = {TEXTS[name]: truth for name, truth in twins.items()}
    labels[APART] = dataclasses.replace(BASE, wire_latency=0.0, wire_bytes=ALONE_S)
    truths = {WHERE: BASE, OTHER: more(BASE, compute=3e-3) if other is None else other}
    found = made.run_records(truths, launches=1, noise=noise, launch_sd=0.0, labels={WHERE: labels}, **more_)
    for entry in found:
        if entry["kind"] == "parallel":
            entry["compile"] = {"compiles": 1}
    times = np.full((made.RANKS, 2 * made.VISITS), 9e-3)
    compiled = made.make_record(made.make_cell(label=TEXTS[selftest.RECOMPILE]), 0, times)
    compiled["blocks"]["compiles"] = [int(recompiled)] * 2 * made.VISITS
    wrong = made.make_cell(label=TEXTS[selftest.EPSILON])
    status = {"status": "mismatch", "reason": f"rank 0: {gate}"} if gate else {}
    return [*found, compiled, made.make_record(wrong, 0, None if gate else times, **status)]


def rows(found, left_out=None) -> dict[str, causes.Row]:
    table = causes.rows(found, selftest.CAUSES, left_out or {}, "compiled", "nofusion", LIMITS)
    assert [row.planted for row in table] == [cause.name for cause in selftest.CAUSES]
    return {row.planted: row for row in table}


def test_what_is_planted_is_found_and_nothing_else():
    found = rows(records())
    assert {(row.found, row.left) for row in found.values()} == {("found", "yes")}, found
    assert command.exit_code(list(found.values())) == errors.EXIT_OK
    assert found[selftest.RANK].size == "4.00 ms" and found[selftest.COLLECTIVE].size == "3.00 ms"
    assert found[selftest.LINK].size == "5x" and found[selftest.LINK].reported.startswith(("4.9", "5.0"))
    assert found[selftest.EPSILON].reported == "gate failed at update a.kernel"


@pytest.mark.parametrize("name", list(TWINS))
def test_a_cause_that_is_not_planted_is_not_found(name):
    found = rows(records({**TWINS, name: BASE}))
    assert found[name].found == "not found" and command.exit_code(list(found.values())) == errors.EXIT_SELFTEST
    rest = {(row.found, row.left) for other, row in found.items() if other != name}
    assert rest == {("found", "yes")}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (selftest.DISPATCH, {"compute": 2 * SIZE}),
        (selftest.RANK, {"waiting": SIZE / 2}),
        (selftest.COLLECTIVE, {"bytes": ALONE_S}),
        (selftest.COLLECTIVE, {"bytes": 2 * ALONE_S, "wire_bytes": ALONE_S}),
        (selftest.LINK, {"wire_bytes": 2 * BASE.wire_bytes}),
    ],
)
def test_another_size_is_not_the_planted_one(name, change):
    assert rows(records({**TWINS, name: more(BASE, **change)}))[name].found == "not found"


@pytest.mark.parametrize(
    ("name", "change", "moved"),
    [
        (selftest.EXTRA_WORK, {"waiting": 2e-3}, "imbalance"),
        (selftest.DISPATCH, {"latency": 2e-3}, "exposed_latency"),
        (selftest.RANK, {"compute": 2e-3}, "compute"),
        (selftest.COLLECTIVE, {"compute": 2e-3}, "compute"),
        (selftest.LINK, {"compute": 2e-3}, "compute"),
    ],
)
def test_what_moves_beside_it_is_named(name, change, moved):
    row = rows(records({**TWINS, name: more(TWINS[name], **change)}))[name]
    assert row.left == "moved" and f"moved: {moved} by 2." in row.note.replace("1.9", "2.") and row.failed


def test_fusion_that_does_nothing_is_not_found():
    assert rows(records(other=BASE))[selftest.FUSION].found == "not found"
    row = rows(records(other=more(BASE, compute=3e-3, wire_latency=2e-3, latency=2e-3)))[selftest.FUSION]
    assert (row.found, row.left) == ("found", "moved") and "wire" in row.note


def test_compilations_and_the_gate():
    found = rows(records(recompiled=False, gate=""))
    assert found[selftest.RECOMPILE].found == found[selftest.EPSILON].found == "not found"
    assert rows(records(gate="gate failed at gradient a.kernel: 1 > 0"))[selftest.EPSILON].found == "not found"
    kept = records()
    for entry in kept:
        if entry["kind"] == "parallel":
            entry["compile"] = {"compiles": 0}
    assert rows(kept)[selftest.RECOMPILE].found == "left out", "this framework compiles nothing"
    kept = records()
    first = next(entry for entry in kept if entry["kind"] == "parallel")
    first["blocks"]["compiles"][0] = 1
    assert rows(kept)[selftest.RECOMPILE].left == "moved", "a compilation elsewhere"


def test_noise_decides_nothing():
    found = rows(records(noise=0.6))
    words = {(row.found, row.left) for name, row in found.items() if name in TWINS}
    assert ("found", "yes") not in words and "not found" not in {word for pair in words for word in pair}, words
    assert found[selftest.RANK].found == "undecided" and "reaches 0" in found[selftest.RANK].note
    assert "undecided: " in command.verdict(list(found.values()))


def test_a_busy_machine_condemns_nothing():
    kept = records({**TWINS, selftest.RANK: BASE})
    for entry in kept:
        if entry["kind"] == "parallel" and entry["blocks"]:
            entry["blocks"]["disturbed"] = [True] * len(entry["blocks"]["n"])
    row = rows(kept)[selftest.RANK]
    assert row.found == "undecided" and row.note.startswith("others had the cores in most visits; ")


def test_a_cell_that_fails_is_no_statement():
    kept = records(failed={(*WHERE, "elided"): ("crash", "rank 1 was ended by SIGKILL")})
    found = rows(kept)
    assert {found[name].found for name in TWINS} == {"not measured"}
    assert "SIGKILL" in found[selftest.RANK].note
    assert command.exit_code(list(found.values())) == errors.EXIT_FAILED_CELL
    assert rows(kept, {selftest.LINK: "no root"})[selftest.LINK].note == "no root"
    assert {row.found for row in rows([]).values()} == {"left out"}


PAUSE = 0.03  # far above a step of the stand-in, and above what a busy machine adds


def chosen() -> tuple[causes.Cause, ...]:
    """The causes with sizes that show on a busy machine."""
    texts = {selftest.DISPATCH: f"host_s={PAUSE}", selftest.RANK: f"slow_rank=1:{PAUSE}"}
    return tuple(
        dataclasses.replace(cause, text=texts[cause.name], seconds=PAUSE) if cause.name in texts else cause
        for cause in selftest.CAUSES
    )


def plan(wanted: tuple[causes.Cause, ...] | None = None, **changes) -> selftest.Plan:
    values = {"workloads": ("mlp",), "batch_size": 8, "cell_s": 0.05, "min_block_s": 0.005, "deadline_s": 60.0}
    return selftest.make("standin", False, "not here", wanted or chosen(), **values, **changes)


class Interrupting(campaign.Progress):
    def phase(self, text: str, done: float, total: float) -> None:
        if "visit 3" in text:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run of the stand-in; what its twin of a slower rank plants is nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
        patch.setenv("STANDIN_COMPILES", "1")
        patch.setenv(worlds.MARK_VARIABLE, "selftest")
        wanted = plan()
        cells = [
            dataclasses.replace(cell, changed=(("slow_rank", "1:0.0"),)) if "slow_rank" in cell.label else cell
            for cell in wanted.grid.cells
        ]
        wanted = dataclasses.replace(wanted, grid=parallel_grid.Grid(tuple(cells), ()))
        folder = tmp_path_factory.mktemp("selftest")
        kept = selftest.execute(wanted, folder, "run", ["test"], campaign.Progress())
        assert not worlds.marked("selftest"), "a process is left"
        return wanted, kept


def test_a_run_finds_what_it_planted(real):
    wanted, kept = real
    found = {row.planted: row for row in wanted.rows(kept)}
    assert "not measured" not in {row.found for row in found.values()}, found
    for name in (selftest.DISPATCH, selftest.RECOMPILE, selftest.EPSILON):
        assert found[name].found == "found", found[name]
    assert found[selftest.RANK].found != "found", "planted nothing"
    assert found[selftest.LINK].note == "not here" and "has no arm nofusion" in found[selftest.FUSION].note
    assert found[selftest.EPSILON].left == "yes" and found[selftest.EPSILON].reported.startswith(
        "gate failed at update"
    )
    text = command.to_text(list(found.values()), wanted, 160)
    assert "found?" in text and "slower link: not here" in text and "planted causes found" in text


def test_twins_share_the_processes_of_the_matched_cells(real):
    _, kept = real
    pids = {tuple(rank["pid"] for rank in entry["ranks"]) for entry in kept if entry.get("ranks")}
    assert len(pids) == 1


def test_extra_work_and_extra_bytes_are_there(real):
    """Least times, which other work only adds to."""
    _, kept = real
    arms = parallel_samples.collect(kept)[0].arms
    least = {key: min(arm.launches[0].step_s.values()) for key, arm in arms.items() if arm.timed}
    extra = f"eager {TEXTS[selftest.COLLECTIVE]}"
    assert least["eager planted:extra_step=1", "elided"] > 1.5 * least["eager", "elided"]
    assert least[extra, "alone"] > 0.8 * (least["eager", "alone"] + least[f"eager {APART}", "alone"])
    assert least[extra, "elided"] < 1.5 * least["eager", "elided"], "nothing is sent where no rank talks"


def test_an_interrupt_keeps_what_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    monkeypatch.setenv(worlds.MARK_VARIABLE, "selftest_interrupt")
    few = tuple(cause for cause in chosen() if cause.name in (selftest.DISPATCH, selftest.EPSILON))
    wanted = plan(few)
    with pytest.raises(KeyboardInterrupt):
        selftest.execute(wanted, tmp_path, "run", ["test"], Interrupting())
    assert not worlds.marked("selftest_interrupt"), "a process is left"
    found = {row.planted: row for row in wanted.rows(record.read(tmp_path).records)}
    assert found[selftest.DISPATCH].reported and found[selftest.EPSILON].found == "found"


def test_bad_input_is_one_line(monkeypatch):
    argv = [sys.executable, "-m", "xlacompare.selftest", "--framework=mxnet"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == errors.EXIT_BAD_INPUT and "unknown framework" in ran.stderr, ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and not ran.stdout
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    with pytest.raises(errors.BadInputError, match="every arm of dp: standin runs dp over mpi in no mode"):
        plan(transports=("mpi",))


def test_the_plan_of_a_machine(monkeypatch):
    """What cannot be planted is said before anything is run; thorough is longer and narrower."""
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    quick, long = plan(), selftest.make("standin", True, None, workloads=("mlp",))
    assert set(quick.left_out) == {selftest.LINK, selftest.FUSION} and set(long.left_out) == {selftest.FUSION}
    assert long.run.cell_s > quick.run.cell_s and long.run.launches > 1 and long.limits.margin < quick.limits.margin
    assert [cause.name for cause in quick.chosen] == [cause.name for cause in selftest.CAUSES]
    labels = {cell.label for cell in long.grid.cells}
    assert labels == {"matched", APART, *(TEXTS[c.name] for c in selftest.CAUSES if c.text)}


class Recorded:
    """A step that writes down what is done to it."""

    def __init__(self, done: list[str], name: str) -> None:
        self.compile_times, self._done, self._name = None, done, name

    def __getattr__(self, name: str):
        return lambda *_: self._done.append(f"{self._name}.{name}")


def test_what_stands_beside_a_step():
    done: list[str] = []
    step, other = Recorded(done, "a"), Recorded(done, "b")
    planted_ranks.StepBeside(step, other).run(0)
    assert done == ["a.run", "a.synchronize", "b.run", "b.synchronize"], "one after the other"
    done.clear()
    planted_ranks.WaitingStep(step, 1.0, lambda _: done.append("sleep")).run(0)
    assert done == ["a.synchronize", "sleep", "a.run"]
    done.clear()
    for only in (False, True):
        planted_ranks.CollectiveBeside(step, other, only).run(0)
    assert done == ["a.run", "b.run", "b.run"]
    done.clear()
    compiling = planted_ranks.RecompilingStep(step, lambda: done.append("compile"))
    compiling.run(0)
    compiling.reset()
    for _ in range(3):
        compiling.run(0)
    assert done == ["a.run", "a.reset", "a.run", "a.run", "compile", "a.run"], "not in the warm-up, once a visit"
    done.clear()
    for wrapper in (planted_ranks.StepBeside(step, other), planted_ranks.CollectiveBeside(step, other)):
        wrapper.close()
    assert sorted(done) == ["a.close", "a.close", "b.close", "b.close"], "nothing stays"
