"""The steps, whose loss holds the products where they are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax

from experiments.planted_ranks_jax import products, strategies
from xlacompare.frameworks import ranks as seam
from xlacompare.frameworks.on_jax import compiler, models, parallel
from xlacompare.parallel import request
from xlacompare.workloads import spec


@contextlib.contextmanager
def planted(count: int) -> Iterator[None]:
    """Steps that are built meanwhile have the products in their loss, forward only."""

    class Planted(compiler.Network):
        def loss(
            self,
            parameters: compiler.Leaves,
            buffers: compiler.Leaves,
            batch: models.Batch,
            tap: models.Tap = models.no_tap,
        ) -> tuple[jax.Array, compiler.Leaves]:
            loss, updated = super().loss(parameters, buffers, batch, tap)
            largest = jax.lax.stop_gradient(max(parameters, key=lambda leaf: leaf.size))
            vector = largest.reshape(-1)[: products.SIZE]
            return loss + products.chain(vector, jax.lax.stop_gradient(loss), count), updated

    with mock.patch.object(compiler, "Network", Planted):
        yield


def build(
    ranks: seam.Ranks,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> Any:
    """See `frameworks.strategy`."""
    given = dict(asked.settings)
    count = int(given.pop(strategies.EXTRA_PRODUCTS, 0))
    asked = dataclasses.replace(asked, settings=tuple(sorted(given.items())))
    with planted(count) if count else contextlib.nullcontext():
        return parallel.build(ranks, workload, parameters, buffers, batches, asked)
