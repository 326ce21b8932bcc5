"""Two programs compared, whatever their values are called and in which order they stand.

Operations are matched in rounds, each over what the one before left: the same operation in the same surroundings (what
it reads, three operations deep), the same operation anywhere, and the same work in another form (another dtype, shape,
precision, dimension numbers): that pair is a change. The rest is in one program only. Each round is a look-up, so that
the time grows with the number of operations, not with its square.

What neither computes nor moves anything (tuples, parameters, bitcasts) and layouts are left out.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from xlacompare.core import program
from xlacompare.graph import layers, modules, work

COMMUTATIVE = {"add", "multiply", "maximum", "minimum", "and", "or", "xor"}
DEPTH = 3
# Attributes that name something, or say what the compiler does and not what is computed.
NOISE = {
    *("channel_id", "to_apply", "calls", "body", "condition", "sharding", "control-predecessors", "is_scheduled"),
    *("result_layout", "xla_shape", "kind", "inlineable", "output_to_operand_aliasing", "constrain_layout"),
}
SPREADS = ("broadcast", "convert", "reshape", "bitcast", "copy")
DIMENSIONS = ("_dims", "dim_labels", "dimensions", "window", "permutation")
Loaded = tuple[modules.Module, Sequence[program.Tensor]]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation that computes or moves something.

    Attributes:
      opcode: XLA's.
      given, got: Types of operands and results.
      attributes: Without noise.
      surroundings: Hash of what it reads, `DEPTH` operations deep.
      layer: Of the model, "" where unknown.
      source: The framework's own name.
      flops, bytes: Of all its runs.
    """

    opcode: str
    given: tuple[modules.Array, ...]
    got: tuple[modules.Array, ...]
    attributes: tuple[tuple[str, str], ...]
    surroundings: int
    layer: str
    source: str
    flops: int
    bytes: int

    @property
    def key(self) -> Hashable:
        """What makes it the same operation."""
        return self.opcode, self.given, self.got, self.attributes

    @property
    def form(self) -> Hashable:
        """What stays when axes change places or the element type changes."""
        extents = tuple(tuple(sorted(extent for extent in array.shape if extent != 1)) for array in self.got)
        return self.opcode, self.flops, extents, tuple(sorted(array.elements for array in self.given))

    @property
    def amount(self) -> Hashable:
        """What stays when the same work is done in another form."""
        read, made = (sum(array.elements for array in arrays) for arrays in (self.given, self.got))
        return (self.opcode, self.flops) if self.flops else (self.opcode, read, made)

    def __str__(self) -> str:
        given = " x ".join(map(str, self.given))
        return f"{self.opcode} {given} -> {', '.join(map(str, self.got))}" if given else f"{self.opcode} {self.got[0]}"


Found = tuple[str, Operation, Operation | None]  # kind, operation of A (or the only one), of B


@dataclasses.dataclass
class Entry:
    """One difference, as often as it occurs.

    Attributes:
      kind: "only in A", "only in B" or "changed".
      what: The operation; for a change that of A.
      changes: What differs: {"dtype": "f32 -> bf16"}.
      count: Times.
      flops, bytes: At stake: of the operation, the larger one of a change.
      layers: Of the model, as far as known.
      sources: The frameworks' own names, the first few.
    """

    kind: str
    what: str
    changes: dict[str, str]
    count: int
    flops: int
    bytes: int
    layers: list[str]
    sources: list[str]


@dataclasses.dataclass
class Diff:
    """The result.

    Attributes:
      operations: Numbers of operations in A and in B.
      same: Operations that both have.
      flops, bytes: Totals of A and of B.
      entries: Differences, the most FLOPs first, then the most bytes.
    """

    operations: tuple[int, int]
    same: int
    flops: tuple[int, int]
    bytes: tuple[int, int]
    entries: list[Entry]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def compare(left: Loaded, right: Loaded) -> Diff:
    """Compares two programs."""
    a, b = operations(*left), operations(*right)
    totals = [(sum(one.flops for one in side), sum(one.bytes for one in side)) for side in (a, b)]
    count = (len(a), len(b))
    near, a, b = _match(a, b, lambda one: (one.key, one.surroundings))
    far, a, b = _match(a, b, lambda one: one.key)
    turned, a, b = _match(a, b, lambda one: one.form)
    remade, a, b = _match(a, b, lambda one: one.amount)
    entries: list[Found] = [("changed", one, other) for one, other in turned + remade]
    entries += [("only in A", one, None) for one in a]
    entries += [("only in B", one, None) for one in b]
    return Diff(
        operations=count,
        same=len(near) + len(far),
        flops=(totals[0][0], totals[1][0]),
        bytes=(totals[0][1], totals[1][1]),
        entries=_grouped(entries),
    )


def operations(module: modules.Module, inputs: Sequence[program.Tensor] = ()) -> list[Operation]:
    """Operations of a program, through called computations; a fusion is what it holds."""
    of_layer = layers.of_module(module, inputs)
    hashes: dict[str, dict[str, int]] = {}
    found = []
    for visit in modules.walk(module):
        item, home = visit.item, visit.computation
        if item.opcode in work.FREE or item.opcode in ("fusion", "async-start") or item.opcode.endswith("-done"):
            continue
        if home.name not in hashes:
            hashes[home.name] = _surroundings(home)
        times = 1 if visit.trips is None else visit.trips
        found.append(
            Operation(
                opcode=item.opcode,
                given=_given(home, item),
                got=item.arrays,
                attributes=_attributes(home, item),
                surroundings=hashes[home.name][item.name],
                layer=of_layer.get((home.name, item.name), ""),
                source=item.source,
                flops=times * work.flops(home, item),
                bytes=times * work.moved_bytes(home, item),
            )
        )
    return found


def _given(home: modules.Computation, item: modules.Instruction) -> tuple[modules.Array, ...]:
    return tuple(array for operand in home.operands(item) for array in operand.arrays)


def _attributes(home: modules.Computation, item: modules.Instruction) -> tuple[tuple[str, str], ...]:
    """Attributes without noise, and the scalars that stand in the program among the operands."""
    found = [(key, value) for key, value in item.attributes.items() if key not in NOISE]
    if item.opcode not in SPREADS:
        scalars = [_scalar(home, operand) for operand in home.operands(item)]
        if any(scalars):
            found.append(("constants", ", ".join(sorted(filter(None, scalars)))))
    return tuple(sorted(found))


def _scalar(home: modules.Computation, item: modules.Instruction) -> str:
    """Value of a constant that was spread over an array or converted; "" for what is none."""
    while item.opcode in SPREADS and item.operands:
        item = home.operands(item)[0]
    if item.opcode != "constant" or item.arrays[0].shape:
        return ""
    try:
        return f"{float(item.literal):.6g}"  # as long as float32 can tell
    except ValueError:
        return item.literal  # true, false, complex numbers


def _surroundings(home: modules.Computation) -> dict[str, int]:
    """Hash of each instruction with what it reads, DEPTH deep; tuples and other names are looked through."""
    own = {item.name: hash((item.opcode, item.arrays, _attributes(home, item))) for item in home.instructions}
    hashes = dict(own)
    for _ in range(DEPTH):
        hashes = {
            item.name: hash((own[item.name], *_ordered(item, [hashes[name] for name in item.operands])))
            for item in home.instructions
        }
    return hashes


def _ordered(item: modules.Instruction, values: list[int]) -> list[int]:
    return sorted(values) if item.opcode in COMMUTATIVE else values


def _match(
    a: list[Operation], b: list[Operation], key: Callable[[Operation], Hashable]
) -> tuple[list[tuple[Operation, Operation]], list[Operation], list[Operation]]:
    """Pairs of equal key, first to first, and what is left of both; those of the same layer find each other first."""
    found, a, b = _pair(a, b, lambda one: (key(one), one.layer))
    more, a, b = _pair(a, b, key)
    return found + more, a, b


def _pair(
    a: list[Operation], b: list[Operation], key: Callable[[Operation], Hashable]
) -> tuple[list[tuple[Operation, Operation]], list[Operation], list[Operation]]:
    waiting: dict[Hashable, collections.deque[int]] = collections.defaultdict(collections.deque)
    for place, other in enumerate(b):
        waiting[key(other)].append(place)
    pairs, rest, taken = [], [], set()
    for one in a:
        places = waiting.get(key(one))
        if places:
            place = places.popleft()
            taken.add(place)
            pairs.append((one, b[place]))
        else:
            rest.append(one)
    return pairs, rest, [other for place, other in enumerate(b) if place not in taken]


def changes(one: Operation, other: Operation) -> dict[str, str]:
    """What differs between two forms of the same work."""
    found = {}
    kinds = [_list(sorted({array.dtype for array in (*item.given, *item.got)})) for item in (one, other)]
    shapes = [_shapes(item) for item in (one, other)]
    if kinds[0] != kinds[1]:
        found["dtype"] = f"{kinds[0]} -> {kinds[1]}"
    if shapes[0] != shapes[1]:
        turned = [sorted(sorted(array.shape) for array in (*item.given, *item.got)) for item in (one, other)]
        found["order of axes" if turned[0] == turned[1] else "shape"] = f"{shapes[0]} => {shapes[1]}"
    left, right = dict(one.attributes), dict(other.attributes)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            kind = "precision" if "precision" in name else "dimension numbers" if name.endswith(DIMENSIONS) else name
            change = f"{name} {left.get(name, '-')} -> {right.get(name, '-')}"
            found[kind] = f"{found[kind]}; {change}" if kind in found else change
    return found or {"operands": "in another order"}


def _list(values: Sequence[str]) -> str:
    return "+".join(values)


def _shapes(item: Operation) -> str:
    given = " x ".join(str(list(array.shape)) for array in item.given)
    return f"{given} -> {', '.join(str(list(array.shape)) for array in item.got)}"


def _grouped(found: list[Found]) -> list[Entry]:
    """Equal differences as one entry, ranked by what is at stake."""
    entries: dict[Hashable, Entry] = {}
    for kind, one, other in found:
        differs = changes(one, other) if other is not None else {}
        key = (kind, str(one), tuple(differs.items()), one.attributes)
        entry = entries.setdefault(key, Entry(kind, str(one), differs, 0, 0, 0, [], []))
        both = (one,) if other is None else (one, other)
        entry.count += 1
        entry.flops += max(item.flops for item in both)
        entry.bytes += max(item.bytes for item in both)
        for item in both:
            _add(entry.layers, item.layer)
            _add(entry.sources, item.source)
    return sorted(entries.values(), key=lambda entry: (-entry.flops, -entry.bytes, entry.kind, entry.what))


def _add(names: list[str], name: str) -> None:
    if name and name not in names and len(names) < 8:
        names.append(name)
