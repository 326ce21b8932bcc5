from __future__ import annotations

import importlib.util
import json
import types

import pytest

from xlacompare import doctor, frameworks
from xlacompare.core import errors
from xlacompare.frameworks import interface
from xlacompare.launch import diagnosis, transport_diagnosis

NAME = "standin"
STAND_IN = """
import os, sys, time
class Evaluation:
    loss = {loss}
class Adapter:
    def __init__(self):
        print("noise of a runtime")
        {start}
    def describe(self):
        return {{"platform": os.environ["STANDIN_PLATFORM"], "device_kind": "paper", "device_count": 3}}
    def evaluate(self, workload, parameters, buffers, batch, dtype):
        assert batch["inputs"].shape[0] == 8 and parameters
        return Evaluation
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes a framework of our own; returns a function that writes its adapter and examines it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(frameworks.EXTRA_VARIABLE, f"{NAME}={NAME}")
    arms = types.SimpleNamespace(
        ARMS={"eager": interface.ArmSpec("eager", "one by one", "an operation")},
        LACKS={"compiled": "it is paper"},
        environment=lambda platform, num_threads: {"STANDIN_PLATFORM": platform, "STANDIN_GONE": None},
    )
    monkeypatch.setattr(frameworks, "arms", lambda name: arms)
    package = tmp_path / NAME
    package.mkdir()
    (package / "__init__.py").write_text("")

    def examine(start="pass", loss="2.3", deadline_s=60.0):
        (package / "framework.py").write_text(STAND_IN.format(start=start, loss=loss))
        return diagnosis.examine_framework(NAME, "cpu", deadline_s)

    return examine


def test_a_framework_that_works(stand_in, monkeypatch):
    monkeypatch.setenv("STANDIN_GONE", "1")
    found = stand_in(start="assert 'STANDIN_GONE' not in os.environ")
    assert found.status == diagnosis.OK, found
    assert "3 x paper (cpu)" in found.detail
    assert found.fix == ""


def test_a_crash_at_the_exit_is_forgiven(stand_in, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # else nothing can be lost in a buffer
    assert stand_in(start="import atexit; atexit.register(os.abort)").status == diagnosis.OK


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"start": "raise RuntimeError('no such device')"}, "RuntimeError: no such device"),
        ({"start": "os._exit(7)"}, "exit code 7: no output"),
        ({"start": "os.abort()"}, "exit code -6"),
        ({"loss": "float('nan')"}, "the first loss is nan"),
        ({"start": "time.sleep(60)", "deadline_s": 1.0}, "no answer within 1 s"),
    ],
    ids=["raises", "exits", "aborts", "nan", "hangs"],
)
def test_a_framework_that_does_not_work(stand_in, options, reason):
    found = stand_in(**options)
    assert found.status == diagnosis.FAILED
    assert reason in found.detail
    assert "diagnosis.probe" in found.fix


def test_a_framework_that_is_not_installed(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "flax" else find(name, *a))
    found = diagnosis.examine_framework("jax", "cpu", 60)
    assert found.status == diagnosis.LACKING
    assert found.detail == "not installed: flax"
    assert found.fix == "pip install -e '.[jax]'"


def test_every_extra_of_the_registry_exists():
    setup = (diagnosis.pathlib.Path(__file__).parent.parent / "setup.cfg").read_text(encoding="utf-8")
    for entry in frameworks.FRAMEWORKS.values():
        assert f"\n{entry.extra} =\n" in setup


def test_arms_of_a_framework(stand_in):
    ok, lacking = diagnosis.examine_arms(NAME, works=True)
    assert (ok.name, ok.status, ok.detail) == (f"{NAME}/eager", diagnosis.OK, "one by one")
    assert (lacking.name, lacking.status, lacking.detail) == (f"{NAME}/compiled", diagnosis.LACKING, "it is paper")
    (none,) = diagnosis.examine_arms(NAME, works=False)
    assert none.status == diagnosis.LACKING


@pytest.mark.parametrize("name", list(frameworks.FRAMEWORKS))
def test_arms_of_the_registry_are_told(name):
    found = diagnosis.examine_arms(name, works=True)
    assert f"{name}/eager" in [finding.name for finding in found]
    assert all(finding.detail for finding in found)


def test_an_arm_that_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(diagnosis, "compiler_fix", lambda: "apt-get install g++")
    compiled = {f.name: f for f in diagnosis.examine_arms("torch", works=True)}["torch/compiled"]
    assert compiled.status == diagnosis.LACKING
    assert compiled.fix == "apt-get install g++"


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(diagnosis.shutil, "which", lambda *_, **__: None)
    assert diagnosis.compiler_fix() == "apt-get install g++"
    assert not diagnosis.can_make_namespaces()
    transports = {f.name: f for f in diagnosis.examine_transports(has=lambda name: False)}
    assert transports["mpi"].detail == "no mpi4py and no mpiexec"
    assert transports["gloo"].status == diagnosis.LACKING
    assert all(f.fix for n, f in transports.items() if n in ("inprocess", "gloo", "mpi"))


def test_transports_that_are_there(monkeypatch):
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    found = {f.name: f for f in diagnosis.examine_transports(has=lambda name: name in ("torch", "mpi4py"))}
    assert found["mpi"].status == diagnosis.OK
    assert found["gloo"].detail == "part of torch"
    assert found["inprocess"].status == diagnosis.LACKING


def test_devices_are_counted(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "accel0", "null"):
        (tmp_path / name).touch()
    assert diagnosis.nvidia_gpus(tmp_path) == 2
    assert diagnosis.tpu_chips(tmp_path) == 1


def test_governor():
    assert diagnosis.governor_finding("performance").status == diagnosis.OK
    assert diagnosis.governor_finding(None).status == diagnosis.OK
    assert diagnosis.governor_finding("powersave").fix


FINDINGS = [
    diagnosis.Finding("framework", "jax", diagnosis.OK, "jax 1 [cpu]"),
    diagnosis.Finding("framework", "torch", diagnosis.FAILED, "does not work: it fell", "push it up"),
    diagnosis.Finding("arm", "jax/eager", diagnosis.OK, "long words"),
    diagnosis.Finding("arm", "jax/compiled", diagnosis.OK, "longer words"),
    diagnosis.Finding("arm", "jax/captured", diagnosis.LACKING, "no such thing"),
]


def test_text():
    text = doctor.to_text(FINDINGS, width=100)
    assert "eager, compiled" in text
    assert "long words" not in text
    assert "no such thing" in text
    assert "jax 1 [cpu]" in text, "brackets are text, not markup"
    assert "torch: push it up" in text
    assert text.splitlines()[-1] == "Next: python -m xlacompare.run --framework=jax"
    assert max(map(len, text.splitlines())) <= 100
    assert "longer words" in doctor.to_text(FINDINGS, definitions=True, width=100)


def test_json_and_exit_code():
    report = json.loads(doctor.to_json(FINDINGS))
    assert report["findings"][1]["fix"] == "push it up"
    assert len(report["findings"]) == len(FINDINGS)
    assert doctor.exit_code(FINDINGS) == errors.EXIT_OK
    assert doctor.exit_code(FINDINGS[1:]) == errors.EXIT_FAILED_CELL
    assert "pip install" in doctor.verdict(FINDINGS[1:])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--framework=jux"], errors.EXIT_BAD_INPUT, "unknown framework 'jux'; known: jax, torch, torch_xla"),
        (["--format=xml"], errors.EXIT_BAD_INPUT, "should be one of"),
        (["stray"], errors.EXIT_BAD_INPUT, "unexpected arguments: stray"),
    ],
)
def test_bad_input(run_python, arguments, code, text):
    child = run_python(["-m", "xlacompare.doctor", *arguments])
    assert child.returncode == code
    assert text in child.stdout + child.stderr
    assert "Traceback" not in child.stderr


@pytest.mark.slow
def test_every_installed_framework_starts(run_python):
    """The real thing: what is installed works here."""
    child = run_python(["-m", "xlacompare.doctor", "--format=json"], timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr
    status = {f["name"]: f for f in json.loads(child.stdout)["findings"] if f["area"] == "framework"}
    installed = [name for name in frameworks.FRAMEWORKS if not frameworks.missing(name)]
    assert {name: status[name]["detail"] for name in installed if status[name]["status"] != diagnosis.OK} == {}


def test_transports_of_each_framework(monkeypatch):
    """What a framework has and lacks, from its table; devices and packages decide the rest."""
    monkeypatch.setenv(frameworks.EXTRA_VARIABLE, "standin=tests.standin,paper=json")
    monkeypatch.setattr(diagnosis, "nvidia_gpus", lambda: 0)
    found = {f.name: f for f in transport_diagnosis.examine(["standin", "paper"])}
    assert found["standin/gloo"].status == diagnosis.OK and "mode process" in found["standin/gloo"].detail
    assert (found["standin/nccl"].status, found["standin/nccl"].detail) == (diagnosis.LACKING, "NumPy has no GPU")
    assert "has no collectives" in found["paper/any"].detail
    monkeypatch.setattr(transport_diagnosis.importlib.util, "find_spec", lambda name: None)
    (mpi,) = [f for f in transport_diagnosis.examine(["standin"]) if f.name == "standin/mpi"]
    assert (mpi.status, mpi.detail, mpi.fix) == (diagnosis.LACKING, "needs mpi4py", "pip install -e '.[mpi]'")


def test_working_transports_are_one_line_for_a_framework():
    found = [
        diagnosis.Finding("transport", "gloo", diagnosis.OK, "part of jax"),
        diagnosis.Finding("transport", "jax/gloo", diagnosis.OK, "x"),
        diagnosis.Finding("transport", "jax/mpi", diagnosis.OK, "y"),
        diagnosis.Finding("transport", "jax/nccl", diagnosis.LACKING, "no NVIDIA GPU here"),
    ]
    merged = [(f.name, f.detail) for f in doctor.with_arms_merged(found)]
    assert merged == [("gloo", "part of jax"), ("jax", "gloo, mpi"), ("jax/nccl", "no NVIDIA GPU here")]
