"""Training steps over the ranks of a process: lanes, or one program that XLA partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_model

from xlacompare.core import census, errors, program
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks.on_torch_xla import alone, collectives, dumps, first_runs, partitioned, replicas, strategies
from xlacompare.parallel import arms, request, shards
from xlacompare.workloads import spec


class Program(first_runs.Program, Protocol):
    """How a mode runs a training step of a strategy.

    Attributes:
      per_rank: Whether what is traced is the work of one rank, and not of all.
    """

    per_rank: bool

    def losses(self) -> list[float]:
        """Of the last step; their mean is the loss."""
        ...

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole and neutral."""
        ...

    def gradients(self) -> spec.Arrays:
        """Of batch 0 at the initial state, whole, neutral, float64; the state stays."""
        ...

    def reset(self) -> None:
        """Uploads the initial state."""
        ...

    def traced(self, read: Callable[[list[torch.Tensor]], None]) -> None:
        """Gives the lazy results of a step of one rank to `read`; leaves the initial state."""
        ...

    def names(self) -> dict[int, tuple[str, str]]:
        """Tensor of torch_xla -> name and role of what a step reads."""
        ...

    def free(self) -> None:
        """Drops what lies on the devices."""
        ...


def build(
    ranks: ranks_seam.Ranks,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> Step | alone.Step:
    """Uploads what each rank gets, and runs two steps: lazy programs are compiled by running them.

    Raises:
      BadInputError: The batch does not divide.
      UnsupportedError: torch_xla cannot do it; the reason is that of `strategies.unsupported`.
    """
    assert isinstance(ranks, collectives.Lanes | collectives.Spmd)
    reason = strategies.unsupported(asked, ranks.transport, ranks.mode, workload.name)
    if reason:
        raise errors.UnsupportedError(reason)
    if asked.communication in arms.WITHOUT_COMPUTE:
        return alone.Step(ranks.lanes, ranks.dumps, asked)
    shards.check(workload, asked.num_ranks)
    initial = (parameters, buffers)
    made: Program
    if isinstance(ranks, collectives.Spmd):
        made = partitioned.Partitioned(workload, initial, batches, asked)
    else:
        made = replicas.Replicas(ranks.lanes, workload, initial, batches, asked)
    return Step(made, ranks.dumps, _key(workload, asked))


def _key(workload: spec.Workload, asked: request.Request) -> bytes:
    """Of the program: torch_xla compiles it once per process, however often it is built."""
    return repr((workload, dataclasses.replace(asked, schedule=()))).encode()


class Step:
    """A training step over all ranks; see `strategy.ParallelStep`."""

    def __init__(self, made: Program, kept: dumps.Dumps, key: bytes) -> None:
        self._program, self._dumps, self._key = made, kept, key
        self.compile_times = first_runs.compiled(made, kept, key)
        self.reset()

    def run(self, index: int) -> None:
        """Traces and launches a step on every rank; returns when the first rank's is launched."""
        self._program.launch(index)

    def synchronize(self) -> None:
        """Waits for threads and devices."""
        self._program.wait()

    def loss(self) -> float:
        """Mean over ranks of the losses of the last step (waits)."""
        self.synchronize()
        return float(np.mean(self._program.losses()))

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers (waits)."""
        self.synchronize()
        return self._program.state()

    def gradients(self) -> spec.Arrays:
        """Gradients of batch 0 at the initial state."""
        return self._program.gradients()

    def reset(self) -> None:
        """Back to the initial state; compiles nothing."""
        self.synchronize()
        self._program.reset()

    def communications(self) -> dict[str, Any]:
        """Optimised HLO from XLA's own dump, else the graph before the compiler."""
        text = self._dumps.text(self._key)
        if text is not None:
            return {"source": "hlo", "text": text, "optimised": True}
        texts: list[str] = []
        self._program.traced(lambda results: texts.append(torch_xla._XLAC._get_xla_tensors_hlo(results)))
        return {"source": "hlo", "text": texts[0], "optimised": False}

    def work(self) -> census.Counted | None:
        """The StableHLO of one rank's step, before the compiler; None where there is none before XLA partitions it."""
        if not self._program.per_rank:
            return None
        found: list[tuple[bytes, tuple[program.Tensor, ...]]] = []
        known = self._program.names()

        def read(results: list[torch.Tensor]) -> None:
            identities, values = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
            inputs = tuple(
                program.Tensor(
                    *known.get(int(i), ("", "constant")), str(v.dtype).removeprefix("torch."), tuple(v.shape)
                )
                for i, v in zip(identities, values, strict=True)
            )
            found.append((xla_model.get_stablehlo_bytecode(results), inputs))

        self._program.traced(read)
        bytecode, inputs = found[0]
        return census.Counted("the StableHLO of the lazy graph", bytecode=bytecode, inputs=inputs)

    def close(self) -> None:
        """Frees the buffers; torch_xla keeps the program in its cache."""
        self._program.wait()
        self._program.free()
