"""Traced steps through a world of the stand-in's ranks: every rank's totals, the raw traces, who waited for whom."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from xlacompare import frameworks, workloads
from xlacompare.core import cell as cells
from xlacompare.core import config, errors, timeline
from xlacompare.launch import campaign, crews, launchers, parallel_campaign, parallel_grid, preparation, profiles, world
from xlacompare.parallel import config as parallel_config
from xlacompare.parallel import request

WORKLOAD = workloads.load_workload("mlp", "tiny")
REAL = cells.Cell(
    *("standin", "eager", "mlp", "tiny", "float32", WORKLOAD.batch_size, WORKLOAD.optimizer.name),
    strategy="dp",
    communication="real",
    mesh=(2,),
    transport="gloo",
    mode="process",
)
SLOW_S = 0.05
SLOW = dataclasses.replace(REAL, label="planted", changed=(("slow_rank", f"1:{SLOW_S}"),))
ELIDED = dataclasses.replace(REAL, communication="elided")
STEPS = 5


def traced(monkeypatch, folder: pathlib.Path, members: list[cells.Cell]) -> list[dict]:
    """What a world says of these cells; it must be gone afterwards and alive until then."""
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    inputs = preparation.prepare(REAL, config.RunConfig(("standin",)), folder)
    spec = launchers.Spec("standin", "gloo", "process", 2, "cpu", (0, 1), 30.0)
    made = world.World(spec, crews.BuiltIn(folder), "traced")
    try:
        made.start()
        made.ask({"op": "load", "inputs": "these", "archive": str(inputs.archive), "reference": str(inputs.reference)})
        found = []
        for cell in members:
            asked = request.Request("dp", cell.communication, "eager", "float32", 2)
            values = {"point": cell.to_dict(), "inputs": "these", "request": asked.to_dict()}
            made.ask({"op": "build_step", "cell": cell.id, **values})
            found.append(profiles.of_cell(made, cell.id, folder / "traces", STEPS))
            made.ask({"op": "close", "cell": cell.id})
        return found
    finally:
        made.kill()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        real, slow, elided = traced(patch, folder, [REAL, SLOW, ELIDED])
    return {"real": real, "slow": slow, "elided": elided, "folder": folder}


def steps(answer: dict) -> list[timeline.Totals]:
    return [timeline.Totals.from_dict(step) for step in answer["steps"]]


def test_every_step_of_every_rank(found):
    assert [(step.rank, step.step) for step in steps(found["real"])] == [(r, i) for r in (0, 1) for i in range(STEPS)]
    assert all(step.operations["all-reduce"].count == 1 for step in steps(found["real"]))
    assert found["real"]["reason"] == "" and found["real"]["notes"] == ["the stand-in's clock"]


def test_the_raw_traces_are_kept(found):
    files = found["real"]["files"]
    assert files == ["rank0/trace.txt", "rank1/trace.txt"]
    assert all((pathlib.Path(found["real"]["folder"]) / name).read_text() == "kept" for name in files)


def test_a_slow_rank_is_the_last_to_arrive(found):
    """What the other waits for it is no price of the step's communication."""
    ranks = timeline.figures(steps(found["slow"]))
    assert timeline.last_to_arrive(ranks).rank == 1
    assert timeline.waiting_s(ranks)[0] > SLOW_S / 2


def test_an_elided_step_does_not_communicate(found):
    assert all(step.communication_s == 0 < step.compute_s for step in steps(found["elided"]))


def test_a_rank_that_sees_nothing(monkeypatch, tmp_path):
    """The world lives on, and no rank's figures are taken for all ranks'."""
    monkeypatch.setenv("STANDIN_PROFILE", "blind")
    blind, again = traced(monkeypatch, tmp_path, [REAL, ELIDED])
    assert blind["steps"] == [] and blind["reason"] == again["reason"] == "planted: rank 1's profiler sees nothing"


@pytest.mark.parametrize("profile", [True, False])
def test_a_run_with_traces(monkeypatch, tmp_path, profile):
    """--profile: only `real` is traced, after the timing; the record has the totals and where the traces are."""
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    run = parallel_config.ParallelConfig(
        ("standin",), communications=("real", "elided"), cell_s=0.01, min_block_s=0.002, launches=1, profile=profile
    )
    made = parallel_campaign.execute(run, parallel_grid.expand(run), tmp_path, "run", ["test"], campaign.Progress())
    records = {found["cell"]["communication"]: found for found in made.records if found["kind"] == "parallel"}
    assert {found["status"] for found in records.values()} == {"ok"} and records["elided"]["profile"] == {}
    found = records["real"]["profile"]
    kept = sorted(path.name for path in (tmp_path / "traces").rglob("rank*"))
    if not profile:
        assert found == {} and kept == []
        return
    assert len(found["steps"]) == 2 * profiles.STEPS and found["reason"] == "" and kept == ["rank0", "rank1"]
    assert all((pathlib.Path(found["folder"]) / name).exists() for name in found["files"])


def test_a_framework_without_a_profiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "other=tests.extra_product")
    with pytest.raises(errors.UnsupportedError, match=r"'other' traces no steps: its folder has no profiling.py"):
        frameworks.profiled("other", None, None, 1, tmp_path)
