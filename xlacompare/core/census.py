"""What a compiled program, or a communication library's log, says was communicated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


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
