"""The collectives of a step's census, in order and without its compute, on zeros (sums of which stay what they are)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_xla.core import xla_model

from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks.on_torch_xla import dumps, first_runs, lanes
from xlacompare.parallel import request

Tensors = list[torch.Tensor]
_DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


def _all_reduce(inputs: Tensors, size: int) -> Tensors:
    xla_model.all_reduce(xla_model.REDUCE_SUM, inputs)
    return inputs


def _all_gather(inputs: Tensors, size: int) -> Tensors:
    return [xla_model.all_gather(tensor, dim=0, pin_layout=False) for tensor in inputs]


def _reduce_scatter(inputs: Tensors, size: int) -> Tensors:
    return [xla_model.reduce_scatter(xla_model.REDUCE_SUM, tensor, 1.0, 0, size) for tensor in inputs]


CALLS: dict[str, Callable[[Tensors, int], Tensors]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
}


def counts(found: LoweredCollective, one_element: bool, size: int) -> list[int]:
    """Elements of each operand that a call of xm needs to become `found`, as equal as they can be.

    The census has sums over operands only, and leaves xm's token out, which the call adds by itself.

    Args:
      found: A collective of the census.
      one_element: As few as the collective can carry.
      size: Ranks.
    """
    item = torch.finfo(_DTYPES[found.dtype]).bits // 8
    total, operands = found.operand_bytes // item, found.operands
    least = size if found.opcode == "reduce-scatter" else 1
    if one_element:
        return [least] * operands
    units = total // least
    return [(units // operands + (place < units % operands)) * least for place in range(operands)]


class Step:
    """A program of collectives over all lanes; see `strategy.ParallelStep` on arms without compute.

    Raises:
      UnsupportedError: The schedule has a collective that lanes cannot repeat.
    """

    def __init__(self, ranks: lanes.Lanes, kept: dumps.Dumps, asked: request.Request) -> None:
        for found in asked.schedule:
            if found.opcode not in CALLS or found.dtype not in _DTYPES:
                raise errors.UnsupportedError(f"torch_xla's lanes do not repeat {found.opcode} of {found.dtype}")
            if found.groups and len(found.groups) > 1:
                raise errors.UnsupportedError(f"torch_xla's lanes repeat no {found.opcode} over groups of ranks")
        self._lanes, self._asked, self._dumps = ranks, asked, kept
        self._key = repr(asked).encode()
        self._inputs: dict[int, list[Tensors]] = {}
        self._outputs: dict[int, list[Tensors]] = {}
        ranks.each(self._put)
        ranks.wait()
        self.compile_times = first_runs.compiled(self, kept, self._key)

    def _put(self, lane: int) -> None:
        device, one = self._lanes.devices[lane], self._asked.communication == "alone_token"
        self._inputs[lane] = [
            [torch.zeros(n, dtype=_DTYPES[found.dtype]).to(device) for n in counts(found, one, self._asked.num_ranks)]
            for found in self._asked.schedule
        ]
        lanes.launch()

    def first(self, index: int) -> None:
        """Compiled once."""
        self._lanes.led(self._launch)

    def launch(self, index: int) -> None:
        """On every lane."""
        self._lanes.each(self._launch)

    def _launch(self, lane: int) -> None:
        calls = zip(self._asked.schedule, self._inputs[lane], strict=True)
        self._outputs[lane] = [CALLS[found.opcode](inputs, self._asked.num_ranks) for found, inputs in calls]
        lanes.launch()

    def run(self, index: int) -> None:
        """Launches the collectives; returns when the first rank's are launched."""
        self.launch(index)

    def wait(self) -> None:
        """Waits for lanes and devices."""
        self._lanes.wait()

    def synchronize(self) -> None:
        """Waits for lanes and devices."""
        self._lanes.wait()

    def communications(self) -> dict[str, Any]:
        """Optimised HLO, from XLA's own dump.

        Raises:
          UnsupportedError: The user has XLA write its dumps elsewhere.
        """
        text = self._dumps.text(self._key)
        if text is None:
            raise errors.UnsupportedError(f"the HLO of the collectives alone is where {dumps.OPTION} of XLA_FLAGS says")
        return {"source": "hlo", "text": text, "optimised": True}

    def close(self) -> None:
        """Frees the buffers."""
        self._lanes.wait()
        self._inputs.clear()
        self._outputs.clear()
