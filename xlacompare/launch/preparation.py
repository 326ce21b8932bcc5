"""What a comparison needs before its first launch: parameters, batches, reference; and the environment of a record."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from xlacompare import frameworks, workloads
from xlacompare.core import cell as cells
from xlacompare.core import config, environment, machine
from xlacompare.launch import grid
from xlacompare.workloads import archive, oracle, reference_file

DTYPE_POLICY = "float32 parameters; bfloat16: compute in bfloat16, norms, softmax and loss in float32"


@dataclasses.dataclass
class Inputs:
    """Files that the parent made for a comparison, and their check sums."""

    archive: pathlib.Path
    reference: pathlib.Path
    sha256: str
    facts: dict[str, Any]


def columns(blocks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Blocks as columns: one list per field, which is what a reader of a million records wants."""
    return {key: [block[key] for block in blocks] for key in (blocks[0] if blocks else ())}


class Seeded(Protocol):
    """What the inputs need of a configuration."""

    @property
    def seed(self) -> int:
        """Of parameters and batches."""
        ...

    @property
    def gate_steps(self) -> int:
        """Batches, and steps of the gate's loss trace."""
        ...


def prepare(cell: cells.Cell, run: Seeded, folder: pathlib.Path) -> Inputs:
    """Makes a comparison's parameters, batches and reference, and writes them for the workers."""
    workload = workloads.load_workload(cell.workload, cell.preset, cell.batch_size, cell.optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    made = archive.build(workload, run.seed, run.gate_steps)
    name = cell.comparison.replace("/", "-")
    files = folder / f"{name}.npz", folder / f"{name}-reference.npz"
    sha256 = archive.save(files[0], made)
    reference = oracle.references(workload, made.parameters, made.buffers, made.batches, cell.dtype, run.gate_steps)
    reference_file.save(files[1], reference)
    facts = {
        "flops_per_step": workload.flops_per_step(),
        "bytes_per_step": workload.bytes_per_step(cell.dtype),
        "parameter_count": sum(int(np.prod(spec.shape)) for spec in workload.parameters()),
        "synthetic": workload.synthetic,
    }
    return Inputs(files[0], files[1], sha256, facts)


def build_request(cell: cells.Cell, inputs: Inputs, run: config.RunConfig, fence: bool) -> dict[str, Any]:
    """What a worker is asked, to build a cell; `fence`: whether the clock's self-test runs."""
    return {
        "op": "build",
        "cell": cell.to_dict(),
        "archive": str(inputs.archive),
        "reference": str(inputs.reference),
        "min_block_s": run.min_block_s,
        "fence": fence,
    }


def program_request(cell: cells.Cell, inputs: Inputs, folder: pathlib.Path) -> dict[str, Any]:
    """What a worker is asked, to capture the program of a built cell into a folder of its own below `folder`."""
    return {"op": "program", "cell": cell.id, "folder": str(folder), "reference": str(inputs.reference)}


def environment_of(
    cell: cells.Cell, run: config.RunConfig, started: Mapping[str, Any], inputs: Inputs | None
) -> dict[str, Any]:
    """The environment of a cell's record: checked keys, the framework's own words, versions, variables in force."""
    described, settings = started.get("describe", {}), frameworks.settings(cell.framework, dict(cell.changed))
    here = machine.describe()
    possible = grid.why_not(cell.framework, cell.compiler, run.platform, run.plugin) is None
    started_with = grid.worker_environment(cell, run, None) if possible else {}
    variables = {**os.environ, **started_with}
    return {
        "checked": {
            "machine": f"{here['host']}, {here['cpu']}, {here['cores_online']} cores",
            "platform": run.platform,
            "pjrt_plugin": run.plugin.identity if run.plugin else None,
            "num_cores": run.num_cores,
            "data_sha256": inputs.sha256 if inputs else None,
            "dtype_policy": DTYPE_POLICY,
            "source_revision": environment.source_revision(),
            "threads": described.get("threads"),
            "matmul_precision": settings.get("matmul_precision"),
        },
        "framework": described,
        "versions": environment.versions(frameworks.entry(cell.framework).distributions + ("numpy", "scipy")),
        "variables": environment.relevant_variables(variables),
        "load_average": here["load_average"],
    }
