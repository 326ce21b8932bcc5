"""What a program, a framework's dispatcher, or a communication library's log says was done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xlacompare.core import program


@dataclasses.dataclass(frozen=True)
class LoweredCollective:
    """One collective operation as it ran; a start/done pair is one.

    Attributes:
      opcode: XLA's opcode without "-start" ("all-reduce", "all-gather", "reduce-scatter", "all-to-all",
        "collective-permute", "collective-broadcast", "ragged-all-to-all"), or the library's name with hyphens
        ("send-recv" for a pair of point-to-point transfers).
      dtype: Element type on the wire (XLA's names: "f32", "bf16", "s32"; for a variadic operation that of operand 0).
      operand_bytes: Bytes that one rank passes in, all operands together.
      result_bytes: Bytes that one rank gets, all results together.
      operands: Number of operands; more than one: variadic (combined).
      groups: Ranks of each group; empty: one group of all ranks.
      pairs: (source, destination) of a permutation, of global ranks.
      reduction: "sum", "max", "min", "prod", ... or "".
      promoted_from: The type that the program asked for, where the compiler widened it; else "".
      asynchronous: Split into start and done.
      computation: Where it stands ("main", the body of a loop), with `trips` the number of times it runs, where known.
      source: Framework's own name for the operation where the metadata has it ("jit(f)/psum").
    """

    opcode: str
    dtype: str
    operand_bytes: int
    result_bytes: int
    operands: int = 1
    groups: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    reduction: str = ""
    promoted_from: str = ""
    asynchronous: bool = False
    computation: str = ""
    trips: int | None = 1
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoweredCollective:
        """Inverse of `to_dict`, also after JSON."""
        chosen = dict(values)
        chosen["groups"] = tuple(tuple(group) for group in chosen.get("groups", ()))
        chosen["pairs"] = tuple((a, b) for a, b in chosen.get("pairs", ()))
        return cls(**chosen)


@dataclasses.dataclass
class Census:
    """Counts of one program, or of what a dispatcher saw of one step; what is in a loop counts as often as it runs.

    Attributes:
      instructions: All of them, once each.
      opcodes: Opcode -> times run.
      flops: Of matrix products and convolutions, by the rule of `core.products`.
      bytes: Operands and results of what runs outside of fusions: a fusion reads and writes once. Of a program before
        the compiler, and of a dispatcher, this is the traffic without any fusion.
      heavy: Matrix products and convolutions: {"opcode", "form", "shapes", "dtype", "count", "flops", "precision",
        "promoted_from", "layers"}, most FLOPs first; `form` is that of `core.products`.
      fusions: Kind -> count.
      moves: Copies and transposes outside of fusions: {"opcode", "shapes", "count", "bytes"}, most bytes first.
      custom_calls: Target -> count.
      collectives: `LoweredCollective` as dicts.
      converts: "bf16 -> f32" -> times run; what an operation widens by itself has its name: "bf16 -> f32 in aten.add".
      unknown_trips: Instructions in loops of unknown length or in branches; each is counted once.
    """

    instructions: int
    opcodes: dict[str, int]
    flops: int
    bytes: int
    heavy: list[dict[str, Any]]
    fusions: dict[str, int]
    moves: list[dict[str, Any]]
    custom_calls: dict[str, int]
    collectives: list[dict[str, Any]]
    converts: dict[str, int]
    unknown_trips: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Census:
        """Inverse of `to_dict`, also after JSON."""
        return cls(**{**values, "heavy": [{**entry, "form": tuple(entry["form"])} for entry in values["heavy"]]})


@dataclasses.dataclass
class Counted:
    """What a worker can say of one step's work.

    Attributes:
      source: What was counted, in words.
      census: Where the worker counted it.
      bytecode: StableHLO as a portable artifact, to be counted by whoever has a parser; else b"".
      inputs: Of that program, in call order.
    """

    source: str
    census: Census | None = None
    bytecode: bytes = b""
    inputs: tuple[program.Tensor, ...] = ()
