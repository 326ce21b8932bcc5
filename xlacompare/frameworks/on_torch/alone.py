"""The collectives of a step and nothing else: those of a schedule, in its order, each after the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch import c10d_log
from xlacompare.parallel import request

_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "s32": torch.int32,
    "u8": torch.uint8,
}
_REDUCTIONS = {"": dist.ReduceOp.SUM, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Step:
    """Calls of torch.distributed on buffers of zeros, which stay so; see `strategy.ParallelStep` for its methods."""

    compile_times = interface.CompileTimes(trace_s=0.0, lower_s=0.0, compile_s=0.0, note="no compiler")

    def __init__(self, asked: request.Request, group: dist.ProcessGroup, device: torch.device) -> None:
        """Args:
        asked: `schedule` says what to run; "alone_token" takes one element of each operand (of each rank's part).
        group: Of all ranks.
        device: Where the buffers go.

        Raises:
          UnsupportedError: The schedule holds what this class has no call for.
        """
        self._device, self._group = device, group
        least = asked.communication == "alone_token"
        items = [item for item in asked.schedule for _ in range(1 if item.trips is None else item.trips)]
        self._calls = [_call(item, group, device, least) for item in items]

    def run(self, index: int) -> None:
        """All of them once."""
        for call in self._calls:
            call()

    def synchronize(self) -> None:
        """Waits for the CUDA device; on the CPU every call has waited."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def communications(self) -> dict[str, Any]:
        """What one run made the library do, by its own record."""
        return c10d_log.of_step(self, self._group)

    def close(self) -> None:
        """Drops the buffers."""
        self._calls = []


def _call(item: LoweredCollective, group: dist.ProcessGroup, device: torch.device, least: bool) -> Callable[[], Any]:
    """One call, blocking."""
    if item.dtype not in _DTYPES or item.reduction not in _REDUCTIONS:
        raise errors.UnsupportedError(f"torch.distributed has no {item.opcode} {item.reduction} of {item.dtype} alone")
    if item.groups and len(item.groups[0]) != group.size():
        raise errors.UnsupportedError(f"{item.opcode} over groups {item.groups}: the schedule is run over all ranks")
    dtype, op = _DTYPES[item.dtype], _REDUCTIONS[item.reduction]

    def buffer(nbytes: int, parts: int = 1) -> torch.Tensor:
        return torch.zeros(parts if least else nbytes // dtype.itemsize, dtype=dtype, device=device)

    match item.opcode:
        case "all-reduce":
            whole = buffer(item.operand_bytes)
            return lambda: dist.all_reduce(whole, op, group=group)
        case "all-gather":
            part, whole = buffer(item.operand_bytes), buffer(item.result_bytes, group.size())
            return lambda: dist.all_gather_into_tensor(whole, part, group=group)
        case "reduce-scatter":
            whole, part = buffer(item.operand_bytes, group.size()), buffer(item.result_bytes)
            return lambda: dist.reduce_scatter_tensor(part, whole, op, group=group)
        case "all-to-all":
            given, got = buffer(item.operand_bytes, group.size()), buffer(item.result_bytes, group.size())
            return lambda: dist.all_to_all_single(got, given, group=group)
        case "collective-broadcast":
            whole = buffer(item.operand_bytes)
            return lambda: dist.broadcast(whole, group=group, group_src=0)
    raise errors.UnsupportedError(f"torch.distributed has no call for {item.opcode} alone")
