"""What works on this machine, and the command that changes what does not. Imports no framework: a child tries each."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xlacompare
from xlacompare import frameworks, workloads
from xlacompare.core import errors, foreign, machine

OK, LACKING, FAILED = "ok", "lacking", "failed"
MARK = "xlacompare-probe "  # begins the line of a probe's answer; frameworks print lines of their own


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
      area: "framework", "arm", "transport" or "machine".
      name: What was looked at, e.g. "torch_xla" or "torch_xla/openxla".
      status: `OK`, `LACKING` (not here, nothing is broken) or `FAILED` (here, and does not work).
      detail: One line: versions, devices, or the reason.
      fix: Command that changes it; empty where there is none or nothing to fix.
    """

    area: str
    name: str
    status: str
    detail: str
    fix: str = ""


def versions(name: str) -> str:
    """Versions of a framework's distributions, read from their metadata; nothing is imported."""
    found = []
    for distribution in frameworks.entry(name).distributions:
        try:
            found.append(f"{distribution} {importlib.metadata.version(distribution)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{distribution} without metadata")
    return ", ".join(found)


def install_command(name: str) -> str:
    """Command that installs a framework, to be run in the checkout."""
    return f"pip install -e '.[{frameworks.entry(name).extra}]'"


def examine_framework(name: str, platform: str, deadline_s: float) -> Finding:
    """Is the framework installed, and does it compute? Deadline in seconds for the child that tries."""
    if lacking := frameworks.missing(name):
        return Finding("framework", name, LACKING, f"not installed: {', '.join(lacking)}", install_command(name))
    if name in frameworks.COLLECTIVE_ONLY:
        return Finding("framework", name, OK, f"{versions(name)}; collectives only, not tried")
    try:
        environment = frameworks.arms(name).environment(platform, len(machine.available_cores()))
    except errors.UnsupportedError as error:
        return Finding("framework", name, LACKING, str(error))
    answer, reason = run_probe(name, environment, deadline_s)
    if answer is None:
        fix = f"for the whole error: {sys.executable} -c {shlex.quote(probe_code(name))}"
        return Finding("framework", name, FAILED, f"{versions(name)}; does not work: {reason}", fix)
    devices = f"{answer['device_count']} x {answer['device_kind']} ({answer['platform']})"
    return Finding("framework", name, OK, f"{versions(name)}; {devices}; first loss after {answer['seconds']:.1f} s")


def run_probe(name: str, environment: Mapping[str, str | None], deadline_s: float) -> tuple[dict[str, Any] | None, str]:
    """Runs `probe` in a child; returns its answer, or None and one line that says what happened."""
    home = str(pathlib.Path(xlacompare.__file__).resolve().parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    merged = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.Popen(
        [sys.executable, "-c", probe_code(name)],
        env={key: value for key, value in merged.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {deadline_s:g} s (--deadline_s)"
    finally:
        end_group(child)
        for stream in (child.stdout, child.stderr):
            if stream:
                stream.close()
    answers = [line for line in out.splitlines() if line.startswith(MARK)]
    if answers:  # a runtime that falls over at its exit has worked before
        return json.loads(answers[-1].removeprefix(MARK)), ""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return None, f"exit code {child.returncode}: {lines[-1][:200] if lines else 'no output'}"


def probe_code(name: str) -> str:
    """Program of the child."""
    return f"from xlacompare.launch import diagnosis; diagnosis.probe({json.dumps(name)})"


def end_group(child: subprocess.Popen[str]) -> None:
    """Ends a child and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def probe(name: str) -> None:
    """In the child: starts the framework, computes one loss, prints one line.

    Raises:
      XlacompareError: The loss is not a finite number.
    """
    begin = time.perf_counter()
    framework = frameworks.load_framework(name)
    workload = workloads.load_workload("mlp", "tiny", batch_size=8)
    batch = workload.batches(0, 1)[0]
    loss = framework.evaluate(
        workload, workload.initial_parameters(0), workload.initial_buffers(), batch, "float32"
    ).loss
    if not math.isfinite(loss):
        raise errors.XlacompareError(f"the first loss is {loss}")
    described = framework.describe()
    answer = {key: described.get(key, "?") for key in ("platform", "device_kind", "device_count")}
    sys.stdout.write(MARK + json.dumps({**answer, "loss": loss, "seconds": time.perf_counter() - begin}) + "\n")
    sys.stdout.flush()  # a runtime that aborts at its exit would take the answer along


def examine_arms(name: str, works: bool) -> list[Finding]:
    """Compiler arms that the framework has and lacks, from its table; works without the framework's packages."""
    table = frameworks.arms(name)
    if not works:
        return [Finding("arm", name, LACKING, f"none: {name} does not work here")]
    found = []
    for arm in table.ARMS.values():
        fix = compiler_fix() if "inductor" in arm.definition.lower() else ""  # it writes C++ and calls the compiler
        if fix:
            found.append(Finding("arm", f"{name}/{arm.name}", LACKING, "needs a C++ compiler", fix))
        else:
            found.append(Finding("arm", f"{name}/{arm.name}", OK, arm.definition))
    return found + [Finding("arm", f"{name}/{arm}", LACKING, reason) for arm, reason in table.LACKS.items()]


def installed(package: str) -> bool:
    """Is a distribution installed? Nothing is imported."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def nvidia_gpus(folder: pathlib.Path = pathlib.Path("/dev")) -> int:
    """NVIDIA devices of this machine, by their device files."""
    return len([path for path in folder.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])


def tpu_chips(folder: pathlib.Path = pathlib.Path("/dev")) -> int:
    """TPU chips of this machine, by their device files (accel on v2-v4, vfio on v5 and later)."""
    vfio = [path for path in (folder / "vfio").glob("*") if path.name.isdigit()]
    return len(list(folder.glob("accel[0-9]*"))) or len(vfio)


def examine_transports(has: Callable[[str], bool] = installed) -> list[Finding]:
    """How ranks can exchange bytes here: found, not tried."""
    found = [
        carried("inprocess", [n for n in ("jax", "torch_xla") if has(n)], "pip install -e '.[jax]'"),
        carried("gloo", [n for n in ("torch", "jax") if has(n)], "pip install -e '.[cpu]'"),
    ]
    beside = str(pathlib.Path(sys.executable).parent)  # a virtual environment need not be on the PATH
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    launcher = shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)
    if has("mpi4py") and launcher:
        found.append(Finding("transport", "mpi", OK, f"mpi4py and {pathlib.Path(launcher).name}"))
    else:
        lacking = [word for word, there in (("mpi4py", has("mpi4py")), ("mpiexec", launcher)) if not there]
        found.append(Finding("transport", "mpi", LACKING, f"no {' and no '.join(lacking)}", "pip install mpich mpi4py"))
    gpus, chips = nvidia_gpus(), tpu_chips()
    found.append(Finding("transport", "nccl", OK if gpus else LACKING, f"{gpus} NVIDIA GPUs"))
    found.append(Finding("transport", "ici", OK if chips else LACKING, f"{chips} TPU chips"))
    return found


def carried(name: str, by: Sequence[str], fix: str) -> Finding:
    """A transport that comes inside framework packages."""
    if by:
        return Finding("transport", name, OK, f"part of {', '.join(by)}")
    return Finding("transport", name, LACKING, "no installed framework carries it", fix)


def compiler_fix() -> str:
    """Command that brings a C++ compiler; empty where there is one (torch's inductor looks for the same names)."""
    there = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    return "" if there else "apt-get install g++"


def can_make_namespaces() -> bool:
    """Can this user make network namespaces (for a link of known bandwidth)?"""
    if not (shutil.which("unshare") and shutil.which("ip") and shutil.which("tc")):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=10, check=False).returncode == 0


def examine_machine() -> list[Finding]:
    """The machine: cores, memory, clocks for foreign CPU use, compiler, namespaces."""
    about = machine.describe()
    cores = len(about["cores_available"])
    memory = f", {about['memory_bytes'] / 2**30:.0f} GiB" if about["memory_bytes"] else ""
    kind = ", virtual" if about["hypervisor"] else ""
    fix = compiler_fix()
    link = can_make_namespaces()
    reach = "network namespaces and tc, for planted links" + ("" if link else ": needs root, ip, tc and unshare")
    snapshot = foreign.snapshot(about["cores_available"])
    known = [("ticks", snapshot.cores), ("waiting time", snapshot.wait_s)]
    clocks = " and ".join(word for word, value in known if value is not None)
    return [
        Finding("machine", "processor", OK, f"{about['cpu']}, {cores} cores available{kind}{memory}"),
        Finding("machine", "system", OK, f"{about['system']}, Python {about['python']}"),
        governor_finding(about["governor"]),
        Finding("machine", "foreign CPU use", OK if clocks else LACKING, f"seen by {clocks or 'no clock'}"),
        Finding("machine", "C++ compiler", LACKING if fix else OK, "for torch.compile (inductor)", fix),
        Finding(
            "machine", "shaped link", OK if link else LACKING, reach, "" if link else "sudo apt-get install iproute2"
        ),
    ]


def governor_finding(governor: str | None) -> Finding:
    """Clock frequency scaling."""
    if governor in (None, "performance"):
        return Finding("machine", "frequency governor", OK, governor or "not visible (usual in a virtual machine)")
    fix = "sudo cpupower frequency-set -g performance"
    return Finding("machine", "frequency governor", LACKING, f"{governor}: step times drift with the clock", fix)


def examine(names: Sequence[str], platform: str, deadline_s: float) -> list[Finding]:
    """All findings; starts the frameworks one after the other."""
    found = [examine_framework(name, platform, deadline_s) for name in names]
    for finding in tuple(found):
        if finding.name not in frameworks.COLLECTIVE_ONLY:
            found += examine_arms(finding.name, finding.status == OK)
    return found + examine_transports() + examine_machine()
