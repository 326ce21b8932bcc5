"""The seam for training over ranks: what `strategies.py` and `parallel.py` of a framework's folder hold.

`strategies.py` is read by the parent and imports no framework: STRATEGIES (name -> StrategySpec), LACKS (strategy ->
why this framework has none), and unsupported(request, transport, mode, workload) -> reason or None. `parallel.py` is
imported in a rank's process, after `collectives.connect` has joined the ranks, and has
build(ranks, workload, parameters, buffers, batches, request) -> ParallelStep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from xlacompare.frameworks import interface
from xlacompare.workloads import spec


@dataclasses.dataclass(frozen=True)
class StrategySpec:
    """A strategy as one framework has it.

    Attributes:
      name: Name in `parallel.table.STRATEGIES`.
      definition: One sentence: through which of the framework's own means.
      modes: Transport -> modes that it runs in, the default first.
      compilers: Compiler arm -> one sentence: what exactly is compiled under this name here. Its first is the default.
      communication: Communication arm -> one sentence: how it is made here.
      settings: Settings of the strategy with their matched values ("bucket_mb": 25); in a cell's `changed` by name.
    """

    name: str
    definition: str
    modes: Mapping[str, tuple[str, ...]]
    compilers: Mapping[str, str]
    communication: Mapping[str, str]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ParallelStep(interface.TrainStep, Protocol):
    """A built training step over all ranks. Every rank calls the same methods in the same order; each may communicate.

    `batches` given to `build` are those of the whole mesh on every rank; a step takes its part (`parallel.shards`).
    `loss` is the mean over the global batch; `state` has whole tensors in the neutral layout, gathered where they are
    split. Of arms without compute `run` and `synchronize` alone are called, and `communications`.
    In modes `spmd` and `threads` one object stands for all ranks of the process.
    """

    def gradients(self) -> spec.Arrays:
        """Gradients of batch 0 at the initial state as the optimizer would get them, whole, float64, neutral layout.

        Through the same communication as `run`. Under adamw the update hides a gradient's scale, so the gate looks
        here. Leaves the state as it was.
        """
        ...

    def communications(self) -> dict[str, Any]:
        """What one step communicates, as `ranks.CollectiveStep.lowered`: {"source": "hlo", "text": optimised HLO}, or
        {"source": "c10d", "ops": [LoweredCollective.to_dict(), ...]} in the order in which they began.
        """
        ...

    def work(self) -> Any:
        """A `core.census.Counted` of the step's products on one rank, for the gate; None where it cannot be said."""
        ...
