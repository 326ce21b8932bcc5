"""The adapter, whose steps hold superfluous work where they are asked to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from experiments.planted_jax import arms
from xlacompare.frameworks.on_jax import compiler, framework, models
from xlacompare.workloads import spec

# A matrix of 1 MB. No power of two, at which the rows of a matrix share the sets of a cache.
SIZE = 500


def kept_alive(seed: jax.Array, source: jax.Array, pairs: int) -> jax.Array:
    """Zero, made from `pairs` pairs of a transpose and an addition on [SIZE, SIZE].

    XLA cannot drop them: 0 * x is not 0 where x is not finite, and seed and source are known at run time only.
    """
    vector = jax.lax.stop_gradient(source).reshape(-1)[:SIZE]
    matrix = vector[:, None] * (vector + jax.lax.stop_gradient(seed))[None, :]
    for _ in range(pairs):
        matrix = jnp.tanh(matrix + matrix.T)
    return matrix.sum() * 0.0


@contextlib.contextmanager
def planted(pairs: int) -> Iterator[None]:
    """Steps that are built meanwhile have the pairs in their loss."""

    class Planted(compiler.Network):
        def loss(
            self,
            parameters: compiler.Leaves,
            buffers: compiler.Leaves,
            batch: models.Batch,
            tap: models.Tap = models.no_tap,
        ) -> tuple[jax.Array, compiler.Leaves]:
            loss, updated = super().loss(parameters, buffers, batch, tap)
            return loss + kept_alive(loss, max(parameters, key=lambda leaf: leaf.size), pairs), updated

    with mock.patch.object(compiler, "Network", Planted):
        yield


class Adapter(framework.Adapter):
    """jax with the setting "transposes"."""

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> framework.Step:
        """As its base; with the pairs where `settings` has them."""
        others = {name: value for name, value in settings.items() if name != arms.TRANSPOSES}
        pairs = int(settings.get(arms.TRANSPOSES, 0))
        with planted(pairs) if pairs else contextlib.nullcontext():
            return super().build(workload, parameters, buffers, batches, dtype, arm, others)
