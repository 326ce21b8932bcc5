"""The steps, whose loss holds the products where they are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from experiments.planted_ranks_torch import products, strategies
from xlacompare.frameworks import ranks as seam
from xlacompare.frameworks.on_torch import compiler, models, parallel
from xlacompare.parallel import request
from xlacompare.workloads import spec

Loss = Callable[[models.Batch], tuple[torch.Tensor, models.Statistics]]


@contextlib.contextmanager
def planted(count: int) -> Iterator[None]:
    """Steps that are built meanwhile have the products in their loss."""
    own = compiler.loss_function

    def with_products(model: nn.Module) -> Loss:
        inner = own(model)

        def loss_and_statistics(batch: models.Batch) -> tuple[torch.Tensor, models.Statistics]:
            loss, statistics = inner(batch)
            largest = max(model.parameters(), key=lambda parameter: parameter.numel()).detach()
            return loss + products.chain(largest.reshape(-1)[: products.SIZE], loss.detach(), count), statistics

        return loss_and_statistics

    with mock.patch.object(compiler, "loss_function", with_products):
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
