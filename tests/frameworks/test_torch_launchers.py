"""The same command under torchrun, mpirun and srun joins as a rank and leaves the records of the built-in launcher."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
from typing import Any

import pytest

from tests import conftest, slurm

RUN = (
    *("-m", "xlacompare.run", "--framework=torch", "--collective=all_reduce,ppermute", "--sizes=1KiB,3000B"),
    *("--num_devices=2", "--launches=1", "--cell_s=0.05", "--deadline_s=60"),
)
MPIEXEC = pathlib.Path(sys.executable).parent / "mpiexec"
# Set by launchers around this test run, if any; a test must not join those.
OUTER = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"))


def launched(command: list[str], folder: pathlib.Path, env: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Records of a run that `command`, a launcher's words before python's arguments, starts."""
    full = [*command, *RUN, f"--output_dir={folder}"]
    program = f"import os; os.execvp({full[0]!r}, {full!r})"
    done = conftest.run_child(program, env={**OUTER, **(env or {})}, timeout=150, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def outline(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What must be equal whoever launched: all but times, processes and names of files."""
    cells = [record for record in records if record["kind"] == "collective"]
    return {
        "kinds": [record["kind"] for record in records],
        "keys": sorted({key for record in cells for key in record}),
        "cells": {
            json.dumps(record["cell"], sort_keys=True): {
                "status": record["status"],
                "values": record["values"],
                "operations": record["lowering"]["ops"],
                "ranks": [entry["rank"] for entry in record["ranks"]],
                "modes": sorted(set(record["blocks"]["mode"])),
            }
            for record in cells
        },
    }


def launcher_of(records: list[dict[str, Any]]) -> set[str]:
    return {record["launcher"] for record in records if record["kind"] == "collective"}


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    records = launched([sys.executable], tmp_path_factory.mktemp("built_in") / "run", {"X": "1"})
    assert launcher_of(records) == {"built-in"}
    made = outline(records)["cells"]
    assert len(made) == 4
    assert all(cell["status"] == "ok" and cell["values"]["wrong"] == 0 for cell in made.values())
    assert all(cell["ranks"] == [0, 1] for cell in made.values())
    return records


def test_torchrun(built_in, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    records = launched(command, tmp_path / "run")
    assert launcher_of(records) == {"torchrun"}
    assert outline(records) == outline(built_in)


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs the extra `mpi`: mpiexec beside the interpreter")
def test_mpirun(built_in, tmp_path):
    records = launched([str(MPIEXEC), "-n", "2", sys.executable], tmp_path / "run")
    assert launcher_of(records) == {"mpirun"}
    assert outline(records) == outline(built_in)


@pytest.mark.skipif(slurm.why_not() is not None, reason=f"needs Slurm: {slurm.why_not()}")
def test_srun(built_in, tmp_path):
    (tmp_path / "slurm").mkdir()
    with slurm.running(tmp_path / "slurm") as cluster:
        command = [shutil.which("srun") or "srun", "--ntasks=2", "--cpus-per-task=1", "--overcommit", sys.executable]
        records = launched(command, tmp_path / "run", {**cluster.environment, "PYTHONPATH": str(conftest.ROOT)})
    assert launcher_of(records) == {"srun"}
    assert outline(records) == outline(built_in)


def test_mpiexec_is_there_where_mpi_is_installed():
    """A skip must not hide: with mpi4py there is mpiexec."""
    assert MPIEXEC.exists() or "mpi" not in os.environ.get("XLACOMPARE_REQUIRED_EXTRAS", "")
