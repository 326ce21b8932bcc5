"""The collectives of a step and nothing else: those of a schedule, in its order, each after the one before."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks.on_jax import communicate, compiler, placement, staging, steps
from xlacompare.parallel import request

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "s32": "int32", "u32": "uint32"}
# Operations whose operand is cut into a part for each rank.
_CUT = ("reduce-scatter", "all-to-all")


class Step:
    """A program of collectives alone; see `strategy.ParallelStep` for the methods that it has.

    The operands are zeros and stay so. Each collective's operands get their first element from the results of the one
    before, so that XLA neither combines nor reorders them; this element is written in place, into donated memory.

    Attributes:
      items: The schedule, those in loops as often as they run.
      built: What stands in the program for each.
    """

    def __init__(self, where: placement.Placement, asked: request.Request) -> None:
        """Args:
        where: Of the ranks.
        asked: `schedule` says what to run; "alone_token" cuts each operand to its least size.

        Raises:
          UnsupportedError: The schedule holds what a mesh of one axis has no call for.
        """
        n = where.num_ranks
        self.items = [item for item in asked.schedule for _ in range(1 if item.trips is None else item.trips)]
        self._communication = communicate.Communication("real", n)
        least = asked.communication == "alone_token"
        cut = [_operands(item, n, least) for item in self.items]
        self.built = [
            _built(item, sum(counts) * dtype.itemsize) for item, (dtype, counts) in zip(self.items, cut, strict=True)
        ]
        self._scope = compiler.Scope(x64=True)
        with self._scope():
            self._state: Any = (where.put(np.zeros(n, np.float32), placement.PARTS),) + tuple(
                tuple(where.put(np.zeros(n * count, dtype), placement.PARTS) for count in counts)
                for dtype, counts in cut
            )
            mapped = jax.shard_map(
                self._body, mesh=where.mesh, in_specs=placement.PARTS, out_specs=placement.PARTS, check_vma=False
            )
            options = compiler.COMPILER_OPTIONS.get(asked.compiler, {})
            jitted = jax.jit(mapped, donate_argnums=(0,), compiler_options=options)
            _, self._executable, self.compile_times = staging.ahead_of_time(jitted, self._state)
        self._call: Any = self._executable
        self._pending = 0
        self._most = steps.most_pending(0)

    def run(self, index: int) -> None:
        """Dispatches the collectives once; waits when too many are in flight."""
        self._state = self._call(self._state)
        self._pending += 1
        if self._pending >= self._most:
            self.synchronize()

    def synchronize(self) -> None:
        """Waits for all that was dispatched."""
        self._pending = 0
        jax.block_until_ready(self._state)

    def communications(self) -> dict[str, Any]:
        """Optimised HLO."""
        return {"source": "hlo", "text": self._executable.as_text(), "optimised": True}

    def close(self) -> None:
        """Drops the arrays and the program."""
        self._state = self._call = self._executable = None

    def _body(self, state: Any) -> Any:
        """One rank's part."""
        last, *operands = state
        for i, item in enumerate(self.items):
            operands[i] = tuple(_after(x, last.astype(x.dtype)) for x in operands[i])
            results = self._run(item, operands[i])
            last = sum(communicate.first(result).astype(jnp.float32) for result in results)
        return last, *operands

    def _run(self, item: LoweredCollective, operands: tuple[jax.Array, ...]) -> list[jax.Array]:
        match item.opcode:
            case "all-reduce" if item.reduction == "sum":
                return self._communication.all_reduce_sum(operands)
            case "all-reduce" if item.reduction in ("max", "min"):
                reduce = lax.pmax if item.reduction == "max" else lax.pmin
                return [reduce(x, communicate.AXIS) for x in operands]
            case "all-gather":
                return self._communication.all_gather(operands)
            case "reduce-scatter" if item.reduction == "sum":
                return self._communication.reduce_scatter(operands)
            case "all-to-all":
                return self._communication.all_to_all(operands)
            case "collective-permute":
                return self._communication.ppermute(operands, item.pairs)
        raise errors.UnsupportedError(f"jax.lax has no call for {item.opcode} {item.reduction} alone")


def _after(x: jax.Array, last: jax.Array) -> jax.Array:
    """x, not there before `last` [1] is. One element must stay its own: XLA merges collectives of equal operands."""
    return x + last if x.size == 1 else communicate.with_first(x, last)


def _built(item: LoweredCollective, operand_bytes: int) -> LoweredCollective:
    """The item with other operands; its result grows or shrinks as they do."""
    result_bytes = item.result_bytes * operand_bytes // item.operand_bytes
    return dataclasses.replace(item, operand_bytes=operand_bytes, result_bytes=result_bytes)


def _operands(item: LoweredCollective, num_ranks: int, least: bool) -> tuple[Any, list[int]]:
    """dtype, and elements of each operand on one rank: as many bytes in all, cut as evenly as they can be.

    Raises:
      UnsupportedError: Not over all ranks, or of a type without a name here.
    """
    if item.dtype not in _DTYPES:
        raise errors.UnsupportedError(f"{item.opcode} of {item.dtype}: no such element type in the collectives here")
    if item.groups and len(item.groups) > 1:
        raise errors.UnsupportedError(f"{item.opcode} over groups {item.groups}: the mesh has one axis of all ranks")
    dtype = jnp.dtype(_DTYPES[item.dtype])
    unit = num_ranks if item.opcode in _CUT else 1
    units = item.operands if least else item.operand_bytes // (dtype.itemsize * unit)
    each, more = divmod(units, item.operands)
    return dtype, [(each + (i < more)) * unit for i in range(item.operands)]
