"""The adapter, whose steps hold superfluous work where they are asked to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from experiments.planted_torch_xla import arms
from xlacompare.frameworks.on_torch import models
from xlacompare.frameworks.on_torch_xla import compiler, framework
from xlacompare.workloads import spec

# Large, so that few pairs do: each is traced as well, and host time is no part of what is planted. No power of two, at
# which the rows of a matrix share the sets of a cache. Two pairs cost 4.0 ms in torch_xla's XLA and 3.1 ms in jaxlib's.
SIZE = 1000


def kept_alive(seed: torch.Tensor, source: torch.Tensor, pairs: int) -> torch.Tensor:
    """Zero, made from `pairs` pairs of a transpose and an addition on [SIZE, SIZE].

    XLA cannot drop them: 0 * x is not 0 where x is not finite, and seed and source are known at run time only. Nothing
    is made on the host for them: an arange would be computed there and uploaded at every step, 30 ms (torch_xla 2.9.0).
    """
    vector = source.detach().reshape(-1)[:SIZE]
    matrix = vector[:, None] * (vector + seed)[None, :]
    for _ in range(pairs):
        matrix = torch.tanh(matrix + matrix.t())
    return matrix.sum() * 0.0


@contextlib.contextmanager
def planted(pairs: int) -> Iterator[None]:
    """Steps that are built meanwhile have the pairs in their loss."""

    class Planted(compiler.Training):
        def forward(self, batch: models.Batch) -> tuple[torch.Tensor, models.Statistics]:
            loss, statistics = super().forward(batch)
            return loss + kept_alive(loss.detach(), max(self.parameters, key=torch.numel), pairs), statistics

    with mock.patch.object(compiler, "Training", Planted):
        yield


class Adapter(framework.Adapter):
    """torch_xla with the setting "transposes"."""

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
