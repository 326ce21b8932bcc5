"""What the arms of a step over ranks did, held against each other: an arm that did something else has no time.

What an arm communicates is checked when it is built, in every launch; what it computes after the first launch's last
block. What cannot be known (no log, no parser) is said and not held against the cell.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from xlacompare import workloads
from xlacompare.collectives import lowering
from xlacompare.core import cell as cells
from xlacompare.core import census, work_gate
from xlacompare.core.census import LoweredCollective
from xlacompare.graph import client
from xlacompare.launch import collective_records
from xlacompare.parallel import table

ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4} | {
    "f64": 8, "s64": 8, "u64": 8,
}  # fmt: skip
# Operations whose operand is cut into a part for each rank, so that the least of them is an element for each; a library
# may reduce-scatter by an all-reduce of everything (gloo does).
CUT = ("reduce-scatter", "all-to-all", "all-reduce")
SAME_BYTES = ("serial", "alone")
TOKENS = ("token", "alone_token")


@dataclasses.dataclass
class Seen:
    """What one arm communicates.

    Attributes:
      record: {"source", "ops", "findings", "wire_bytes", "fingerprint", "problem"}.
      ops: The operations; None where they are not known.
      violation: What they should not be, for this arm; "".
    """

    record: dict[str, Any]
    ops: list[LoweredCollective] | None
    violation: str = ""


class Reader:
    """Reads and judges what arms communicate and compute."""

    def __init__(self, parser: client.Client) -> None:
        """`parser`: the child process that reads HLO and StableHLO."""
        self._parser, self._census = parser, collective_records.Census(parser)

    def communication(self, cell: cells.Cell, lowered: dict[str, Any] | None, real: Seen | None) -> Seen:
        """What an arm communicates, held against `real` under the same compiler where that is known."""
        made, ops = self._census.read(lowered)
        seen = Seen(made, ops)
        if ops is None:
            made["findings"] = [f"not checked: {made['problem']}"]
            return seen
        ran = _ran(ops)
        made["wire_bytes"] = _wire_bytes(ran, cell.mesh[0])
        made["findings"] = _findings(ran)
        known = _ran(real.ops) if real is not None and real.ops is not None else None
        seen.violation = _violation(cell.communication, ran, known, cell.mesh[0])
        return seen

    def work(self, answer: Mapping[str, Any], path: str) -> dict[str, Any]:
        """{"status": "ok" or "unsupported", "reason", "source", "findings", "census"} of a rank's answer.

        Args:
          answer: Of `parallel_bench.Bench.finish`.
          path: Where it left the program, where it counted nothing itself.
        """
        made = {"status": "unsupported", "reason": "the framework does not say", "findings": []}
        if not answer:
            return made
        counted = answer["census"]
        try:
            counted = counted or self._parser.ask("count_bytecode", path, answer["inputs"])
        except client.ProblemError as problem:
            return {**made, "reason": f"its program could not be read: {problem}"}
        return {**made, "status": "ok", "reason": "", "source": answer["source"], "census": counted}


def _ran(ops: Sequence[LoweredCollective]) -> list[LoweredCollective]:
    """Those that run and have somebody to talk to."""
    return [op for op in ops if op.trips != 0 and not (op.groups and len(op.groups[0]) < 2)]


def _wire_bytes(ops: Sequence[LoweredCollective], num_ranks: int) -> float | None:
    if any(op.trips is None for op in ops):
        return None
    return float(sum(lowering.wire_bytes(op, num_ranks) * (op.trips or 0) for op in ops))


def _findings(ops: Sequence[LoweredCollective]) -> list[str]:
    found = [f"trips: {op.opcode} stands in {op.computation}, run unknown times" for op in ops if op.trips is None]
    found += [f"promoted: {op.opcode} of {op.promoted_from} travels as {op.dtype}" for op in ops if op.promoted_from]
    found += [f"padded: {op.opcode} of what was padded with zeros first" for op in ops if op.source.startswith("pad")]
    return list(dict.fromkeys(found))


def _violation(
    arm: str, ops: Sequence[LoweredCollective], real: Sequence[LoweredCollective] | None, num_ranks: int
) -> str:
    if arm == "elided":
        return f"elided communicates: {_said(ops)}" if ops else ""
    if arm in TOKENS:
        return _of_tokens(arm, ops, real, num_ranks)
    if arm in SAME_BYTES and real is not None:
        mine, theirs = _wire_bytes(ops, num_ranks), _wire_bytes(real, num_ranks)
        if mine is not None and theirs is not None and not math.isclose(mine, theirs, rel_tol=1e-9):
            return f"{arm} sends {mine:,.0f} bytes a rank ({_said(ops)}), real {theirs:,.0f} ({_said(real)})"
    return ""


def _of_tokens(
    arm: str, ops: Sequence[LoweredCollective], real: Sequence[LoweredCollective] | None, num_ranks: int
) -> str:
    for op in ops:
        opcode = lowering.canonical(op.opcode)
        most = ITEM_BYTES.get(op.dtype, op.operand_bytes) * op.operands * (num_ranks if opcode in CUT else 1)
        if op.operand_bytes > most:
            return f"{arm} moves more than an element per operand: {op.operand_bytes:,} bytes in {_said([op])}"
    mine, theirs = _operands(ops), None if real is None else _operands(real)
    if mine is not None and theirs is not None and mine != theirs:
        return f"{arm} has {mine} operands of collectives ({_said(ops)}), real {theirs} ({_said(real or ())})"
    return ""


def _operands(ops: Sequence[LoweredCollective]) -> int | None:
    if any(op.trips is None for op in ops):
        return None
    return sum(op.operands * (op.trips or 0) for op in ops)


def _said(ops: Sequence[LoweredCollective]) -> str:
    """Such as "2 all-reduce f32 of 5,120 bytes"."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for op in ops:
        held = kinds.setdefault((op.opcode, op.dtype), [0, 0])
        held[0], held[1] = held[0] + (op.trips or 1), held[1] + op.operand_bytes * (op.trips or 1)
    return ", ".join(f"{n} {opcode} {dtype} of {nbytes:,} bytes" for (opcode, dtype), (n, nbytes) in kinds.items()) or (
        "nothing"
    )


def judge_work(found: Mapping[cells.Cell, dict[str, Any]]) -> dict[cells.Cell, str]:
    """Cells that compute something else than they must, with the line that says what.

    An arm computes what `real` under the same compiler does; where ranks split the batch, `real` computes a rank's
    share of the workload's own products: a step that does the whole batch on every rank has right values too.
    """
    counted = {c: census.Census.from_dict(w["census"]) for c, w in found.items() if w["status"] == "ok"}
    wrong: dict[cells.Cell, str] = {}
    for cell, mine in counted.items():
        real = counted.get(dataclasses.replace(cell, communication="real"))
        if cell.communication != "real" and real is not None:
            problem = work_gate.unlike(mine, real, (cell.communication, "real"))
        else:
            problem = _of_share(cell, mine)
        if problem:
            wrong[cell] = f"census gate failed: {problem}"
    return wrong


def _of_share(cell: cells.Cell, mine: census.Census) -> str:
    if not table.get(cell.strategy).splits_batch or cell.label != "matched":
        return ""
    workload = workloads.load_workload(cell.workload, cell.preset, cell.batch_size, cell.optimizer)
    whole = sum(product.flops for product in workload.products_per_step())
    if mine.flops * cell.mesh[0] == whole:
        return ""
    return (
        f"a rank does {mine.flops:,} FLOP of matrix products a step, its share of the batch is "
        f"{whole // cell.mesh[0]:,} of {whole:,}"
    )
