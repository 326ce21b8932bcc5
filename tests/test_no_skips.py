"""A skip must not hide: what is required is there, and what this machine can do is not skipped."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import pytest

from tests import conftest, run_all, slurm
from xlacompare import frameworks
from xlacompare.graph import plugins
from xlacompare.launch import link as links


def test_required_frameworks_are_installed():
    unknown = set(conftest.REQUIRED) - set(frameworks.FRAMEWORKS)
    assert not unknown, (
        f"XLACOMPARE_REQUIRED_FRAMEWORKS names {sorted(unknown)}; known: {sorted(frameworks.FRAMEWORKS)}"
    )
    lacking = {name: frameworks.missing(name) for name in conftest.REQUIRED if frameworks.missing(name)}
    assert not lacking


def test_ci_requires_every_framework():
    script = (conftest.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert ",".join(frameworks.FRAMEWORKS) in script, ".ci/run must require every registered framework"
    assert "set -euo pipefail" in script


def test_a_missing_required_framework_fails(run_python, tmp_path):
    """The rule of conftest.py, tried with a framework that is hidden: red when required, a skip when not."""
    hidden = tmp_path / "hide"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'flax' else find(name, package)\n"
    )
    test = tmp_path / "test_x.py"
    test.write_text("def test_x(framework_name):\n    assert framework_name\n")
    command = ["-m", "pytest", "-q", f"--confcutdir={conftest.ROOT}", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    for required, word in (("jax", "1 error"), (None, "1 skipped")):
        env = {"PYTHONPATH": f"{hidden}:{conftest.ROOT}", "XLACOMPARE_REQUIRED_FRAMEWORKS": required}
        child = run_python([*command, "--rootdir", str(tmp_path), "-c", os.devnull, str(test)], env=env)
        assert word in child.stdout, child.stdout + child.stderr


@pytest.mark.parametrize(("name", "package"), [("torch", "mpi4py"), ("jax", "mpi4jax")])
def test_mpi_is_there_where_its_framework_is_required(name, package):
    """mpi4jax is built by the Makefile, and a failed build does not stop it."""
    if name in conftest.REQUIRED:
        assert importlib.util.find_spec(package), f"{package} is not installed (BUILD_NOTES.md, MPI)"
        assert pathlib.Path(sys.executable).with_name("mpiexec").exists()


def test_plugins_are_there_where_all_frameworks_are_required():
    """Tests of PJRT plugins skip without them; their wheels are for Linux on x86-64."""
    if set(frameworks.FRAMEWORKS) <= set(conftest.REQUIRED) and (sys.platform, platform.machine()) == (
        "linux",
        "x86_64",
    ):
        assert importlib.util.find_spec("pypjrt"), "the extra pjrt is not installed"
        names = [found.name for found in plugins.installed()]
        assert len(names) >= 2, f"the extra pjrt is not installed: only {names}"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_root_can_make_network_namespaces():
    """Where this passes, no test may skip for want of a namespace (the link of known bandwidth)."""
    assert subprocess.run(["unshare", "--net", "true"], timeout=10).returncode == 0
    if shutil.which("ip") and shutil.which("tc"):
        assert links.why_not() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root")
def test_slurm_is_not_skipped_where_it_is_installed(tmp_path):
    if shutil.which("slurmctld", path="/usr/sbin:/usr/bin") and shutil.which("munged", path="/usr/sbin:/usr/bin"):
        assert slurm.why_not() is None
        with slurm.running(tmp_path) as cluster:
            assert "2" in cluster.ask("srun", "--ntasks=2", "printenv", "SLURM_NTASKS")


@pytest.mark.parametrize(
    ("stem", "family"),
    [
        ("test_torch_xla", "torch_xla"), ("test_on_torch_xla_arms", "torch_xla"), ("test_torch", "torch"),
        ("test_on_jax", "jax"), ("test_jaxpr", None), ("test_contract", None), ("conftest", None),
    ],
)  # fmt: skip
def test_family_of_file(stem, family):
    assert conftest.family_of_file(stem) == family


def test_a_group_without_tests_fails(monkeypatch):
    monkeypatch.setenv("XLACOMPARE_REQUIRED_FRAMEWORKS", "jax")
    lacking = {"jax": [], "torch": ["torch"]}
    assert run_all.passed("jax", 0, False, lacking)
    assert not run_all.passed("jax", 1, False, lacking)
    assert not run_all.passed("jax", run_all.NO_TESTS, False, lacking)
    assert run_all.passed("jax", run_all.NO_TESTS, True, lacking), "with -k a group may be empty"
    assert run_all.passed("torch", run_all.NO_TESTS, False, lacking), "not installed, not required"
    assert not run_all.passed("jax", run_all.NO_TESTS, False, {"jax": ["jax"]}), "not installed but required"


def test_counts_of_a_report(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>')
    assert run_all.counts(report) == {"passed": 3, "failed": 3, "skipped": 3}
    assert run_all.counts(tmp_path / "none.xml") == {"passed": 0, "failed": 0, "skipped": 0}
