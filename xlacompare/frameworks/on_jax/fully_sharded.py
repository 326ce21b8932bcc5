"""`fsdp`: parameters, gradients and optimizer state are split; see `plans.Plan`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from xlacompare.frameworks.on_jax import communicate, compiler, layers, models, plans
from xlacompare.parallel import arms
from xlacompare.workloads import spec


class FullySharded:
    """Every tensor flat, in equal parts, the last padded with zeros: one rule for all shapes. Where axis 0 divides it
    is the split along axis 0, since rows lie one after the other.

    Parameters are gathered once a step, each on its own, so that the compiler may gather those of a later layer while
    an earlier one computes. They are not gathered again for the backward pass: XLA would merge the second gather with
    the first.
    """

    def __init__(
        self, workload: spec.Workload, precision: layers.Precision, communication: communicate.Communication
    ) -> None:
        self.network = compiler.Network(
            workload, precision, lambda model: plans.with_global_norms(model, communication)
        )
        shapes = {tensor.name: tensor.shape for tensor in workload.parameters()}
        self._shapes = [shapes[name] for name in self.network.parameter_names]
        self._communication = communication

    def parts(self, name: str, whole: np.ndarray) -> np.ndarray | None:
        """[ranks, size of a part]."""
        n = self._communication.num_ranks
        return np.pad(whole.reshape(-1), (0, -whole.size % n)).reshape(n, -1)

    def whole(self, name: str, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Without the padding."""
        return parts.reshape(-1)[: math.prod(shape)].reshape(shape)

    def batch_spec(self, name: str) -> PartitionSpec:
        """By examples."""
        return PartitionSpec(communicate.AXIS)

    def gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves, batch: models.Batch) -> plans.Losses:
        """Gathers, differentiates the rank's own mean loss, scatters the mean of the gradients."""
        flat = self._communication.all_gather(parameters, computed=False)
        whole = tuple(leaf[: math.prod(shape)].reshape(shape) for leaf, shape in zip(flat, self._shapes, strict=True))
        local = jax.value_and_grad(self.network.loss, has_aux=True)
        (loss, buffers), gradients = local(whole, buffers, batch)
        n = self._communication.num_ranks
        padded = [jnp.pad(leaf.reshape(-1), (0, -leaf.size % n)) for leaf in gradients]
        parts = self._communication.reduce_scatter(padded)
        divisor = n if self._communication.arm in arms.EXACT else 1
        return loss, buffers, tuple(part / divisor for part in parts)
