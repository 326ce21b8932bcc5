"""`--replay`: which cells it adds, what happens where a program cannot be had, a whole run of jax and torch_xla."""

from __future__ import annotations

import json

import pytest

from tests import conftest
from tests import report_samples as made
from xlacompare.core import bars, config, errors, record
from xlacompare.launch import grid, planted, replaying

QUICK = ["--workload=mlp", "--batch_size=16", "--cell_s=0.05", "--min_block_s=0.002", "--num_cores=1"]


def test_every_program_in_every_runtime() -> None:
    run = config.RunConfig(("jax", "torch_xla", "torch"), workloads=("mlp", "convnet"), replay=True)
    found = [cell for cell in grid.expand(run).cells if cell.program]
    assert {cell.compiler for cell in found} == {"compiled"}
    pairs = {(cell.program, cell.framework) for cell in found if cell.workload == "mlp"}
    assert pairs == {(a, b) for a in ("jax", "torch_xla") for b in ("jax", "torch_xla")}
    assert len(found) == 8
    steps = grid.expand(run).cells
    for cell in found:
        source = replaying.source_of(cell, steps)
        assert (source.framework, source.workload, source.program) == (cell.program, cell.workload, "")
    assert not [cell for cell in grid.expand(config.RunConfig(("jax", "torch_xla"))).cells if cell.program]


@pytest.mark.parametrize("names", [("jax",), ("jax", "torch")])
def test_one_program_is_refused(names) -> None:
    with pytest.raises(errors.BadInputError, match="--framework=jax,torch_xla"):
        grid.expand(config.RunConfig(names, replay=True))
    with pytest.raises(errors.BadInputError, match="--replay"):
        grid.expand(config.RunConfig(("jax", "torch_xla"), compilers=("eager",), replay=True))


class Step:
    """Counts time on a clock of its own."""

    compile_times = None

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def run(self, index: int) -> None:
        self._clock[0] += 0.010


def test_a_planted_sleep_is_host_time_and_no_more() -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    inner = Step(clock)
    step = planted.SleepingStep(inner, 0.002, sleep)
    for index in range(5):
        step.run(index)
    assert clock[0] == pytest.approx(5 * 0.012)
    assert planted.unwrapped(planted.RepeatingStep(step, 3)) is inner
    assert isinstance(planted.planted(inner, {planted.SLEEP_S: 0.002}), planted.SleepingStep)
    assert planted.planted(inner, {}) is inner


def test_planted_flags_have_a_worker_of_their_own() -> None:
    run = config.RunConfig(("torch_xla",))
    cell = made.make_cell("torch_xla", label="flags", changed=((planted.XLA_FLAGS, "--xla_a=1"),))
    assert grid.worker_environment(cell, run, None)["XLA_FLAGS"] == "--xla_a=1"
    assert "XLA_FLAGS" not in grid.worker_environment(made.make_cell("torch_xla"), run, None)
    assert grid.worker_environment(bars.replay_of(cell, "jax"), run, None)["XLA_FLAGS"] == "--xla_a=1"


def test_without_a_program_the_steps_are_measured_and_the_bars_say_why(tmp_path) -> None:
    words = [
        "-m",
        "xlacompare.run",
        "--framework=standin,twin",
        *QUICK,
        "--replay",
        "--launches=3",
        "--compiler=compiled",
    ]
    environment = {"XLACOMPARE_FRAMEWORKS": "standin=tests.standin,twin=tests.standin"}
    child = conftest.run_child([*words, f"--output_dir={tmp_path}"], env=environment, timeout=240)
    assert child.returncode == errors.EXIT_OK, child.stderr
    kinds: dict[str, list] = {}
    for item in record.read(tmp_path).records:
        kinds.setdefault(item["kind"], []).append(item)
    assert {item["status"] for item in kinds["cell"]} == {"ok"} and len(kinds["cell"]) == 6
    assert {item["status"] for item in kinds["replay"]} == {"unsupported"} and len(kinds["replay"]) == 4
    assert "no bars by program and runtime" in " ".join(child.stdout.split())


@pytest.mark.framework("torch_xla")
def test_jax_and_torch_xla_in_one_run(tmp_path) -> None:
    words = [
        "-m",
        "xlacompare.run",
        "--framework=jax,torch_xla",
        "--compiler=compiled",
        *QUICK,
        "--replay",
        "--launches=2",
    ]
    child = conftest.run_child([*words, f"--output_dir={tmp_path}", "--format=json"], env={}, timeout=300)
    assert child.returncode == errors.EXIT_OK, child.stderr
    records = record.read(tmp_path).records
    replays = [item for item in records if item["kind"] == "replay"]
    assert {item["status"] for item in replays} == {"ok"} and len(replays) == 8
    clients = {item["cell"]["framework"]: item["replay"]["client"].split()[0] for item in replays}
    assert clients == {"jax": "jaxlib", "torch_xla": "torch_xla"}
    (gap,) = [gap for gap in json.loads(child.stdout)["gaps"] if gap["how"] == "replays"]
    assert sum(bar["seconds"]["mean"] for bar in gap["bars"]) == pytest.approx(gap["total"]["mean"])
    assert len(gap["bars"]) == 3 and len(gap["beside"]) == 2
    (operations,) = [item for item in records if item["kind"] == "operations"]
    assert not (tmp_path / replaying.FOLDER).exists(), "programs with their values are not kept"
    assert operations["measured"] and operations["entries"] and "problem" not in operations
