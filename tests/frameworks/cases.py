"""Inputs and references of the cross-framework tests, made once per process, and children for arms that need one."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests import conftest
from xlacompare import frameworks, workloads
from xlacompare.core import parity
from xlacompare.frameworks import interface
from xlacompare.workloads import archive, oracle, spec

STEPS = 4

# (framework, arm) -> workloads whose gate takes seconds, where not all do: hundreds of programs of one operation each,
# C++ compilers, kernels that are not optimised.
QUICK: dict[tuple[str, str], tuple[str, ...]] = {
    ("jax", "eager"): ("mlp",),
    ("jax", "nofusion"): ("mlp", "transformer"),
    ("jax", "opt0"): ("mlp", "transformer"),
    ("torch", "compiled"): ("mlp",),
    ("torch", "inductor_model"): ("mlp",),
    ("torch_xla", "eager"): ("mlp",),
    ("torch_xla", "openxla"): ("mlp", "transformer"),
}

# Workloads beyond the presets `tiny`: what only the big presets have, in a size that a test can pay for.
VARIANTS: dict[str, Callable[[], spec.Workload]] = {
    "mlp": lambda: workloads.load_workload("mlp", "tiny"),
    "convnet": lambda: workloads.load_workload("convnet", "tiny"),
    "transformer": lambda: workloads.load_workload("transformer", "tiny"),
    "mlp with adamw": lambda: workloads.load_workload("mlp", "tiny", 32, "adamw"),
    "mlp of 8": lambda: workloads.load_workload("mlp", "tiny", 8),
    "mlp of 32": lambda: workloads.load_workload("mlp", "tiny", 32),
    "mlp of odd layers": lambda: _changed(workloads.load_workload("mlp", "tiny", 32), hidden=(33, 31)),
    "mlp of 1024": lambda: workloads.load_workload("mlp", "tiny", 1024),
    "convnet of 2 stages": lambda: _two_stages(),
    "transformer of 2": lambda: workloads.load_workload("transformer", "tiny", 2),
    "transformer of 1 layer": lambda: _changed(workloads.load_workload("transformer", "tiny", 4), layers=1),
    "transformer without dropout": lambda: _changed(workloads.load_workload("transformer", "tiny", 2), dropout=0.0),
    "bottlenecks": lambda: _bottlenecks(),
}


def _changed(workload: Any, **config: Any) -> spec.Workload:
    """The workload with another configuration."""
    return dataclasses.replace(workload, config=dataclasses.replace(workload.config, **config))


def _two_stages() -> spec.Workload:
    """Of the convnet, as much as has a stride; programs of half the size compile in half the time."""
    tiny: Any = workloads.load_workload("convnet", "tiny", 16)
    return _changed(tiny, stages=tiny.config.stages[:2])


def _bottlenecks() -> spec.Workload:
    """ResNet-50's parts (7x7 stem at stride 2, max pool, bottleneck blocks, synthetic images) in a few channels."""
    base: Any = workloads.load_workload("convnet", "base", 4)
    stages = tuple(dataclasses.replace(stage, width=4 * 2**i, blocks=1) for i, stage in enumerate(base.config.stages))
    return _changed(base, image_size=16, stem_width=8, stages=stages[:2], classes=10)


@functools.cache
def inputs(variant: str) -> tuple[spec.Workload, archive.Archive]:
    """The workload of a variant, with its initial state and `STEPS` batches."""
    workload = VARIANTS[variant]()
    return workload, archive.build(workload, 0, STEPS)


@functools.cache
def exact(variant: str) -> oracle.Oracle:
    """The float64 oracle."""
    workload, made = inputs(variant)
    return oracle.evaluate(workload, made.parameters, made.buffers, made.batches, STEPS, "float64")


@functools.cache
def reference(variant: str, dtype: str) -> oracle.Reference:
    """The oracle with the dtype's own error."""
    workload, made = inputs(variant)
    return oracle.with_dtype(workload, made.parameters, made.buffers, made.batches, dtype, exact(variant))


def build(
    framework: interface.Framework,
    variant: str,
    arm: str,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
) -> interface.TrainStep:
    """The step of an arm, built as a worker builds it: with every matched "build" setting, but for `settings`."""
    workload, made = inputs(variant)
    chosen = frameworks.build_settings(framework.name, dict(settings or {}))
    return framework.build(workload, made.parameters, made.buffers, made.batches, dtype, arm, chosen)


@functools.cache
def shared_step(framework: interface.Framework, arm: str) -> interface.TrainStep:
    """The float32 step of the mlp in an arm, built once per process (C++ compilers are slow); `reset` it first."""
    return build(framework, "mlp", arm)


def shared_arms(name: str) -> list[str]:
    """Arms that need no process of their own."""
    return [arm for arm, spec_ in frameworks.arms(name).ARMS.items() if not spec_.environment]


def quick(name: str, arm: str) -> tuple[str, ...]:
    """Variants whose gate an arm of a framework runs in seconds."""
    return QUICK.get((name, arm), workloads.WORKLOADS)


@functools.cache
def in_own_process(name: str, arm: str) -> tuple[parity.GateResult, list[dict[str, Any]]]:
    """Gate and blocks (see `recompiles`) of an arm in a child with the arm's environment, as a worker has."""
    arms = frameworks.arms(name)
    environment = {**arms.environment("cpu", 1), **arms.ARMS[arm].environment}
    child = conftest.run_child(["-m", "tests.frameworks.own_process", name, arm], env=environment, timeout=240)
    assert child.returncode == 0, child.stderr
    answer = json.loads(child.stdout.splitlines()[-1])
    return parity.GateResult.from_dict(answer["gate"]), answer["blocks"]
