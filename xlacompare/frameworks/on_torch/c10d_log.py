"""What torch.distributed really ran, by the record of the library underneath, not by what was asked for.

gloo, nccl and torch's own mpi backend report their operations to torch.profiler ("gloo:all_reduce" with the shape and
type of what went in); our MPI backend keeps a log of its MPI calls. So a reduce_scatter over gloo shows as the
all_reduce of the whole input that it is (torch 2.9.1; pytorch/pytorch#149869).

Each rank's record has its own part only: its group, the peers of its transfers. The transfers of a permutation are put
together from all ranks.
"""

from __future__ import annotations

import json
import math
import pathlib
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch.autograd import profiler

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import census


class _Runs(Protocol):
    def run(self, index: int) -> None: ...
    def synchronize(self) -> None: ...


# Name in the library's record -> opcode (XLA's names, see `LoweredCollective`).
_OPCODES = {
    "all_reduce": "all-reduce",
    "allreduce": "all-reduce",
    "MPI_Allreduce": "all-reduce",
    "all_gather": "all-gather",
    "_all_gather_base": "all-gather",
    "_allgather_base": "all-gather",
    "MPI_Allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "MPI_Reduce_scatter_block": "reduce-scatter",
    "all_to_all": "all-to-all",
    "all_to_allv": "all-to-all",
    "MPI_Alltoall": "all-to-all",
    "broadcast": "collective-broadcast",
    "MPI_Bcast": "collective-broadcast",
    "barrier": "barrier",
    "MPI_Barrier": "barrier",
    "send": "send",
    "MPI_Isend": "send",
    "recv": "recv",
    "MPI_Irecv": "recv",
}

# Element types: torch's names, those of the profiler's traces, and c10d's.
_TYPES = {
    "f32": ("float", "Float", "torch.float32"),
    "f64": ("double", "Double", "torch.float64"),
    "bf16": ("c10::BFloat16", "BFloat16", "torch.bfloat16"),
    "f16": ("c10::Half", "Half", "torch.float16"),
    "s32": ("int", "Int", "torch.int32"),
    "u8": ("unsigned char", "Byte", "torch.uint8"),
}
_XLA_TYPE = {name: ours for ours, names in _TYPES.items() for name in names}
_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "s32": 4, "u8": 1}


def of_one_run(step: _Runs, request: requests.Request, group: dist.ProcessGroup) -> dict[str, Any]:
    """Runs the step once more, untimed, and reads the record; see `CollectiveStep.lowered`."""
    members = tuple(dist.get_process_group_ranks(group))
    if hasattr(group, "log"):
        source, found = "mpi", _of_mpi(step, group)
    else:
        source, found = "c10d", _of_profiler(step)
    ops = [_named(op, request, members) for op in _joined(found, members, dist.get_rank(group))]
    if request.collective == "ppermute":
        ops = _of_all_ranks(ops, group)
    return {"source": source, "ops": [op.to_dict() for op in ops]}


def of_step(step: _Runs, group: dist.ProcessGroup) -> dict[str, Any]:
    """Runs a training step over a group once more, untimed; its collectives in the order in which they began.

    What reduces, sums: no strategy asks for anything else.
    """
    members = tuple(dist.get_process_group_ranks(group))
    source, found = ("mpi", _of_mpi(step, group)) if hasattr(group, "log") else ("c10d", _of_profiler(step))
    ops = []
    for op in _joined(found, members, dist.get_rank(group)):
        reduces = op.opcode in ("all-reduce", "reduce-scatter") and not op.reduction
        ops.append({**op.to_dict(), "reduction": "sum" if reduces else op.reduction})
    return {"source": source, "ops": ops}


def _of_all_ranks(ops: list[census.LoweredCollective], group: Any) -> list[census.LoweredCollective]:
    """One "send-recv" with the pairs of all ranks and the bytes of the rank that moves most; [] if none moves any."""
    mine = [op.to_dict() for op in ops]
    if hasattr(group, "comm"):
        gathered = type(group).gather_all(mine)
    else:
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
    every = [census.LoweredCollective.from_dict(values) for part in gathered for values in part]
    if not every:
        return []
    values = {name: max(getattr(op, name) for op in every) for name in ("operand_bytes", "result_bytes", "source")}
    pairs = tuple(sorted({pair for op in every for pair in op.pairs}))
    return [census.LoweredCollective.from_dict({**every[0].to_dict(), **values, "pairs": pairs, "groups": ()})]


def _named(
    op: census.LoweredCollective, request: requests.Request, members: tuple[int, ...]
) -> census.LoweredCollective:
    """The op with its group (none: all ranks) and, where the record names none, the reduction that was asked for."""
    values = op.to_dict()
    if len(members) < meshes.size(request.mesh):
        values["groups"] = (members,)
    if op.opcode in ("all-reduce", "reduce-scatter") and not op.reduction:
        values["reduction"] = "sum" if request.reduction == "mean" else request.reduction
    return census.LoweredCollective.from_dict(values)


def _of_mpi(step: _Runs, group: Any) -> list[census.LoweredCollective]:
    group.log = []
    try:
        step.run(0)
    finally:
        calls, group.log = group.log, None
    return [
        census.LoweredCollective(
            opcode=_OPCODES.get(call.function, call.function),
            dtype=_XLA_TYPE[str(call.dtype)],
            operand_bytes=call.sent * call.dtype.itemsize,
            result_bytes=call.received * call.dtype.itemsize,
            reduction=call.reduction,
            # The peer is a rank of the group until `_joined` makes a pair of global ranks.
            pairs=((call.peer, call.peer),) if call.peer >= 0 else (),
            source=f"{call.function} {call.note}".strip(),
        )
        for call in calls
    ]


# gloo's thread wakes the caller before it closes its record: one that is open when the profile ends is not in it, and
# ranks would disagree about what ran (torch 2.9.1).
_CLOSED_S = 0.05


def _of_profiler(step: _Runs) -> list[census.LoweredCollective]:
    """One run under the profiler; its trace is the public format.

    `torch.autograd.profiler`: 3 ms a time, where `torch.profiler` first imports for seconds (2.9.1).
    """
    with profiler.profile(use_cpu=True, record_shapes=True) as profile:
        step.run(0)
        step.synchronize()
        time.sleep(_CLOSED_S)
    with tempfile.TemporaryDirectory(prefix="xlacompare_") as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return of_trace(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def of_trace(events: Iterable[Mapping[str, Any]]) -> list[census.LoweredCollective]:
    """Communication among the events of a profiler's trace, in the order of time.

    Two forms: gloo's and mpi's operations carry the shape of what goes in; NCCL's are "record_param_comms" events with
    the numbers of elements on both sides. `pairs` holds the peer of a transfer twice, as a rank of the group.
    """
    found: list[census.LoweredCollective] = []
    peers = _peers(events)
    for event in sorted((e for e in events if "ts" in e and "dur" in e), key=lambda e: e["ts"]):
        library, _, name = event["name"].partition(":")
        args = event.get("args", {})
        if library in ("gloo", "mpi") and name:
            found.append(_shaped(library, name, args, peers))
        elif event["name"] == "record_param_comms" and args.get("Collective name") not in (None, "wait", "init"):
            found.append(_counted(args, peers))
    return _as_called(found, events)


def _as_called(
    found: list[census.LoweredCollective], events: Iterable[Mapping[str, Any]]
) -> list[census.LoweredCollective]:
    """In the order of c10d's calls, which all ranks share: gloo's two threads may begin two works in another.

    A call and its work are known by the number of elements; works that no call explains come last.
    """
    waiting, ordered = list(found), []
    calls = (e for e in events if str(e.get("name", "")).startswith("c10d::") and "ts" in e)
    for call in sorted(calls, key=lambda event: event["ts"]):
        sizes = {math.prod(shape) for shape in _shapes(call.get("args", {}).get("Input Dims", []))}
        for op in waiting:
            if op.operand_bytes // _BYTES.get(op.dtype, 1) in sizes:
                waiting.remove(op)
                ordered.append(op)
                break
    return ordered + waiting


def _shapes(dims: list[Any]) -> list[list[int]]:
    """Shapes among a call's arguments, which hold tensors and lists of tensors; [] is no tensor."""
    if dims and all(isinstance(item, int) for item in dims):
        return [dims]
    return [shape for item in dims if isinstance(item, list) for shape in _shapes(item)]


def _peers(events: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Peers of c10d's sends and receives in their order: the dispatcher's third argument."""
    names = {"c10d::send": "send", "c10d::recv_": "recv"}
    peers: dict[str, list[int]] = {"send": [], "recv": []}
    for event in sorted((e for e in events if e.get("name") in names and "ts" in e), key=lambda e: e["ts"]):
        peers[names[event["name"]]].append(int(event["args"]["Concrete Inputs"][2]))
    return peers


def _shaped(library: str, name: str, args: Mapping[str, Any], peers: dict[str, list[int]]) -> census.LoweredCollective:
    shapes, types = args.get("Input Dims", []), args.get("Input type", [])
    dtype = _XLA_TYPE.get(types[0], types[0]) if types else "u8"
    count = sum(math.prod(shape) for shape in shapes if shape)
    nbytes = count * _BYTES.get(dtype, 1) if types else 0
    # An all-gather's record has the input alone; -1: n times that, filled in by `_joined`.
    result = -1 if name == "all_gather" else nbytes
    peer = peers[name].pop(0) if peers.get(name) else None
    return census.LoweredCollective(
        opcode=_OPCODES.get(name, name.replace("_", "-")),
        dtype=dtype,
        operand_bytes=0 if name == "recv" else nbytes,
        result_bytes=0 if name == "send" else result,
        operands=max(1, len(shapes)),
        pairs=() if peer is None else ((peer, peer),),
        source=f"{library}:{name}",
    )


def _counted(args: Mapping[str, Any], peers: dict[str, list[int]]) -> census.LoweredCollective:
    name = args["Collective name"]
    dtype = _XLA_TYPE.get(args.get("dtype", ""), str(args.get("dtype", "")))
    item = _BYTES.get(dtype, 1)
    sent, received = (int(args.get(f"{side} msg nelems", 0)) * item for side in ("In", "Out"))
    peer = peers[name].pop(0) if peers.get(name) else None
    return census.LoweredCollective(
        opcode=_OPCODES.get(name, name.replace("_", "-")),
        dtype=dtype,
        operand_bytes=0 if name == "recv" else sent,
        result_bytes=0 if name == "send" else received,
        pairs=() if peer is None else ((peer, peer),),
        source=f"nccl:{name}",
    )


def _joined(
    found: list[census.LoweredCollective], members: tuple[int, ...], place: int
) -> list[census.LoweredCollective]:
    """Sends and receives as one "send-recv" of global ranks; sizes of all-gathers filled in."""
    transfers = [op for op in found if op.opcode in ("send", "recv")]
    ops = []
    for op in found:
        if op not in transfers:
            result = op.operand_bytes * len(members) if op.result_bytes < 0 else op.result_bytes
            ops.append(census.LoweredCollective.from_dict({**op.to_dict(), "result_bytes": result}))
    if not transfers:
        return ops
    pairs = []
    for op in transfers:
        for peer, _ in op.pairs:
            pair = (place, peer) if op.opcode == "send" else (peer, place)
            pairs.append((members[pair[0]], members[pair[1]]))
    joined = census.LoweredCollective(
        opcode="send-recv",
        dtype=transfers[0].dtype,
        operand_bytes=sum(op.operand_bytes for op in transfers),
        result_bytes=sum(op.result_bytes for op in transfers),
        pairs=tuple(pairs),
        asynchronous=True,
        source=", ".join(op.source for op in transfers),
    )
    return [*ops, joined]
