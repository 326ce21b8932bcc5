"""What a captured training step must be like, whichever framework it comes from."""

from __future__ import annotations

import pathlib
from typing import Any

from tests.frameworks import cases
from xlacompare import frameworks
from xlacompare.core import program
from xlacompare.frameworks import interface
from xlacompare.graph import client, program_file

VARIANTS = ("mlp", "convnet of 2 stages", "transformer of 2")


def flops(variant: str, workload: Any) -> int:
    """By formula, exactly: the workload's own, without the gradient of the inputs, which no front end computes.

    The workload's formula counts the products of a convolution with its padding; the census counts none of them.
    """
    if variant.startswith("transformer"):
        return int(workload.flops_per_step())
    if variant.startswith("mlp"):
        fan_in, fan_out = workload.parameters()[0].shape
        return int(workload.flops_per_step()) - 2 * workload.batch_size * fan_in * fan_out
    units = workload._units()
    head = workload.parameters()[-2].shape
    total = 3 * 2 * workload.batch_size * head[0] * head[1]
    for unit in units:
        size = unit.size * unit.stride
        taps = range(-(unit.kernel // 2), unit.kernel - unit.kernel // 2)
        pairs = sum(0 <= place * unit.stride + tap < size for place in range(unit.size) for tap in taps)
        times = 2 if unit is units[0] else 3
        total += times * 2 * workload.batch_size * pairs**2 * unit.fan_in * unit.fan_out
    return int(total)


def capture(framework: interface.Framework, variant: str, folder: pathlib.Path) -> program.Program:
    """The program of the arm `compiled`, saved and read again; capturing leaves the step as it was."""
    step = cases.build(framework, variant, "compiled")
    first = frameworks.capture(framework.name, step, variant)
    program_file.save(first, folder)
    again = frameworks.capture(framework.name, step, variant)
    step.close()
    read = program_file.load(folder)
    assert read.fingerprint == again.fingerprint
    assert all((one == other).all() for one, other in zip(read.expected, again.expected, strict=True))
    return read


def check(reader: client.Client, variant: str, folder: pathlib.Path) -> dict[str, Any]:
    """Meaning of inputs and outputs, donation, FLOPs by formula, values of the neutral runtime; returns the census."""
    workload, _ = cases.inputs(variant)
    made = program_file.load(folder)
    state = {item.name for item in (*workload.parameters(), *workload.buffers())}
    assert state | {"inputs", "labels"} <= {item.name for item in made.inputs}
    assert state | {"loss"} <= {item.name for item in made.outputs}
    assert {item.role for item in made.inputs if item.donated} >= {"parameter", "optimizer"}
    assert not [item for item in made.inputs if item.donated and item.role == "batch"]
    found: dict[str, Any] = reader.ask("count", str(folder), "stablehlo")
    assert found["flops"] == flops(variant, workload)
    assert reader.ask("run", str(folder), 0)["wrong"] == []
    return found
