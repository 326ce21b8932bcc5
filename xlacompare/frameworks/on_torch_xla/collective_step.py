"""A built collective, whichever mode runs it: first runs, compile times, outputs, the program that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch_xla

from xlacompare.collectives import request as requests
from xlacompare.frameworks.on_torch_xla import dumps, first_runs


class Program(Protocol):
    """How a mode runs a collective."""

    def put(self) -> None:
        """Uploads the inputs into the buffers, and waits."""
        ...

    def launch(self) -> None:
        """Traces and launches the collective once on every rank."""
        ...

    def first(self) -> None:
        """Launches it for the first time, in an order in which it is compiled once."""
        ...

    def wait(self) -> None:
        """Returns when all that was launched is done."""
        ...

    def trace(self) -> torch.Tensor:
        """The lazy output of the calling thread's rank, not launched."""
        ...

    def read(self) -> dict[int, np.ndarray]:
        """Outputs of the last launch by global rank."""
        ...

    def free(self) -> None:
        """Drops the buffers."""
        ...


class Step:
    """A built collective; see `frameworks.ranks.CollectiveStep`."""

    def __init__(self, program: Program, kept: dumps.Dumps, request: requests.Request) -> None:
        self._program, self._dumps, self._request = program, kept, request
        program.put()
        traced = program.trace()
        self._graph = torch_xla._XLAC._get_graph_hash([traced])
        self._before = torch_xla._XLAC._get_xla_tensors_hlo([traced])
        del traced  # a live lazy tensor would become a second output of the program
        program.put()
        rest = ", and with the ranks' first runs one after the other"
        self.compile_times = first_runs.compiled(
            program.first, program.launch, program.wait, kept, self._graph, contains=rest
        )
        self.refill()

    @property
    def run(self) -> Callable[[int], None]:
        """Traces and launches on every rank; returns when the first rank's is launched."""
        launch = self._program.launch
        return lambda index: launch()

    def synchronize(self) -> None:
        """Waits for threads and devices."""
        self._program.wait()

    def refill(self) -> None:
        """Uploads the input again where it was overwritten."""
        if self._request.placement == "in_place":
            self._program.put()

    def copy(self) -> bool:
        """No run contains a copy of its own: lazy tensors are values."""
        return False

    def outputs(self) -> dict[int, np.ndarray]:
        """Output of the last run by global rank; empty arrays of a barrier."""
        self.synchronize()
        found = self._program.read()
        return {rank: value[:0] for rank, value in found.items()} if self._request.collective == "barrier" else found

    def lowered(self) -> dict[str, Any]:
        """HLO of the program that ran: XLA's own dump, else the graph before the compiler."""
        text = self._dumps.text(self._graph)
        if text is not None:
            return {"source": "hlo", "text": text, "optimised": True}
        return {"source": "hlo", "text": self._before, "optimised": False}

    def close(self) -> None:
        """Frees the buffers; torch_xla keeps the program in its cache."""
        self._program.wait()
        self._program.free()
