"""`python -m xlacompare.report`: records that exist are shown again, whatever ended the run."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import collective_samples, report_samples, test_run
from xlacompare.core import errors, record


def written(folder: pathlib.Path, rows: list[dict], run: str = "a") -> pathlib.Path:
    writer = record.Writer(folder)
    for row in rows:
        writer.append({"run": run, **row})
    writer.close()
    return folder


def small(**options) -> list[dict]:
    return report_samples.run_records(frameworks=("jax", "torch"), workloads=("mlp",), **options)


def on(machine: str, rows: list[dict]) -> list[dict]:
    """The same rows as if another machine had made them."""
    for row in rows:
        if "environment" in row:
            row["environment"] = {
                **row["environment"],
                "checked": {**row["environment"]["checked"], "machine": machine},
            }
    return rows


def shown(run_python, *words: object):
    return run_python(["-m", "xlacompare.report", *map(str, words)], timeout=60)


def test_records_are_shown_again(run_python, tmp_path):
    folder = written(tmp_path, small(ending=None))
    with open(folder / record.FILE_NAME, "ab") as file:
        file.write(b'{"schema": 1, "ki')
    child = shown(run_python, folder)
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert "the run left no end record" in child.stdout and "Step time, arm compiled" in child.stdout
    assert "half a line or not JSON; skipped" in " ".join(child.stdout.split())
    found = json.loads(shown(run_python, "--format=json", folder).stdout)
    assert len(found["cells"]) == 4 and found["ending"] == ""


def test_records_of_collectives_are_shown_again(run_python, tmp_path):
    folder = written(tmp_path, collective_samples.run_records())
    child = shown(run_python, folder, "--format=nccl")
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert "busbw" in child.stdout


def test_several_folders_of_one_machine(run_python, tmp_path):
    one, two = (written(tmp_path / name, small(seed=seed)) for name, seed in (("one", 1), ("two", 2)))
    child = shown(run_python, one, two)
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert f"== {one}\n" in child.stdout and f"\n== {two}\n" in child.stdout


def test_what_is_refused_is_one_line(run_python, tmp_path):
    here, there = written(tmp_path / "here", small()), written(tmp_path / "there", on("other", small()))
    mixed = tmp_path / "mixed"
    for run in ("first", "second"):
        written(mixed, small(), run)
    (tmp_path / "empty").mkdir()
    written(tmp_path / "none", [])
    refused = {
        (here, there): "records cannot be compared: machine is 'box'",
        (mixed,): "holds the runs first and second; choose one with --run=second",
        (mixed, "--run=third"): "no run 'third'",
        (tmp_path / "empty",): "cannot read records",
        (tmp_path / "none",): "no records in it",
        (here, here, "--format=json"): "--format=json is of one folder",
        (): "usage: python -m xlacompare.report FOLDER",
    }
    for words, message in refused.items():
        child = shown(run_python, *words)
        assert child.returncode == errors.EXIT_BAD_INPUT, words
        assert message in child.stderr and len(child.stderr.strip().splitlines()) == 1, child.stderr
        assert not child.stdout
    assert shown(run_python, mixed, "--run=first").returncode == errors.EXIT_OK


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_shown(tmp_path, how):
    process = subprocess.Popen(
        [sys.executable, *test_run.command(tmp_path, "--launches=50", "--cell_s=0.3", "--format=json")],
        env={**test_run.os.environ, **test_run.environment()},
        cwd=test_run.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 90
    while time.monotonic() < end and not test_run._has_cells(tmp_path):
        time.sleep(0.1)
    process.send_signal(how)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == errors.EXIT_INTERRUPTED, stderr
    found = json.loads(stdout)
    assert found["ending"] == "interrupted" and all(cell["step"] for cell in found["cells"])
