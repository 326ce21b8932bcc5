"""Wrong models and optimizers: what is planted, and where the gate must find it first.

A fault is planted either in what the adapter sees (the workload's configuration, parameters, a batch), or in the
adapter's own code by a patch of that framework (PATCHES of its `faults_*` module).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xlacompare.frameworks import interface
from xlacompare.workloads import spec

# Framework -> module with PATCHES: name of a fault -> function of a MonkeyPatch. Two frameworks share one definition of
# the models and the optimizers.
MODULES = {
    "jax": "tests.frameworks.faults_jax",
    "torch": "tests.frameworks.faults_torch",
    "torch_xla": "tests.frameworks.faults_torch",
}


def patches(framework: str) -> dict[str, Callable[[pytest.MonkeyPatch], None]]:
    """The patches of a framework, by the name of the fault; call it in its own process only."""
    return importlib.import_module(MODULES[framework]).PATCHES


def work_patches(framework: str) -> dict[str, Callable[[pytest.MonkeyPatch], None]]:
    """Patches of a framework that change how much an mlp's step computes; call it in its own process only."""
    return importlib.import_module(MODULES[framework]).WORK_PATCHES


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
      variant: Key of `cases.VARIANTS`.
      first: Kind and name of the first difference that the gate must report.
      cause: Words of the likely causes that its message gives.
      sees: Changes what the adapter sees, None where the framework's own code is patched.
    """

    variant: str
    first: str
    cause: str
    sees: dict[str, Callable[[Any], Any]] | None = None

    def plant(self, framework: interface.Framework, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The framework with this fault, called `name` in the tables."""
        if self.sees is not None:
            return Misled(framework, **self.sees)
        patches(framework.name)[name](monkeypatch)
        return framework


class Misled:
    """An adapter that sees another workload, other parameters or other batches than the oracle."""

    def __init__(
        self,
        framework: interface.Framework,
        workload: Callable[[Any], Any] = lambda workload: workload,
        parameters: Callable[[spec.Arrays], spec.Arrays] = lambda parameters: parameters,
        batch: Callable[[spec.Arrays], spec.Arrays] = lambda batch: batch,
    ) -> None:
        self._framework, self._workload, self._parameters, self._batch = framework, workload, parameters, batch

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        return self._framework.evaluate(
            self._workload(workload), self._parameters(parameters), buffers, self._batch(batch), dtype
        )

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        *rest: Any,
    ) -> interface.TrainStep:
        seen = self._workload(workload), self._parameters(parameters), buffers, [self._batch(b) for b in batches]
        return self._framework.build(*seen, *rest)


def _config(**changes: Any) -> dict[str, Callable[[Any], Any]]:
    return {"workload": lambda w: dataclasses.replace(w, config=dataclasses.replace(w.config, **changes))}


def _optimizer(**changes: Any) -> dict[str, Callable[[Any], Any]]:
    return {"workload": lambda w: dataclasses.replace(w, optimizer=dataclasses.replace(w.optimizer, **changes))}


def _transposed(name: str) -> dict[str, Callable[[Any], Any]]:
    return {"parameters": lambda parameters: {**parameters, name: parameters[name].T.copy()}}


def _shifted(name: str) -> dict[str, Callable[[Any], Any]]:
    return {"batch": lambda batch: {**batch, name: np.roll(batch[name], 1, -1)}}


FAULTS: dict[str, Fault] = {
    # Model.
    "layer-norm epsilon 1e-6": Fault(
        "transformer of 2", "activation block0.attention", "layer-norm epsilon", _config(layer_norm_eps=1e-6)
    ),
    "transposed kernel": Fault("mlp of 32", "activation layer1", "kernel transposed", _transposed("layer1.kernel")),
    "transposed kernel in attention": Fault(
        "transformer of 2",
        "activation block1.attention",
        "kernel transposed",
        _transposed("block1.attention.out.kernel"),
    ),
    "GELU tanh": Fault("transformer of 2", "activation block0.mlp", "GELU tanh instead of erf"),
    "padding SAME": Fault("convnet of 2 stages", "activation stage1.block0", "padding SAME instead of explicit"),
    "embedding mask shifted": Fault(
        "transformer of 2", "activation embedding", "dropout mask: shifted", _shifted("mask.embedding")
    ),
    "branch mask shifted": Fault(
        "transformer of 2", "activation block1", "dropout mask of this residual branch", _shifted("mask.block1.mlp")
    ),
    # Loss.
    "summed loss": Fault("mlp of 32", "loss loss", "reduction of the loss"),
    # Optimizer.
    "velocity averages": Fault("mlp of 32", "update layer0.kernel", "momentum sense"),
    "momentum 1 - m": Fault("mlp of 32", "trace step2", "momentum", _optimizer(momentum=0.1)),
    "coupled decay": Fault("transformer of 2", "update token_embedding.embedding", "weight decay coupled"),
    "eps inside the root": Fault("mlp with adamw", "update layer0.kernel", "eps inside the square root"),
    # Running statistics.
    "batch-norm momentum 1 - m": Fault(
        "convnet of 2 stages", "buffer stem.bn.mean", "batch-norm momentum inverted", _config(bn_momentum=0.1)
    ),
    "unbiased running variance": Fault(
        "convnet of 2 stages", "buffer stem.bn.var", "running variance is the unbiased one"
    ),
}
