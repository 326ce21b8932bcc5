"""Collectives of a program that has been read."""

from __future__ import annotations

from xlacompare.core import census
from xlacompare.graph import collective_shape, hlo_text, modules

OPCODES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"),
    "ragged-all-to-all",
}
REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "and", "or": "or"}


def of_module(module: modules.Module) -> list[census.LoweredCollective]:
    """Collectives of a program, through called computations; a start/done pair is one."""
    return [_lowered(module, visit) for visit in modules.walk(module) if _base(visit.item.opcode) in OPCODES]


def _base(opcode: str) -> str:
    return opcode.removesuffix("-start")


def _lowered(module: modules.Module, visit: modules.Visit) -> census.LoweredCollective:
    item, home = visit.item, visit.computation
    groups = hlo_text.groups(item.attributes.get("replica_groups", ""))
    passed = collective_shape.passed(home, item)
    given, got = passed.operands, passed.results
    return census.LoweredCollective(
        opcode=_base(item.opcode),
        dtype=given[0].dtype if given else "",
        operand_bytes=sum(array.bytes for array in given),
        result_bytes=sum(array.bytes for array in got),
        operands=collective_shape.buffers(item, len(given), groups),
        groups=groups,
        pairs=hlo_text.pairs(item.attributes.get("source_target_pairs", "")),
        reduction=_reduction(module, item),
        promoted_from=collective_shape.promoted_from(module, home, item),
        asynchronous=item.opcode.endswith("-start") or "async-start" in visit.inside,
        computation="main" if visit.computation.name == module.entry else visit.computation.name,
        trips=visit.trips,
        source=" + ".join(filter(None, ("pad" if collective_shape.padded(home, item) else "", item.source))),
    )


def _reduction(module: modules.Module, item: modules.Instruction) -> str:
    """Meaning of the reducer: its root, seen through the converts of a promoted one."""
    reducer = item.attributes.get("to_apply", "").lstrip("%")
    if not reducer:
        return ""
    computation = module.computations[reducer]
    root = computation.root
    while root.opcode == "convert":
        root = computation.operands(root)[0]
    return REDUCTIONS.get(root.opcode, root.opcode)
