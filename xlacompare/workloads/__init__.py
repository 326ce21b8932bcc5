"""Workloads by name. NumPy only."""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType

from xlacompare.core import errors
from xlacompare.workloads import spec

WORKLOADS = ("mlp", "convnet", "transformer")
PRESETS = ("tiny", "small", "base")

OPTIMIZERS = {
    "sgd": spec.OptimizerSpec("sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": spec.OptimizerSpec("adamw", learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
}


def load_workload(name: str, preset: str, batch_size: int | None = None, optimizer: str | None = None) -> spec.Workload:
    """Makes a workload; reads no data yet.

    Args:
      name: One of `WORKLOADS`.
      preset: One of `PRESETS`.
      batch_size: Examples per step; the preset's own where None.
      optimizer: "sgd" or "adamw"; the workload's own where None.

    Raises:
      BadInputError: A name that is not known, or a batch size below 1.
    """
    _known("workload", name, WORKLOADS)
    _known("preset", preset, PRESETS)
    if batch_size is not None and batch_size < 1:
        raise errors.BadInputError(f"batch size must be at least 1, not {batch_size}")
    workload: spec.Workload = _module(name).make(preset)
    changes: dict[str, object] = {}
    if batch_size is not None:
        changes["batch_size"] = batch_size
    if optimizer is not None:
        _known("optimizer", optimizer, tuple(OPTIMIZERS))
        changes["optimizer"] = OPTIMIZERS[optimizer]
    return dataclasses.replace(workload, **changes)  # type: ignore[type-var]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"xlacompare.workloads.{name}")


def _known(what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise errors.BadInputError(f"unknown {what} {name!r}; known: {', '.join(names)}")
