"""The eager arm over ranks: Python dispatches a rank's own compute op by op, each collective as a program of its own.

Only where a process has one rank. Over a mesh of several devices of one process JAX has no op by op that is usable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from xlacompare.core import census
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import alone, communicate, compiler, mesh_step, placement, primitives
from xlacompare.parallel import request

_XLA_NAMES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "s32"}


class Communication(communicate.Communication):
    """Collectives that are called, each a small jitted program over the mesh; arrays are those of this rank.

    `elided` calls nothing but the local operation, and an all-reduce has none; `serial` waits for the operands before
    the calls and for the results after them.

    Attributes:
      log: What was called, since it was last cleared.
    """

    def __init__(self, arm: str, where: placement.Placement) -> None:
        super().__init__(arm, where.num_ranks)
        self._where = where
        self._sharding = where.sharding(placement.PARTS)
        # (operation, shape, dtype) -> its program, and what that communicates.
        self._programs: dict[Any, tuple[Callable[[jax.Array], jax.Array], census.LoweredCollective]] = {}
        self.log: list[census.LoweredCollective] = []

    def all_reduce_mean(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Means over the ranks, the division in the collective's program, so that each arm dispatches the same rest."""
        operation = communicate.Operation(
            "all-reduce mean",
            lambda x: jax.lax.psum(x, communicate.AXIS) / self.num_ranks,
            lambda x, _: x,
            communicate.first,
            communicate.with_first,
        )
        return self._run(operation, leaves)

    def after(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Under `serial`, waits."""
        return list(jax.block_until_ready(tuple(leaves)) if self.arm == "serial" else leaves)

    def _run(
        self, operation: communicate.Operation, leaves: Sequence[jax.Array], computed: bool = True
    ) -> list[jax.Array]:
        if self.arm == "elided":
            return [operation.local(leaf, self._rank) for leaf in leaves]
        found = [self._call(operation, leaf) for leaf in self.after(leaves)]
        return self.after(found)

    def _call(self, operation: communicate.Operation, leaf: jax.Array) -> jax.Array:
        if isinstance(leaf, jax.core.Tracer):  # somebody counts the primitives
            return operation.local(leaf, self._rank)
        key = (operation.name, leaf.shape, leaf.dtype)
        if key not in self._programs:
            self._programs[key] = self._program(operation), self._described(operation, leaf)
        program, described = self._programs[key]
        self.log.append(described)
        shape = (leaf.shape[0] * self.num_ranks, *leaf.shape[1:])
        given = jax.make_array_from_single_device_arrays(shape, self._sharding, [leaf])
        return program(given).addressable_data(0)

    def _rank(self) -> int:
        return next(iter(self._where.local))

    def _program(self, operation: communicate.Operation) -> Callable[[jax.Array], jax.Array]:
        one_rank = _with_token(operation) if self.arm == "token" else operation.real
        parts = placement.PARTS
        mapped = jax.shard_map(one_rank, mesh=self._where.mesh, in_specs=parts, out_specs=parts, check_vma=False)
        return jax.jit(mapped)

    def _described(self, operation: communicate.Operation, leaf: jax.Array) -> census.LoweredCollective:
        given = jax.eval_shape(operation.pick, leaf) if self.arm == "token" else leaf
        opcode = operation.name.split()[0]
        sent = int(np.prod(given.shape)) * given.dtype.itemsize
        got = {"all-gather": sent * self.num_ranks, "reduce-scatter": sent // self.num_ranks}
        return census.LoweredCollective(
            opcode=opcode,
            dtype=_XLA_NAMES[str(given.dtype)],
            operand_bytes=sent,
            result_bytes=got.get(opcode, sent),
            reduction="sum" if "reduce" in opcode else "",
            groups=(tuple(range(self.num_ranks)),),
        )


def _with_token(operation: communicate.Operation) -> Callable[[jax.Array], jax.Array]:
    """The collective on one element and the local operation, in one program: as many calls as `real` makes."""
    return lambda x: operation.place(operation.local(x, communicate.rank_of_mesh), operation.real(operation.pick(x)))


class Step(mesh_step.Step):
    """A rank's own step, op by op; see `mesh_step.Step`. Its arrays lie on the rank's device, not on the mesh."""

    _communication: Communication

    def communications(self) -> dict[str, Any]:
        """What the last dispatched step called."""
        return {"source": "jax", "ops": [item.to_dict() for item in self._communication.log]}

    def run(self, index: int) -> None:
        """Dispatches one step."""
        self._communication.log.clear()
        super().run(index)

    def _communicate(self, arm: str) -> communicate.Communication:
        return Communication(arm, self._where)

    def _build(self, arm: str, chosen: dict[str, Any]) -> None:
        program = compiler.op_by_op(self._train_own, self._scope)
        self.compile_times, self._call = program.times, program.call

    def _initialiser(self) -> Any:
        return self._optimizer.init

    def _first_gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves) -> compiler.Leaves:
        return self._plan.gradients(parameters, buffers, self._batches[0])[2]

    def _put(self, host: np.ndarray, where: PartitionSpec) -> jax.Array:
        return self._where.put_own(host, where)

    def _place_state(self) -> tuple[compiler.Leaves, compiler.Leaves]:
        parameters, buffers = super()._place_state()
        return placement.own(parameters, self._specs[0]), buffers

    def _on_mesh(self, leaves: compiler.Leaves, split: list[int]) -> compiler.Leaves:
        n, sharding = self._where.num_ranks, self._where.sharding(placement.PARTS)
        found = list(leaves)
        for place in split:
            part = leaves[place]
            found[place] = jax.make_array_from_single_device_arrays((n, *part.shape), sharding, [part[None]])
        return tuple(found)

    def work(self) -> census.Counted:
        """Primitives of one rank's step, with the local operation in the place of each collective."""
        with self._scope():
            traced = jax.make_jaxpr(self._train_own)(self._state, self._batches[0])
        return census.Counted(
            "primitives of one rank's step, by a trace that runs nothing", primitives.of_jaxpr(traced)
        )


class Alone:
    """The collectives of an eager step without its compute: one program each, dispatched in order; see `alone.Step`."""

    def __init__(self, where: placement.Placement, asked: request.Request) -> None:
        """See `alone.Step`."""
        each = [dataclasses.replace(asked, schedule=(item,)) for item in asked.schedule]
        self._steps = [alone.Step(where, one) for one in each]
        self.compile_times = interface.CompileTimes(note="one program per collective")

    def run(self, index: int) -> None:
        """Dispatches each once."""
        for step in self._steps:
            step.run(index)

    def synchronize(self) -> None:
        """Waits for all of them."""
        for step in self._steps:
            step.synchronize()

    def communications(self) -> dict[str, Any]:
        """What one run calls, from what each program was built for."""
        return {"source": "jax", "ops": [item.to_dict() for step in self._steps for item in step.built]}

    def close(self) -> None:
        """Drops the arrays and the programs."""
        for step in self._steps:
            step.close()
        self._steps = []
