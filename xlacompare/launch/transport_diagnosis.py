"""Which transports each framework has on this machine: from tables, packages and devices; nothing is started."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence

from xlacompare import frameworks
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.launch import diagnosis
from xlacompare.launch.diagnosis import LACKING, OK, Finding


def examine(names: Sequence[str]) -> list[Finding]:
    """One finding for each framework and transport, "jax/gloo"."""
    return [finding for name in names for finding in examine_framework(name)]


def examine_framework(name: str) -> list[Finding]:
    """The transports of one framework; works without its packages."""
    try:
        table = frameworks.transports(name)
    except errors.MissingFrameworkError as error:
        return [Finding("transport", f"{name}/any", LACKING, str(error))]
    if absent := frameworks.missing(name):
        return [Finding("transport", f"{name}/any", LACKING, f"not installed: {', '.join(absent)}")]
    found = [_finding(name, spec) for spec in table.TRANSPORTS.values()]
    return found + [Finding("transport", f"{name}/{other}", LACKING, why) for other, why in table.LACKS.items()]


def _finding(name: str, spec: ranks.TransportSpec) -> Finding:
    which = f"{name}/{spec.name}"
    absent = [package for package in spec.requires if importlib.util.find_spec(package) is None]
    if absent:
        fix = "; ".join(filter(None, [f"pip install -e '.[{spec.extra}]'", spec.install]))
        return Finding("transport", which, LACKING, f"needs {', '.join(absent)}", fix)
    if lacking := _machine_lacks(spec.name):
        return Finding("transport", which, LACKING, lacking)
    return Finding("transport", which, OK, f"{spec.definition}; mode {' or '.join(spec.modes)}")


def _machine_lacks(transport: str) -> str:
    """What this machine lacks for a transport; "" for nothing."""
    if transport == "nccl" and not diagnosis.nvidia_gpus():
        return "no NVIDIA GPU here"
    if transport == "ici" and not diagnosis.tpu_chips():
        return "no TPU here"
    beside = str(pathlib.Path(sys.executable).parent)  # a virtual environment need not be on the PATH
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    if transport == "mpi" and not (shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)):
        return "no mpiexec here"
    return ""
