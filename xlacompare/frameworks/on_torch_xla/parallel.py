"""Training steps over the ranks of a process: one program that XLA partitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch_xla

from xlacompare.core import census, errors
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks.on_torch_xla import collectives, dumps, first_runs, partitioned, strategies
from xlacompare.parallel import request, shards
from xlacompare.workloads import spec


def build(
    ranks: ranks_seam.Ranks,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> Step:
    """Uploads what each rank gets, and runs two steps: lazy programs are compiled by running them.

    Raises:
      BadInputError: The batch does not divide.
      UnsupportedError: torch_xla cannot do it; the reason is that of `strategies.unsupported`.
    """
    assert isinstance(ranks, collectives.Lanes | collectives.Spmd)
    reason = strategies.unsupported(asked, ranks.transport, ranks.mode, workload.name)
    if reason:
        raise errors.UnsupportedError(reason)
    shards.check(workload, asked.num_ranks)
    made = partitioned.Partitioned(workload, (parameters, buffers), batches, asked)
    return Step(made, ranks.dumps, _key(workload, asked))


def _key(workload: spec.Workload, asked: request.Request) -> bytes:
    """Of the program: torch_xla compiles it once per process, however often it is built."""
    return repr((workload, dataclasses.replace(asked, schedule=()))).encode()


class Step:
    """A training step over all ranks; see `strategy.ParallelStep`."""

    def __init__(self, made: partitioned.Partitioned, kept: dumps.Dumps, key: bytes) -> None:
        self._program, self._dumps, self._key = made, kept, key
        self.compile_times = first_runs.compiled(lambda: made.launch(0), lambda: made.launch(1), made.wait, kept, key)
        self.reset()

    def run(self, index: int) -> None:
        """Traces and launches a step of all ranks."""
        self._program.launch(index)

    def synchronize(self) -> None:
        """Waits for the devices."""
        self._program.wait()

    def loss(self) -> float:
        """Of the last step, the mean over the global batch (waits)."""
        self.synchronize()
        return self._program.loss()

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
        """None: before XLA partitions it the program is the work of all ranks, after it is in no StableHLO."""
        return None

    def close(self) -> None:
        """Frees the buffers; torch_xla keeps the program in its cache."""
        self._program.wait()
        self._program.free()
