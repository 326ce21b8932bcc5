"""The same records under another launcher; which launcher it is, and where rank 0 is, from the environment."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests import conftest, worlds
from xlacompare.core import errors, record
from xlacompare.launch import blame, joining, launchers, membership, process

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1"}
TORCHRUN |= {"MASTER_PORT": "29500"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{key}": value for key, value in
            {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items()}  # fmt: skip
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
SRUN |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
SRUN |= {"SLURM_NODEID": "1"}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.3"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, ("torchrun", 1, 4, 1, 2, "n1")),
        (HYDRA, ("mpirun", 1, 2, 1, 2, "127.0.0.1")),
        ({**OPEN_MPI, "XLACOMPARE_COORDINATOR": "n1"}, ("mpirun", 3, 4, 1, 2, "n1")),
        (SRUN, ("srun", 3, 4, 1, 2, "gpu03")),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, ("srun", 3, 4, 1, 2, "127.0.0.1")),
        ({**SRUN, **TORCHRUN}, ("torchrun", 1, 4, 1, 2, "n1")),
        ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}, ("srun", 3, 4, 1, 2, "gpu03")),  # Slurm speaks PMI as well
        (TPU, ("tpu-pod", 1, 2, 0, 1, "10.0.0.2")),
    ],
)
def test_detection(variables, expected):
    found = membership.detect(variables)
    assert (found.launcher, found.rank, found.size, found.local_rank, found.local_size, found.address) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**HYDRA, "PMI_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # a batch script, outside of srun
        {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"},
    ],
)
def test_a_process_that_stands_alone(variables):
    assert membership.detect(variables) is None


def test_mpirun_over_several_machines_needs_a_host():
    with pytest.raises(errors.BadInputError, match="XLACOMPARE_COORDINATOR=HOST"):
        membership.detect(OPEN_MPI)


def test_ranks_of_a_job_agree_on_ports_and_token(monkeypatch):
    one, two = (membership.detect({**TORCHRUN, "RANK": rank}) for rank in "12")
    other = membership.detect({**TORCHRUN, "MASTER_PORT": "29501"})
    assert one.token == two.token != other.token
    assert one.ports == two.ports != other.ports
    assert len(set(one.ports)) == membership.PORTS
    before = one.token
    monkeypatch.setenv("XLACOMPARE_SECRET", "x")
    assert one.token != before


def test_slurms_lists():
    assert [membership.first_host(text) for text in ("a", "a,b", "n[07-09,11],x", "n[3]", "")] == [
        "a", "a", "n07", "n3", "",
    ]  # fmt: skip
    assert [membership.tasks_of_node("2(x2),1", node) for node in range(4)] == [2, 2, 1, 1]


def test_a_rank_does_not_inherit_the_launcher(monkeypatch):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    for name, value in {**HYDRA, **TORCHRUN, **SRUN, "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    spec = launchers.Spec("standin", "gloo", "process", 2, "cpu", (0, 1), 9.0)
    place = spec.place(0, 0, 2, "127.0.0.1", 1)
    alone = process.merged(launchers.environment(spec, place))
    assert not {*HYDRA, *TORCHRUN, *SRUN, "TORCHELASTIC_RUN_ID"} & set(alone)
    assert set(HYDRA) <= set(process.merged(launchers.environment(spec, place, inside_launcher=True)))


@pytest.fixture
def mark(monkeypatch) -> Iterator[str]:
    """A mark on all that a test starts; at its end nothing with it is left."""
    made = uuid.uuid4().hex
    monkeypatch.setenv(worlds.MARK_VARIABLE, made)
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    monkeypatch.setenv("PYTHONPATH", str(conftest.ROOT))
    yield made
    end = time.monotonic() + 10
    while worlds.marked(made) and time.monotonic() < end:
        time.sleep(0.05)
    left = worlds.marked(made)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def torchrun_like(folder: pathlib.Path, transports: str) -> list[subprocess.Popen]:
    """Two processes with torchrun's variables; the agent first, which must wait for rank 0."""
    command = [sys.executable, "-m", "tests.standin.joined", str(folder), transports]
    port = str(20000 + os.getpid() % 10000)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=conftest.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (1, 0)
    ]


def shape(folder: pathlib.Path) -> list:
    """Records as far as they do not depend on the launcher or on time: kinds, keys, cells, statuses, ranks."""
    found = []
    for made in record.read(folder).records:
        if made["kind"] != "collective":
            found.append((made["kind"], sorted(made)))
            continue
        parts = {key: sorted(value) for key, value in made.items() if isinstance(value, dict)}
        ranks = [(rank["rank"], rank["affinity"]) for rank in made["ranks"]]
        found.append((sorted(made), parts, made["cell"], made["status"], made["reason"], made["values"], ranks))
    return found


def launchers_of(folder: pathlib.Path) -> set[str]:
    return {made["launcher"] for made in record.read(folder).records if made["kind"] == "collective"}


def test_torchrun_gives_the_records_of_the_built_in_launcher(mark, tmp_path):
    processes = torchrun_like(tmp_path / "joined", "gloo,inprocess")
    output = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], output
    alone = conftest.run_child(["-m", "tests.standin.joined", str(tmp_path / "alone"), "gloo,inprocess"])
    assert alone.returncode == 0, alone.stderr
    assert shape(tmp_path / "joined") == shape(tmp_path / "alone")
    assert (launchers_of(tmp_path / "joined"), launchers_of(tmp_path / "alone")) == ({"torchrun"}, {"built-in"})


def test_a_fault_under_torchrun(monkeypatch, mark, tmp_path):
    monkeypatch.setenv("STANDIN_RANK_FAULT", "1:die:all_gather:5")
    processes = torchrun_like(tmp_path, "gloo")
    output = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 3], output
    cells = [made for made in record.read(tmp_path).records if made["kind"] == "collective"]
    assert [made["status"] for made in cells] == ["crash", "ok"]
    assert "rank 1 was ended by SIGKILL" in cells[0]["reason"]


def test_an_agent_whose_coordinator_is_gone_ends_its_rank(monkeypatch, mark, tmp_path):
    monkeypatch.setenv("STANDIN_RANK_FAULT", "1:stop:all_gather:5")
    agent, coordinator = torchrun_like(tmp_path, "gloo")
    end = time.monotonic() + 60
    while not any(blame.is_stopped(pid) for pid in worlds.marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    coordinator.kill()
    coordinator.communicate()
    agent.communicate(timeout=30)
    assert agent.returncode == errors.EXIT_FAILED_CELL


def test_the_mesh_must_fit_the_launcher(monkeypatch):
    me = membership.Membership("torchrun", 0, 3, 0, 3, "127.0.0.1", "k")
    lead = joining.Lead.__new__(joining.Lead)
    lead._me, lead.name, lead._mpi_taken, lead.agents = me, "torchrun", False, {}
    with pytest.raises(errors.BadInputError, match="started 3 ranks, the mesh has 2"):
        lead.crew(launchers.Spec("standin", "gloo", "process", 2, "cpu", (0,), 1.0), "x")


@pytest.mark.skipif(
    shutil.which("mpiexec", path=str(pathlib.Path(sys.executable).parent)) is None, reason="needs mpiexec (extra mpi)"
)
def test_mpirun_with_mpi_itself(mark, tmp_path):
    mpiexec = shutil.which("mpiexec", path=str(pathlib.Path(sys.executable).parent))
    command = [mpiexec, "-n", "2", sys.executable, "-m", "tests.standin.joined", str(tmp_path), "gloo,mpi"]
    done = subprocess.run(command, cwd=conftest.ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {made[3] for made in shape(tmp_path) if len(made) > 3} == {"ok"}
    assert launchers_of(tmp_path) == {"mpirun"}
