"""Running counts of a census: what a program, a jaxpr or a dispatcher does, added up operation by operation."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from xlacompare.core import census, products


class Tally:
    """Counts so far; `census` says what they come to.

    Attributes:
      opcodes, converts: See `census.Census`.
      bytes: Likewise.
      unknown_trips: Likewise.
    """

    def __init__(self) -> None:
        self.opcodes: collections.Counter[str] = collections.Counter()
        self.converts: collections.Counter[str] = collections.Counter()
        self.bytes = 0
        self.unknown_trips = 0
        self._heavy: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._moves: dict[tuple[str, str], dict[str, Any]] = {}

    def multiply(
        self,
        product: products.Product,
        dtype: str,
        precision: str = "",
        promoted_from: str = "",
        layer: str = "",
        times: int = 1,
    ) -> None:
        """Adds a matrix product or convolution that runs `times` times; like ones are one entry in whatever layers."""
        entry = {
            "opcode": product.opcode,
            "form": product.form,
            "shapes": product.shapes,
            "dtype": dtype,
            "precision": precision,
            "promoted_from": promoted_from,
        }
        kept = self._heavy.setdefault(tuple(entry.values()), {**entry, "count": 0, "flops": 0, "layers": []})
        kept["count"] += times
        kept["flops"] += times * product.flops
        if layer and layer not in kept["layers"]:
            kept["layers"].append(layer)

    def move(self, opcode: str, shapes: str, nbytes: int, times: int = 1) -> None:
        """Adds a copy or transpose that moves `nbytes` each of the `times` times that it runs."""
        kept = self._moves.setdefault((opcode, shapes), {"opcode": opcode, "shapes": shapes, "count": 0, "bytes": 0})
        kept["count"] += times
        kept["bytes"] += times * nbytes

    def census(
        self,
        instructions: int | None = None,
        fusions: Mapping[str, int] | None = None,
        custom_calls: Mapping[str, int] | None = None,
        collectives: Sequence[census.LoweredCollective] = (),
    ) -> census.Census:
        """What was counted.

        Args:
          instructions: Where they are not the operations run, each as often as it ran.
          fusions: See `census.Census`.
          custom_calls: Likewise.
          collectives: Likewise.
        """
        heavy = sorted(self._heavy.values(), key=lambda entry: -entry["flops"])
        return census.Census(
            instructions=sum(self.opcodes.values()) if instructions is None else instructions,
            opcodes=dict(self.opcodes.most_common()),
            flops=sum(entry["flops"] for entry in heavy),
            bytes=self.bytes,
            heavy=heavy,
            fusions=dict(fusions or {}),
            moves=sorted(self._moves.values(), key=lambda entry: -entry["bytes"]),
            custom_calls=dict(custom_calls or {}),
            collectives=[item.to_dict() for item in collectives],
            converts=dict(self.converts.most_common()),
            unknown_trips=self.unknown_trips,
        )
