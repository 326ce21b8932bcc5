"""What a strategy decides: who has which part of a tensor, and when ranks talk. One class per strategy; `dp` here."""

from __future__ import annotations

from typing import Protocol

import jax
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from xlacompare.frameworks.on_jax import communicate, compiler, layers, models
from xlacompare.workloads import spec

Losses = tuple[jax.Array, compiler.Leaves, compiler.Leaves]  # loss, updated buffers, gradients


class Plan(Protocol):
    """A strategy over a network."""

    network: compiler.Network

    def parts(self, name: str, whole: np.ndarray) -> np.ndarray | None:
        """Parts of a parameter, one per rank: [ranks, *part]; None where it is whole on every rank."""
        ...

    def whole(self, name: str, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Inverse of `parts`; `shape` is the parameter's."""
        ...

    def batch_spec(self, name: str) -> PartitionSpec:
        """How an array of a batch, examples first, is split."""
        ...

    def gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves, batch: models.Batch) -> Losses:
        """One rank's part, inside shard_map: from its parameters to the gradients that its optimizer gets.

        The loss is the rank's own.
        """
        ...


class DataParallel:
    """`dp`: the batch is split, one mean of all gradients after the backward pass; see `Plan`."""

    def __init__(
        self, workload: spec.Workload, precision: layers.Precision, communication: communicate.Communication
    ) -> None:
        self.network = compiler.Network(workload, precision, lambda model: with_global_norms(model, communication))
        self._communication = communication

    def parts(self, name: str, whole: np.ndarray) -> np.ndarray | None:
        """None: all is whole."""
        return None

    def whole(self, name: str, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Never asked."""
        raise ValueError(f"{name} is whole on every rank")

    def batch_spec(self, name: str) -> PartitionSpec:
        """By examples."""
        return PartitionSpec(communicate.AXIS)

    def gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves, batch: models.Batch) -> Losses:
        """Autodiff of the rank's own mean loss, then the mean over ranks."""
        local = jax.value_and_grad(self.network.loss, has_aux=True)
        (loss, buffers), gradients = local(parameters, buffers, batch)
        return loss, buffers, tuple(self._communication.all_reduce_mean(gradients))


def with_global_norms(model: nnx.Module, communication: communicate.Communication) -> nnx.Module:
    """The model with batch norm over the batch of all ranks."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, layers.BatchNorm):
            module.across = communication.mean_across
    return model
