"""`python -m xlacompare.run`: what is refused in one line, help, disks and folders that fail, starts that die."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tests import test_run
from xlacompare import command
from xlacompare.collectives import config as collective_config
from xlacompare.core import config, errors, record
from xlacompare.launch import grid, hints, preparation
from xlacompare.workloads import archive

REFUSED = [
    ({"deadline_s": float("inf")}, "--deadline_s=inf"),
    ({"deadline_s": 1e12}, "the most is 1e+06 seconds"),
    ({"launches": 0, "budget_s": float("inf")}, "--budget_s=inf"),
    ({"seed": -1}, "--seed=-1"),
    ({"margin": float("inf")}, "--margin=inf"),
    ({"margin": -0.1}, "--margin=-0.1"),
    ({"min_block_s": float("inf")}, "--min_block_s=inf"),
    ({"cell_s": float("nan")}, "--cell_s=nan"),
    ({"launches": 3, "budget_s": 60.0}, "--budget_s=60 is of planned looks; it needs --launches=0"),
    ({"launches": 3, "target_ci": 0.02}, "--target_ci=0.02 is of planned looks; it needs --launches=0"),
]


@pytest.mark.parametrize("made", [config.RunConfig, collective_config.CollectiveConfig])
@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_values_that_cannot_work_are_refused(made, values, message):
    with pytest.raises(errors.BadInputError) as refused:
        made(("standin",), **values)
    assert message in str(refused.value)


def test_no_margin_and_planned_looks_are_accepted():
    chosen = config.RunConfig(("standin",), launches=0, budget_s=60.0, target_ci=0.02, margin=0.0)
    assert chosen.margin == 0


@pytest.mark.parametrize("module", ["run", "doctor", "report"])
def test_help_is_an_answer(run_python, module):
    child = run_python(["-m", f"xlacompare.{module}", "--help"], env=test_run.environment())
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert f"python -m xlacompare.{module}" in child.stdout and "--format" in child.stdout
    assert "wires" not in child.stdout and "verbosity" not in child.stdout
    assert not child.stderr
    assert ("--collective" in child.stdout) == (module == "run")


@pytest.mark.parametrize("name", ["inputs", "logs"])
def test_a_file_where_a_folder_is_needed(run_python, tmp_path, name):
    (tmp_path / name).write_text("")
    child = run_python(test_run.command(tmp_path), env=test_run.environment())
    assert child.returncode == errors.EXIT_BAD_INPUT
    assert "Traceback" not in child.stderr and "a file stands where a folder is needed" in child.stderr


def test_a_full_standard_output(run_python):
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    code = "from xlacompare import command; command.launch(lambda: print(1) or 0)"
    call = f"subprocess.call([{sys.executable!r}, '-c', {code!r}], stdout=open('/dev/full', 'w'))"
    child = run_python(f"import subprocess, sys; sys.exit({call})")
    assert child.returncode == errors.EXIT_BAD_INPUT, child.stderr
    assert "Traceback" not in child.stderr and "is full" in child.stderr
    assert len(child.stderr.strip().splitlines()) == 1, child.stderr


def test_a_full_disk_under_the_inputs():
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    import numpy as np

    with pytest.raises(errors.RecordError, match="usually the disk is full"):
        archive.write_arrays("/dev/full", {"a": np.zeros(1 << 16)})


def test_one_run_at_a_time_writes_into_a_folder(tmp_path):
    first = record.Writer(tmp_path)
    with pytest.raises(errors.BadInputError, match="another run is writing"):
        record.Writer(tmp_path)
    first.close()
    record.Writer(tmp_path).close()


def test_a_budget_that_one_launch_spends_keeps_it(run_python, tmp_path):
    flags = ["--launches=0", "--budget_s=0.001", "--cell_s=0.05"]
    child = run_python(test_run.command(tmp_path, *flags), env=test_run.environment(), timeout=120)
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert {arm: len(rows) for arm, rows in test_run.cells(tmp_path).items()} == {"eager": 3, "compiled": 3}
    assert "is spent by the first launch" in child.stderr


def test_a_worker_that_lingers_is_not_called_killed(run_python, tmp_path):
    fault = test_run.environment(STANDIN_FAULT="compiled:linger")
    child = run_python(test_run.command(tmp_path, "--launches=1", "--cell_s=0.05"), env=fault, timeout=120)
    assert child.returncode == errors.EXIT_FAILED_CELL
    (row,) = test_run.cells(tmp_path)["compiled"]
    assert "SIGKILL" not in row["reason"] and "had not ended" in row["reason"]
    assert "apt-get install g++" in row["reason"] and "InvalidCxxCompiler" in row["reason"]


def test_hints():
    assert hints.hint("OSError: [Errno 28] No space left on device") == (
        " (the disk is full: free some, or choose another --output_dir)"
    )
    assert hints.hint("RuntimeError: anything") == ""


def test_a_start_that_dies_is_tried_once_more(run_python, tmp_path):
    mark = tmp_path / "mark"
    mark.write_text("")
    env = test_run.environment(STANDIN_DIES_AT_START=str(mark))
    child = run_python(test_run.command(tmp_path / "run", "--launches=1", "--cell_s=0.05"), env=env, timeout=120)
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert not mark.exists()
    assert {row["status"] for rows in test_run.cells(tmp_path / "run").values() for row in rows} == {"ok"}


def test_os_problems_have_a_usual_cause():
    assert "free some" in command.os_problem(OSError(28, "No space left on device", "x"))
    assert command.os_problem(OSError("odd")).startswith("odd; usually")


@pytest.mark.parametrize(("compiler", "platform"), [("captured", "cpu"), ("compiled", "tpu")])
def test_a_cell_that_cannot_start_has_a_record_all_the_same(compiler, platform):
    """An arm or a platform that a framework lacks has no variables of its own to be recorded."""
    run = config.RunConfig(("jax", "torch"), (compiler,), platform=platform)  # one has it, the other lacks it
    cells = grid.expand(run)
    ((cell, reason),) = cells.unsupported
    assert reason and "variables" in preparation.environment_of(cell, run, {}, None)
