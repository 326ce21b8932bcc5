"""A process group of torch.distributed that makes a communication arm: it talks through another group, or not at all.

The strategies (DDP, FSDP2, our tensor parallel) are given such a group and otherwise run as they are, so that all that
they do round a collective stays: copies into buckets, divisions, waits, streams. `real` runs without one, on the group
that the user has. A call costs about 5 us of Python here (torch 2.9.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NAME = "xlacompare_arm"
ARMS = ("elided", "token", "serial")


class Handle(dist.Work):
    """What c10d's users wait for: nothing, or the work of the group that talks."""

    def __init__(self, inner: dist.Work | None, outputs: Any) -> None:
        """Args:
        inner: Work that may still run; None: all is done.
        outputs: The whole tensors, which DDP takes from the future; kept alive until the end of the work.
        """
        super().__init__()
        self._inner, self._outputs = inner, outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True if self._inner is None else self._inner.wait()

    def is_completed(self) -> bool:
        return True if self._inner is None else self._inner.is_completed()

    def get_future(self) -> torch.futures.Future:
        if self._inner is not None:
            return self._inner.get_future().then(lambda _: self._outputs)
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(self._outputs)
        return done


class ArmGroup(dist.ProcessGroup):
    """c10d's calls under one communication arm.

    Attributes:
      arm: One of `ARMS`.
    """

    def __init__(self, inner: dist.ProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.arm = "serial"
        self._inner, self._rank, self._size, self._name = inner, rank, size, NAME

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        """The base class keeps the name in its backends, and this group has none (2.9.1)."""
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any = None) -> dist.Work:
        """Locally: the operand, of a mean divided. The token is its first element, reduced where it lies."""
        given = options if options is not None else dist.AllreduceOptions()
        return self._talk(
            lambda: self._inner.allreduce(list(tensors), given),
            lambda: self._inner.allreduce([_first(tensor) for tensor in tensors], given),
            lambda: [_mean(t, t, self._size) for t in tensors if given.reduceOp == dist.ReduceOp.AVG],
            list(tensors),
        )

    def broadcast(self, tensors: Sequence[torch.Tensor], options: Any) -> dist.Work:
        """Locally: the operand."""
        return self._talk(
            lambda: self._inner.broadcast(list(tensors), options),
            lambda: self._inner.broadcast([_first(tensor) for tensor in tensors], options),
            lambda: None,
            list(tensors),
        )

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> dist.Work:
        """Locally: a tile of the operand. The token has a buffer of its own."""
        token = output.new_empty(self._size) if self.arm == "token" else None
        return self._talk(
            lambda: dist.all_gather_into_tensor(output, input, self._inner, async_op=True),
            lambda: dist.all_gather_into_tensor(token, _first(input), self._inner, async_op=True),
            lambda: _tile(output.view(self._size, -1), input.view(-1)),
            [output, token],
        )

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], options: Any = None
    ) -> dist.Work:
        """Outside of steps only (DDP's constructor compares shapes): every rank has the same, so a tile will do."""
        for targets, tensor in zip(outputs, inputs, strict=True):
            for target in targets:
                target.copy_(tensor)
        return Handle(None, outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> dist.Work:
        """Locally: the slice of the operand, of a mean divided. The token is one element for each rank."""
        token = None
        if self.arm == "token":
            token = (output.new_empty(1), _first(input).expand(self._size).contiguous())
        own = input.view(self._size, -1)[self._rank]
        return self._talk(
            lambda: dist.reduce_scatter_tensor(output, input, options.reduceOp, self._inner, async_op=True),
            lambda: dist.reduce_scatter_tensor(*token, options.reduceOp, self._inner, async_op=True),
            lambda: _mean(output.view(-1), own, self._size if options.reduceOp == dist.ReduceOp.AVG else 1),
            [output, input, token],
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        """Outside of steps only."""
        self._inner.barrier().wait()
        return Handle(None, None)

    def _talk(
        self,
        whole: Callable[[], dist.Work],
        token: Callable[[], dist.Work],
        local: Callable[[], Any],
        outputs: Any,
    ) -> dist.Work:
        if self.arm == "serial":
            # What was computed is done when torch calls us; nothing is computed until we return.
            whole().wait()
            return Handle(None, outputs)
        local()
        return Handle(token() if self.arm == "token" else None, outputs)


def _tile(rows: torch.Tensor, operand: torch.Tensor) -> None:
    """The operand may be one of the rows already, as FSDP2 has it."""
    for row in rows:
        if row.data_ptr() != operand.data_ptr():
            row.copy_(operand)


def _mean(output: torch.Tensor, operand: torch.Tensor, count: int) -> None:
    if count > 1:
        torch.div(operand, count, out=output)
    else:
        output.copy_(operand)


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[:1] if not tensor.is_contiguous() else tensor.view(-1)[:1]


def group_of(arm: str) -> dist.ProcessGroup:
    """The group of an arm over all ranks; every rank calls this in the same order.

    Args:
      arm: "real" gives the world itself.
    """
    world = dist.group.WORLD
    assert world is not None
    if arm == "real":
        return world
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    made = dist.new_group(backend=NAME)
    assert isinstance(made, ArmGroup)
    made.arm = arm
    return made


def _create(options: Any, backend_options: Any) -> ArmGroup:
    """Called by torch.distributed."""
    return ArmGroup(dist.group.WORLD, options.group_rank, options.group_size)


def close(group: dist.ProcessGroup) -> None:
    """Forgets a group that `group_of` made; the world stays."""
    if group is not dist.group.WORLD:
        dist.destroy_process_group(group)
