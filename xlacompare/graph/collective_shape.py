"""What a collective instruction moves: arrays in and out, without tokens; and whether the compiler widened them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xlacompare.graph import modules

FLOATS = ("f", "bf")
# Operations that move or rename an array without changing its elements.
SAME_VALUES = {"bitcast", "copy", "reshape", "transpose", "broadcast", "slice", "pad", "optimization-barrier"}
UNKNOWN = "a narrower type"


@dataclasses.dataclass(frozen=True)
class Passed:
    """Arrays that one rank passes in and gets."""

    operands: tuple[modules.Array, ...]
    results: tuple[modules.Array, ...]


def passed(home: modules.Computation, item: modules.Instruction) -> Passed:
    """Arrays in and out of a collective; of a start, the result is that of its done.

    torch_xla hands a scalar from one collective to the next to keep them in order (`xm.all_reduce` returns one more
    element, which the next takes): the last operand, whose result reaches nothing but such a place. It is left out.
    """
    given = [array for operand in home.operands(item) for array in operand.arrays]
    done = [user for user in home.users[item.name] if user.opcode == f"{item.opcode.removesuffix('-start')}-done"]
    got = list(done[0].arrays if done and item.opcode.endswith("-start") else item.arrays)
    if len(given) > 1 and len(given) == len(got) and given[-1].shape == () and _is_token(home, item, len(given) - 1):
        given, got = given[:-1], got[:-1]
    return Passed(tuple(given), tuple(got))


def _is_token(home: modules.Computation, item: modules.Instruction, place: int) -> bool:
    """Whether element `place` of a result is read by nothing, or only as the last operand of another collective."""
    taken = [user for user in home.users[item.name] if user.opcode == "get-tuple-element"]
    if len(taken) != len(home.users[item.name]):
        return False
    return all(_ends(home, user, 0) for user in taken if user.attributes["index"] == str(place))


def _ends(home: modules.Computation, item: modules.Instruction, depth: int) -> bool:
    """Whether a scalar goes only into the last operand of collectives, through converts and a tuple."""
    if item.root or depth > 8:
        return False
    for user in home.users[item.name]:
        if user.opcode.startswith(("all-", "reduce-scatter", "collective-")):
            if user.operands[-1] != item.name or len(user.operands) < 2:
                return False
        elif user.opcode == "tuple":
            if user.root or user.operands[-1] != item.name:
                return False
            last = str(len(user.operands) - 1)
            readers = [reader for reader in home.users[user.name] if reader.attributes.get("index") == last]
            if not all(_ends(home, reader, depth + 1) for reader in readers):
                return False
        elif user.opcode not in ("convert", "get-tuple-element") or not _ends(home, user, depth + 1):
            return False
    return True


def buffers(item: modules.Instruction, arrays: int, groups: Sequence[Sequence[int]]) -> int:
    """Buffers of the program that a collective joins. An all-to-all without `dimensions` takes a buffer in chunks, one
    for each rank of the group.
    """
    if item.opcode.removesuffix("-start") != "all-to-all" or "dimensions" in item.attributes:
        return arrays
    return max(1, arrays // len(groups[0])) if groups else 1


def padded(home: modules.Computation, item: modules.Instruction) -> bool:
    """Whether a collective works on a padded array: an all-reduce of such arrays is a gather in disguise."""
    return any(_origin(home, name).opcode == "pad" for name in item.operands)


def _origin(home: modules.Computation, name: str) -> modules.Instruction:
    """The instruction that made a value, seen through tuples."""
    item = home.by_name[name]
    while item.opcode == "get-tuple-element" and home.operands(item)[0].opcode == "tuple":
        item = home.operands(home.operands(item)[0])[int(item.attributes["index"])]
    return item


def promoted_from(module: modules.Module, home: modules.Computation, item: modules.Instruction) -> str:
    """The narrower float type that was asked for, "" where nothing was widened.

    XLA's AllReducePromotion names the new reducer "..._promoted" and puts a convert on either side; a backend's own
    float support only puts the converts. Both sides must show the same type, unless the name says so.
    """
    named = item.attributes.get("to_apply", "").split(".clone")[0].endswith("_promoted")
    before = {made_from(module, home, name) for name in item.operands}
    after = {kind for user in _readers(home, item) for kind in _made_into(module, home, user, item)}
    wide = home.operands(item)[0].arrays[0].dtype if item.operands else ""
    kinds = before if before == after or (named and len(before) == 1) else (after if named else set())
    if len(kinds) == 1 and narrower(kind := next(iter(kinds)), wide):
        return kind
    return UNKNOWN if named else ""


def narrower(kind: str, wide: str) -> bool:
    """Whether `kind` is a float type of fewer bits than `wide`."""
    floats = kind.startswith(FLOATS) and wide.startswith(FLOATS)
    return floats and 0 < modules.bits(kind) < modules.bits(wide)


def made_from(module: modules.Module, home: modules.Computation, name: str) -> str:
    """Element type before the last convert that made a value."""
    item = home.by_name[name]
    place = 0
    while True:
        if item.opcode == "get-tuple-element":
            place = int(item.attributes["index"])
            item = home.operands(item)[0]
        elif item.opcode == "fusion":
            home = module.computations[item.attributes["calls"].lstrip("%")]
            item = home.root
        elif item.opcode == "tuple":
            item = home.operands(item)[place]
        elif item.opcode in SAME_VALUES:
            item = home.operands(item)[0]
        else:
            break
    return home.operands(item)[0].arrays[0].dtype if item.opcode == "convert" else item.arrays[0].dtype


def _readers(home: modules.Computation, item: modules.Instruction) -> list[modules.Instruction]:
    """Instructions that read the result, seen through done, tuple access and moves."""
    found = []
    for user in home.users[item.name]:
        moves = user.opcode in SAME_VALUES or user.opcode == "get-tuple-element" or user.opcode.endswith("-done")
        found += _readers(home, user) if moves else [user]
    return found


def _made_into(
    module: modules.Module, home: modules.Computation, user: modules.Instruction, item: modules.Instruction
) -> set[str]:
    """Element types that a reader of the result converts it to."""
    if user.opcode == "convert":
        return {user.arrays[0].dtype}
    if user.opcode != "fusion":
        return {item.arrays[0].dtype}
    inner = module.computations[user.attributes["calls"].lstrip("%")]
    parameters = [entry for entry in inner.instructions if entry.opcode == "parameter"]
    read = [int(entry.literal) for entry in parameters]
    sources = {name for name in user.operands if _comes_from(home, name, item)}
    places = [place for place, name in enumerate(user.operands) if name in sources]
    kinds: set[str] = set()
    for parameter, place in zip(parameters, read, strict=True):
        if place in places:
            for reader in _readers(inner, parameter):
                kinds.add(reader.arrays[0].dtype if reader.opcode == "convert" else parameter.arrays[0].dtype)
    return kinds


def _comes_from(home: modules.Computation, name: str, item: modules.Instruction) -> bool:
    """Whether a value is the result of `item`, seen through tuple access and moves."""
    while name != item.name:
        made = home.by_name[name]
        moves = made.opcode in SAME_VALUES or made.opcode == "get-tuple-element" or made.opcode.endswith("-done")
        if not moves or not made.operands:
            return False
        name = made.operands[0]
    return True
