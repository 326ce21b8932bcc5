"""The census as a part of the gate: do all cells of a comparison do the same products and the same communication?

FLOPs are held against the workload's own list of products, so that the cell that differs is the one that is refused,
and not its neighbours. What is the same work in another form (products split, folded, transposed; collectives combined
or lowered to others) is a finding and no failure.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from xlacompare.core import cell as cells
from xlacompare.core import census, products

Key = tuple[str, products.Form]


@dataclasses.dataclass
class Judgement:
    """What the gate says of one cell.

    Attributes:
      problem: "" where the work is the same; else one line that names the first operation that differs, that with the
        most FLOPs or bytes at stake.
      findings: The same work in another form, one line each.
    """

    problem: str = ""
    findings: list[str] = dataclasses.field(default_factory=list)


def judge(
    counted: Mapping[cells.Cell, census.Census], expected: Sequence[products.Product]
) -> dict[cells.Cell, Judgement]:
    """Judges the cells of one comparison that could be counted."""
    right = sum(product.flops for product in expected)
    made = {cell: Judgement() for cell in counted}
    passed = [cell for cell in counted if counted[cell].flops == right]
    for cell, found in counted.items():
        other = next((peer for peer in passed if peer.framework != cell.framework), None)
        peer = _of_census(counted[other]) if other else _of_products(expected)
        name = f"{other.framework} {other.compiler}" if other else "the workload's formula"
        if found.flops != right:
            made[cell].problem = (
                f"census gate failed: {_first(_of_census(found), peer, (_name(cell), name))} "
                f"({found.flops:,} FLOP a step, the workload has {right:,})"
            )
        else:
            made[cell].findings += _forms(_of_census(found), _of_products(expected), _name(cell))
    _judge_communication({cell: counted[cell] for cell in passed}, made)
    return made


def unlike(found: census.Census, other: census.Census, names: tuple[str, str]) -> str:
    """The first operation that differs between two steps that must do the same products; "" where they do.

    Args:
      found: One step.
      other: The step that it is held against.
      names: What to call the two.
    """
    if found.flops == other.flops:
        return ""
    said = _first(_of_census(found), _of_census(other), names)
    return f"{said} ({found.flops:,} FLOP a step, not {other.flops:,})"


def _name(cell: cells.Cell) -> str:
    return f"{cell.framework} {cell.compiler}"


@dataclasses.dataclass
class _Kind:
    """Products of one kind: how many, FLOPs of one, an example for people."""

    count: int
    flops: int
    shapes: str
    layers: tuple[str, ...]


def _of_census(found: census.Census) -> dict[Key, _Kind]:
    kinds: dict[Key, _Kind] = {}
    for entry in found.heavy:
        key = entry["opcode"], tuple(entry["form"])
        held = kinds.setdefault(key, _Kind(0, entry["flops"] // max(1, entry["count"]), entry["shapes"], ()))
        held.count += entry["count"]
        held.layers = tuple(dict.fromkeys((*held.layers, *entry["layers"])))
    return kinds


def _of_products(expected: Sequence[products.Product]) -> dict[Key, _Kind]:
    kinds: dict[Key, _Kind] = {}
    for product in expected:
        held = kinds.setdefault((product.opcode, product.form), _Kind(0, product.flops, product.shapes, ()))
        held.count += 1
        held.layers = tuple(dict.fromkeys((*held.layers, product.layer)))
    return kinds


def _differing(mine: Mapping[Key, _Kind], theirs: Mapping[Key, _Kind]) -> list[tuple[Key, int, int]]:
    """Kinds whose numbers differ, with both numbers; the most FLOPs at stake first."""
    found: list[tuple[Key, int, int]] = []
    for key in dict.fromkeys([*mine, *theirs]):
        here, there = (side[key].count if key in side else 0 for side in (mine, theirs))
        if here != there:
            found.append((key, here, there))
    stake = {key: (mine.get(key) or theirs[key]).flops for key, _, _ in found}
    return sorted(found, key=lambda item: -stake[item[0]] * abs(item[1] - item[2]))


def _first(mine: Mapping[Key, _Kind], theirs: Mapping[Key, _Kind], names: tuple[str, str]) -> str:
    differing = _differing(mine, theirs)
    if not differing:
        return f"the same operations with other FLOPs in {names[0]} and {names[1]}"
    return _sentence(differing[0], mine, theirs, names)


def _sentence(
    item: tuple[Key, int, int], mine: Mapping[Key, _Kind], theirs: Mapping[Key, _Kind], names: tuple[str, str]
) -> str:
    key, here, there = item
    kind = mine.get(key) or theirs[key]
    layers = [layer for layer in dict.fromkeys((*kind.layers, *(theirs[key].layers if key in theirs else ()))) if layer]
    where = f" [{', '.join(layers[:4])}{', ...' if len(layers) > 4 else ''}]" if layers else ""
    times = f"{here} time{'s' * (here != 1)} in {names[0]} and {there} time{'s' * (there != 1)} in {names[1]}"
    return f"{key[0]} {kind.shapes}{where} is run {times}"


def _forms(mine: Mapping[Key, _Kind], theirs: Mapping[Key, _Kind], name: str) -> list[str]:
    names = name, "the workload's formula"
    return [_sentence(item, mine, theirs, names) for item in _differing(mine, theirs)]


# What a collective means: (kind, dtype as the program asked for it, the group of its first rank).
Meaning = tuple[str, str, tuple[int, ...]]
REDUCTIONS = ("all-reduce", "reduce-scatter", "reduce")


def meaning(found: Sequence[Mapping[str, Any]]) -> dict[Meaning, int]:
    """Logical bytes of each kind of communication, whatever it was lowered to and combined with.

    A reduction counts what goes in, scattered or not; a gather what comes out, also where it is an all-reduce of padded
    operands (torch_xla's default).
    """
    total: collections.Counter[Meaning] = collections.Counter()
    for values in found:
        item = census.LoweredCollective.from_dict(values)
        padded = item.source.startswith("pad")
        kind = "reduction" if item.opcode in REDUCTIONS and not padded else item.opcode
        if padded or item.opcode == "all-gather":
            kind = "all-gather"
        nbytes = item.result_bytes if kind == "all-gather" else item.operand_bytes
        dtype, wire = item.promoted_from or item.dtype, item.dtype
        group = item.groups[0] if item.groups else ()
        total[kind, dtype, group] += _narrowed(nbytes, wire, dtype) * (1 if item.trips is None else item.trips)
    return dict(total)


def _narrowed(nbytes: int, wire: str, dtype: str) -> int:
    """Bytes as the program asked for them, where the compiler widened the elements."""
    bits = [int("".join(filter(str.isdigit, name)) or 8) for name in (wire, dtype)]
    return nbytes * bits[1] // bits[0]


def _judge_communication(counted: Mapping[cells.Cell, census.Census], made: Mapping[cells.Cell, Judgement]) -> None:
    """No formula says who is wrong: where two cells differ, both are refused."""
    if not counted:
        return
    first = next(iter(counted))
    meanings = {cell: meaning(found.collectives) for cell, found in counted.items()}
    # No group means all ranks; others may list them. Where one cell does the first, ranks 0 to n-1 are all ranks.
    if any(not group for found in meanings.values() for _, _, group in found):
        meanings = {cell: _of_all_ranks(found) for cell, found in meanings.items()}
    wanted = meanings[first]
    for cell, found in counted.items():
        got = meanings[cell]
        unlike = [key for key in dict.fromkeys([*wanted, *got]) if wanted.get(key, 0) != got.get(key, 0)]
        if unlike:
            worst = max(unlike, key=lambda key: abs(wanted.get(key, 0) - got.get(key, 0)))
            kind, dtype, group = worst
            text = (
                f"census gate failed: {kind} of {dtype} over the group {list(group) or 'of all ranks'} is "
                f"{got.get(worst, 0):,} bytes in {_name(cell)} and {wanted.get(worst, 0):,} in {_name(first)}"
            )
            made[cell].problem, made[first].problem = text, made[first].problem or text
        elif len(found.collectives) != len(counted[first].collectives) or _lowered(found) != _lowered(counted[first]):
            made[cell].findings.append(
                f"the same communication as {_lowered(found)} in {_name(cell)} and as {_lowered(counted[first])} in "
                f"{_name(first)}"
            )


def _of_all_ranks(found: Mapping[Meaning, int]) -> dict[Meaning, int]:
    total: collections.Counter[Meaning] = collections.Counter()
    for (kind, dtype, group), nbytes in found.items():
        total[kind, dtype, () if group == tuple(range(len(group))) else group] += nbytes
    return dict(total)


def _lowered(found: census.Census) -> str:
    """Such as "2 all-reduce f32, 1 all-gather f32"."""
    counts = collections.Counter(f"{item['opcode']} {item['dtype']}" for item in found.collectives)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"
