"""Each collective of the table as a prepared call of torch.distributed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from xlacompare.collectives import request as requests

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
}

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # then divided: ReduceOp.AVG is not in every backend
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}

Call = Callable[[], None]


@dataclasses.dataclass
class Prepared:
    """A collective with its buffers.

    Attributes:
      run: The copy that the library needs (where it works in place only), the call, and the wait for every Work.
      output: What the call fills.
      refill: Puts the input back (in place); does nothing out of place.
      copy: The copy that `run` contains, alone; None where it contains none.
    """

    run: Call
    output: torch.Tensor
    refill: Call
    copy: Call | None = None


@dataclasses.dataclass(frozen=True)
class _Buffers:
    """Input and output (the same tensor in place), the group, its size and this rank's place in it."""

    input: torch.Tensor
    output: torch.Tensor
    request: requests.Request
    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def place(self) -> int:
        return dist.get_rank(self.group)


def make(request: requests.Request, array: np.ndarray, group: dist.ProcessGroup, device: torch.device) -> Prepared:
    """Puts the input on the device and prepares the call.

    Args:
      request: The collective; one that `transports.unsupported` accepts.
      array: (count,) this rank's input; bfloat16 as ml_dtypes' type or as float32.
      group: This rank's group.
      device: Where the buffers go.
    """
    original = to_torch(array, request.dtype).to(device)
    if request.placement == "in_place":
        buffer = original.clone()
        prepared = _BUILDERS[request.collective](_Buffers(buffer, buffer, request, group))
        prepared.refill = lambda: _copy(buffer, original)
        return prepared
    # Not empty(): a collective that wrote nothing must not find an old right answer in recycled memory.
    output = torch.full((_output_count(request, dist.get_world_size(group)),), 111, dtype=original.dtype, device=device)
    return _BUILDERS[request.collective](_Buffers(original, output, request, group))


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A CPU tensor of its own memory; ml_dtypes' bfloat16 goes by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array)).to(DTYPES[dtype])


def wait(works: Any) -> None:
    """Waits for whatever torch.distributed returned: nothing, a Work, or several.

    Every call goes through here, so that no Work is left unwaited: DeepSpeed's benchmark does leave them with
    `--async-op`, and printed 510 GB/s for an all-reduce that had not happened.
    """
    if works is None:
        return
    for work in works if isinstance(works, Iterable) else (works,):
        work.wait()


def _output_count(request: requests.Request, size: int) -> int:
    if request.collective == "all_gather":
        return request.count * size
    return request.count // size if request.collective == "reduce_scatter" else request.count


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _nothing() -> None:
    pass


def _then_mean(b: _Buffers, call: Call) -> Call:
    """Divides what `call` leaves in the output, where the reduction is the mean."""
    if b.request.reduction != "mean":
        return call

    def run() -> None:
        call()
        b.output.div_(b.size)

    return run


def _in_place_only(b: _Buffers, call: Call, reads_input: bool = True) -> Prepared:
    """A call that works on the output buffer, preceded by the copy of the input where that is another buffer."""
    if b.input is b.output or not reads_input:
        return Prepared(call, b.output, _nothing)

    def run() -> None:
        b.output.copy_(b.input)
        call()

    return Prepared(run, b.output, _nothing, lambda: _copy(b.output, b.input))


def _all_reduce(b: _Buffers) -> Prepared:
    op = _OPERATIONS[b.request.reduction]
    return _in_place_only(b, _then_mean(b, lambda: wait(dist.all_reduce(b.output, op, group=b.group))))


def _broadcast(b: _Buffers) -> Prepared:
    """The root alone copies: the others' buffers are overwritten."""
    root = b.request.root
    call = lambda: wait(dist.broadcast(b.output, group=b.group, group_src=root))  # noqa: E731
    return _in_place_only(b, call, reads_input=b.place == root)


def _all_gather(b: _Buffers) -> Prepared:
    return Prepared(lambda: wait(dist.all_gather_into_tensor(b.output, b.input, group=b.group)), b.output, _nothing)


def _reduce_scatter(b: _Buffers) -> Prepared:
    op = _OPERATIONS[b.request.reduction]
    call = lambda: wait(dist.reduce_scatter_tensor(b.output, b.input, op, group=b.group))  # noqa: E731
    return Prepared(_then_mean(b, call), b.output, _nothing)


def _all_to_all(b: _Buffers) -> Prepared:
    return Prepared(lambda: wait(dist.all_to_all_single(b.output, b.input, group=b.group)), b.output, _nothing)


def _ppermute(b: _Buffers) -> Prepared:
    """Point-to-point transfers. A rank without a source fills zeros by itself: batch_isend_irecv would leave the buffer
    as it was. A self edge is a local copy: gloo has no connection of a rank to itself and raises.
    """
    targets = [destination for source, destination in b.request.pairs if source == b.place]
    sources = [source for source, destination in b.request.pairs if destination == b.place]
    transfers = [_p2p(dist.isend, b.input, peer, b) for peer in targets if peer != b.place]
    transfers += [_p2p(dist.irecv, b.output, peer, b) for peer in sources if peer != b.place]
    copies, fills = b.place in sources, not sources

    def run() -> None:
        if fills:
            b.output.zero_()
        elif copies:
            b.output.copy_(b.input)
        if transfers:
            wait(dist.batch_isend_irecv(transfers))

    return Prepared(run, b.output, _nothing)


def _p2p(operation: Any, tensor: torch.Tensor, peer: int, b: _Buffers) -> dist.P2POp:
    return dist.P2POp(operation, tensor, group=b.group, group_peer=peer)


def _barrier(b: _Buffers) -> Prepared:
    return Prepared(lambda: wait(dist.barrier(group=b.group)), b.output, _nothing)


_BUILDERS: dict[str, Callable[[_Buffers], Prepared]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "broadcast": _broadcast,
    "barrier": _barrier,
}
