"""What a program is made of, counted through called computations."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from xlacompare.core import census, products, program, tally
from xlacompare.graph import collective_shape, layers, lowered, modules, work

HEAVY = (products.DOT, products.CONVOLUTION)
MOVES = ("copy", "transpose")


def count(module: modules.Module, inputs: Sequence[program.Tensor] = ()) -> census.Census:
    """Counts a program; `inputs` name its parameters, so that heavy operations can be told by layer."""
    visits = modules.walk(module)
    of_layer = layers.of_module(module, inputs)
    found = tally.Tally()
    for visit in visits:
        _add(found, module, visit, of_layer)
    return found.census(
        instructions=len(visits),
        fusions=_counted((v.item.attributes.get("kind", ""), _times(v)) for v in visits if v.item.opcode == "fusion"),
        custom_calls=_counted(
            (visit.item.attributes.get("custom_call_target", "").strip('"'), _times(visit))
            for visit in visits
            if visit.item.opcode == "custom-call"
        ),
        collectives=lowered.of_module(module),
    )


def _add(found: tally.Tally, module: modules.Module, visit: modules.Visit, of_layer: layers.Layers) -> None:
    item, home, times = visit.item, visit.computation, _times(visit)
    found.opcodes[item.opcode] += times
    found.unknown_trips += visit.trips is None
    if item.opcode == "convert":
        found.converts[f"{home.operands(item)[0].arrays[0].dtype} -> {item.arrays[0].dtype}"] += times
    if item.opcode in HEAVY:
        made = {collective_shape.made_from(module, home, name) for name in item.operands}
        kinds = sorted(kind for kind in made if collective_shape.narrower(kind, item.arrays[0].dtype))
        found.multiply(
            work.product(home, item),
            item.arrays[0].dtype,
            item.attributes.get("operand_precision", ""),
            "".join(kinds),
            of_layer.get((home.name, item.name), ""),
            times,
        )
    if "fusion" in visit.inside:
        return  # a fusion reads and writes once
    moved = work.moved_bytes(home, item)
    found.bytes += times * moved
    if item.opcode in MOVES:
        found.move(item.opcode, work.shapes(home, item), moved, times)


def _times(visit: modules.Visit) -> int:
    return 1 if visit.trips is None else visit.trips


def _counted(pairs: Any) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter()
    for name, times in pairs:
        found[name] += times
    return dict(found.most_common())
