"""What a program is made of, counted through called computations."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from xlacompare.core import census, program
from xlacompare.graph import collective_shape, layers, lowered, modules, work

HEAVY = ("dot", "convolution")
MOVES = ("copy", "transpose")


def count(module: modules.Module, inputs: Sequence[program.Tensor] = ()) -> census.Census:
    """Counts a program; `inputs` name its parameters, so that heavy operations can be told by layer."""
    visits = modules.walk(module)
    outside = [visit for visit in visits if "fusion" not in visit.inside]
    of_layer = layers.of_module(module, inputs)
    opcodes: collections.Counter[str] = collections.Counter()
    for visit in visits:
        opcodes[visit.item.opcode] += _times(visit)
    return census.Census(
        instructions=len(visits),
        opcodes=dict(opcodes.most_common()),
        flops=sum(_times(visit) * work.flops(visit.computation, visit.item) for visit in visits),
        bytes=sum(_times(visit) * work.moved_bytes(visit.computation, visit.item) for visit in outside),
        heavy=_heavy(module, visits, of_layer),
        fusions=_tally((v.item.attributes.get("kind", ""), _times(v)) for v in visits if v.item.opcode == "fusion"),
        moves=_moves(outside),
        custom_calls=_tally(
            (visit.item.attributes.get("custom_call_target", "").strip('"'), _times(visit))
            for visit in visits
            if visit.item.opcode == "custom-call"
        ),
        collectives=[item.to_dict() for item in lowered.of_module(module)],
        converts=_tally((_types(visit), _times(visit)) for visit in visits if visit.item.opcode == "convert"),
        unknown_trips=sum(visit.trips is None for visit in visits),
    )


def _times(visit: modules.Visit) -> int:
    return 1 if visit.trips is None else visit.trips


def _tally(pairs: Any) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter()
    for name, times in pairs:
        found[name] += times
    return dict(found.most_common())


def _types(visit: modules.Visit) -> str:
    return f"{visit.computation.operands(visit.item)[0].arrays[0].dtype} -> {visit.item.arrays[0].dtype}"


def _heavy(module: modules.Module, visits: list[modules.Visit], of_layer: layers.Layers) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for visit in visits:
        item, home = visit.item, visit.computation
        if item.opcode not in HEAVY:
            continue
        made = {collective_shape.made_from(module, home, name) for name in item.operands}
        kinds = sorted(kind for kind in made if collective_shape.narrower(kind, item.arrays[0].dtype))
        entry = {
            "opcode": item.opcode,
            "form": work.form(home, item),
            "shapes": work.shapes(home, item),
            "dtype": item.arrays[0].dtype,
            "precision": item.attributes.get("operand_precision", ""),
            "promoted_from": "".join(kinds),
        }
        kept = found.setdefault(tuple(entry.values()), {**entry, "count": 0, "flops": 0, "layers": []})
        kept["count"] += _times(visit)
        kept["flops"] += _times(visit) * work.flops(home, item)
        layer = of_layer.get((home.name, item.name), "")
        if layer and layer not in kept["layers"]:
            kept["layers"].append(layer)
    return sorted(found.values(), key=lambda entry: -entry["flops"])


def _moves(outside: list[modules.Visit]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for visit in outside:
        if visit.item.opcode in MOVES:
            key = (visit.item.opcode, work.shapes(visit.computation, visit.item))
            entry = found.setdefault(key, {"opcode": key[0], "shapes": key[1], "count": 0, "bytes": 0})
            entry["count"] += _times(visit)
            entry["bytes"] += _times(visit) * work.moved_bytes(visit.computation, visit.item)
    return sorted(found.values(), key=lambda entry: -entry["bytes"])
