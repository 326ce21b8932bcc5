"""Judges what ran against what was asked: was the collective removed, replaced, merged, promoted, or sent elsewhere?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.core.census import LoweredCollective

# Collective -> opcodes that are it.
OPCODES = {
    "all_reduce": ("all-reduce",),
    "all_gather": ("all-gather",),
    "reduce_scatter": ("reduce-scatter",),
    "all_to_all": ("all-to-all", "ragged-all-to-all"),
    "ppermute": ("collective-permute", "send-recv"),
    "broadcast": ("collective-broadcast", "broadcast"),
    "barrier": ("barrier",),
}
# Libraries' other spellings of an opcode (c10d, MPI, NCCL).
_SPELLINGS = {
    "all-reduce": ("allreduce", "all-reduce-coalesced", "allreduce-coalesced"),
    "all-gather": ("allgather", "all-gather-into-tensor", "allgather-base", "all-gather-base"),
    "reduce-scatter": ("reduce-scatter-tensor", "reduce-scatter-block", "reducescatter", "reduce-scatter-base"),
    "all-to-all": ("alltoall", "all-to-all-single", "alltoall-base", "all-to-all-base"),
    "collective-permute": ("permute",),
    "send-recv": ("sendrecv", "batch-isend-irecv", "coalesced-isend-irecv", "send", "recv", "isend", "irecv"),
    "broadcast": ("bcast",),
}
_CANONICAL = {spelling: opcode for opcode, spellings in _SPELLINGS.items() for spelling in spellings}
# (asked, ran instead) -> what that means.
_REPLACED = {
    ("all_gather", "all-reduce"): "pad + all-reduce of the whole output: twice the bytes, and additions of zeros "
    "(torch_xla with pin_layout=True does so, pytorch/xla#3568)",
    ("reduce_scatter", "all-reduce"): "all-reduce of everything, then a slice: twice the bytes",
    ("broadcast", "all-reduce"): "all-reduce of a buffer that is zero but at the root: twice the bytes, and additions",
    ("all_reduce", "reduce-scatter"): "reduce-scatter, then all-gather: the same bytes in two operations",
    ("all_reduce", "all-gather"): "all-gather, then local additions",
    ("all_to_all", "send-recv"): "a transfer per pair of ranks",
    ("barrier", "all-reduce"): "",  # the usual way where there is no barrier; nothing to tell
}
_XLA_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "s32": "int32"}
# Unsigned or raw carriers of the same bits, as MPI has no bfloat16.
_CARRIER_BYTES = {"u8": 1, "s8": 1, "byte": 1, "u16": 2, "s16": 2, "u32": 4, "u64": 8, "s64": 8}
_REDUCTIONS = {"": "", "add": "sum", "avg": "mean", "maximum": "max", "minimum": "min"}


@dataclasses.dataclass(frozen=True)
class Judged:
    """What is to be said of the operations that ran.

    Attributes:
      findings: One line each, begun by its kind: "removed", "not run", "other opcode", "merged", "repeated", "slices",
        "promoted", "carrier", "bytes", "groups", "pairs", "reduction", "trips".
      wire_bytes: Bytes that a rank must send at the least for what ran, from lowered bytes, opcodes and groups: what
        busbw counts. None where nothing is known of the bytes.
      removed: Nothing ran where something had to: the time is not that of a collective.
    """

    findings: list[str]
    wire_bytes: float | None
    removed: bool


def judge(request: requests.Request, ops: Sequence[LoweredCollective]) -> Judged:
    """Compares the operations of one run with the request.

    Args:
      request: What was asked.
      ops: What ran, all operations of one run in the program's order. Empty: nothing was communicated.
    """
    if not _must_communicate(request):
        extra = [f"repeated: {_count(ops)} ran where nothing needs to be sent"] if ops else []
        return Judged(extra, _wire_bytes(request, ops), removed=False)
    ran = [op for op in ops if op.trips != 0]
    findings = [f"not run: {canonical(op.opcode)} stands in {op.computation}, which runs 0 times" for op in ops
                if op.trips == 0]  # fmt: skip
    if not ran:
        findings.insert(0, f"removed: no {OPCODES[request.collective][0]}, nor any other, is in what ran")
        return Judged(findings, 0.0, removed=True)
    findings += _opcode_findings(request, ran)
    for op in ran:
        findings += [finding for rule in _RULES for finding in rule(request, op)]
    return Judged(list(dict.fromkeys(findings)), _wire_bytes(request, ran), removed=False)


def canonical(opcode: str) -> str:
    """XLA's spelling of an opcode, without "-start", whichever library named it."""
    name = opcode.lower().strip("_").replace("_", "-").removesuffix("-start")
    return _CANONICAL.get(name, name)


def wire_bytes(op: LoweredCollective, world: int) -> float:
    """Bytes that one rank must send at the least for one run of an operation: nccl-tests' bus factors, by opcode.

    Args:
      op: The operation.
      world: Ranks in all, the group where the operation names none.
    """
    n = len(op.groups[0]) if op.groups else world
    if n < 2:
        return 0.0
    part = (n - 1) / n
    match canonical(op.opcode):
        case "all-reduce":
            return 2 * part * op.operand_bytes
        case "all-gather":
            return part * op.result_bytes
        case "collective-permute" | "send-recv":
            return 0.0 if op.pairs and all(a == b for a, b in op.pairs) else float(op.operand_bytes)
        case "collective-broadcast" | "broadcast":
            return float(op.operand_bytes)
        case "barrier":
            return 0.0
    return part * op.operand_bytes


def _wire_bytes(request: requests.Request, ops: Sequence[LoweredCollective]) -> float | None:
    if any(op.trips is None for op in ops):
        return None
    world = meshes.size(request.mesh)
    return float(sum(wire_bytes(op, world) * (op.trips or 0) for op in ops))


def _must_communicate(request: requests.Request) -> bool:
    if meshes.group_size(request.mesh, request.axis) == 1:
        return False
    return request.collective != "ppermute" or any(a != b for a, b in request.pairs)


def _opcode_findings(request: requests.Request, ops: Sequence[LoweredCollective]) -> list[str]:
    """Other opcodes than the one asked for, and more operations than one."""
    wanted = OPCODES[request.collective]
    found = []
    for name in dict.fromkeys(canonical(op.opcode) for op in ops):
        meaning = _REPLACED.get((request.collective, name), "not what was asked for")
        if name not in wanted and meaning:
            found.append(f"other opcode: {name} for {request.collective}: {meaning}")
    right = [op for op in ops if canonical(op.opcode) in wanted]
    # A permutation through a library is one transfer per pair.
    if len(right) > 1 and canonical(right[0].opcode) != "send-recv":
        found.append(f"repeated: {len(right)} times {canonical(right[0].opcode)} where 1 was asked for")
    return found


def _operand_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """Merged with another, or split."""
    if op.operands < 2:
        return []
    name, n = canonical(op.opcode), meshes.group_size(request.mesh, request.axis)
    if name == "all-to-all" and op.operands == n:
        return [f"slices: the input is cut into {n} operands before the all-to-all and joined after it (copies)"]
    return [f"merged: {name} of {op.operands} operands, combined with another's"]


def _dtype_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """Another type on the wire, and a number of bytes that does not follow from the type."""
    if request.collective == "barrier":
        return []
    asked, wire = request.dtype, _XLA_NAMES.get(op.dtype, op.dtype)
    item = table.ITEM_BYTES.get(wire, _CARRIER_BYTES.get(wire))
    found = []
    if wire != asked and wire in _CARRIER_BYTES:
        found.append(f"carrier: {asked} travels as {wire}")
        item = table.ITEM_BYTES[asked]
    elif wire != asked or op.promoted_from:
        ratio = (item or 0) / table.ITEM_BYTES[asked]
        found.append(f"promoted: {asked} travels as {wire}, {ratio:g} times the bytes")
    wanted = request.count * (item or 0)
    comparable = wanted and canonical(op.opcode) in OPCODES[request.collective] and op.operands < 2
    if comparable and op.operand_bytes != wanted:
        found.append(f"bytes: {op.operand_bytes} bytes go in where the request has {wanted}")
    return found


def _group_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """Other ranks, or the same ranks in another order (which the values would show too)."""
    if canonical(op.opcode) in ("collective-permute", "send-recv"):
        return []
    asked = meshes.groups(request.mesh, request.axis)
    ran = op.groups or (tuple(range(meshes.size(request.mesh))),)
    if set(ran) <= set(asked):  # a library's log knows its own group only
        return []
    if {frozenset(group) for group in ran} == {frozenset(group) for group in asked}:
        return [f"groups: {_text(ran)}, the order of the ranks is not that of {_text(asked)}"]
    return [f"groups: {_text(ran)} where {_text(asked)} was asked for"]


def _pair_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """Another permutation. A self edge may be a local copy; transfers that name no pair say nothing."""
    if request.collective != "ppermute" or canonical(op.opcode) != "collective-permute":
        return []
    asked = {(a, b) for a, b in meshes.global_pairs(request.mesh, request.axis, request.pairs) if a != b}
    ran = {(a, b) for a, b in op.pairs if a != b}
    return [] if ran == asked else [f"pairs: {_text(sorted(ran))} where {_text(sorted(asked))} was asked for"]


def _reduction_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """Another reduction; a mean may be a sum that is divided afterwards."""
    ran = _REDUCTIONS.get(op.reduction.lower(), op.reduction.lower())
    legal = {"mean": ("sum", "mean", "")}.get(request.reduction, (request.reduction, ""))
    if not request.reduction or ran in legal:
        return []
    return [f"reduction: {ran} where {request.reduction} was asked for"]


def _trip_findings(request: requests.Request, op: LoweredCollective) -> list[str]:
    """In a loop."""
    if op.trips == 1:
        return []
    times = "an unknown number of" if op.trips is None else op.trips
    return [f"trips: {canonical(op.opcode)} runs {times} times in {op.computation}"]


_RULES = (
    _operand_findings, _dtype_findings, _group_findings, _pair_findings, _reduction_findings, _trip_findings,
)  # fmt: skip


def _count(ops: Sequence[LoweredCollective]) -> str:
    return ", ".join(canonical(op.opcode) for op in ops)


def _text(groups: Sequence[tuple[int, ...]]) -> str:
    return "".join("{" + ",".join(map(str, group)) + "}" for group in groups)
