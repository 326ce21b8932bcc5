"""The collectives of a training step under one communication arm (`parallel.arms`): strategies call these, never lax.

How each arm is made, here:

- `elided` and `token` put the local operation in the collective's place. First elements of all operands still meet, in
  one small sort (`elided`) or in a collective of one element per operand (`token`), and go into the results: what
  follows waits for all of them, as it waits for the one collective into which XLA combines those of `real`. Without it
  XLA:CPU made other copies of donated parameters and fused across the gap (jaxlib 0.10.2).
- `serial` ties operands together before the collectives, and results after them, in the same way: through data, because
  XLA:CPU drops optimization barriers before it fuses and schedules (jaxlib 0.10.2). Elements are written in place.
- A barrier stands beside every tie: GPU and TPU compilers keep it, and do not fuse across it, as they do not across a
  collective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlacompare.parallel import arms

AXIS = "ranks"
_Leaf = Callable[[jax.Array], jax.Array]
Rank = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One collective on one operand.

    Attributes:
      name: XLA's opcode, and after a blank what else tells it from others.
      real: The collective.
      local: An operation of the same shapes and dtypes in which no rank talks; it may ask which rank it is.
      pick: Elements of the operand that its collective of least size carries [ranks or 1].
      place: (result of `local`, result of `real` on what `pick` gave) -> the former with the latter in it.
    """

    name: str
    real: _Leaf
    local: Callable[[jax.Array, Rank], jax.Array]
    pick: _Leaf
    place: Callable[[jax.Array, jax.Array], jax.Array]


class Communication:
    """The collectives of one arm over the ranks of the mesh axis AXIS; for use inside shard_map.

    Sums and means keep shapes; the others work along axis 0.
    """

    def __init__(self, arm: str, num_ranks: int) -> None:
        """Args:
        arm: "real", "elided", "token" or "serial".
        num_ranks: Ranks of the axis.
        """
        self.arm = arm
        self.num_ranks = num_ranks

    def all_reduce_sum(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Sums over the ranks."""
        return self._run(Operation("all-reduce", _psum, _same, first, with_first), leaves)

    def all_reduce_mean(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Means over the ranks: the sum, then divided (as torch does; pmean multiplies by a reciprocal)."""
        n = self.num_ranks
        operation = Operation("all-reduce mean", _psum, _same, first, lambda x, element: with_first(x, element / n))
        found = self._run(operation, leaves)
        return [leaf / n for leaf in found] if self.arm in arms.EXACT else found

    def mean_across(self, x: jax.Array) -> jax.Array:
        """Mean over the ranks of a value inside the forward pass, each of which then has a loss of its own that counts
        1 / ranks. What a rank's value does to the losses of all ranks comes back the same way: a mean of cotangents.
        """

        @jax.custom_vjp
        def mean(x: jax.Array) -> jax.Array:
            return self.all_reduce_mean([x])[0]

        mean.defvjp(lambda x: (mean(x), None), lambda _, cotangent: (self.all_reduce_mean([cotangent])[0],))
        return mean(x)

    def all_gather(self, leaves: Sequence[jax.Array], computed: bool = True) -> list[jax.Array]:
        """[s, ...] of each rank to [ranks * s, ...].

        Args:
          leaves: One per gather.
          computed: False for arguments of the program: no compute comes before, for which `serial` would have to wait.
        """
        n = self.num_ranks
        operation = Operation(
            "all-gather",
            lambda x: lax.all_gather(x, AXIS, tiled=True),
            lambda x, _: jnp.tile(x, (n,) + (1,) * (x.ndim - 1)),
            first,
            self._with_chunks,
        )
        return self._run(operation, leaves, computed)

    def reduce_scatter(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """[ranks * s, ...] to this rank's part of the sum, [s, ...]."""
        operation = Operation(
            "reduce-scatter",
            lambda x: lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True),
            self._own,
            self._chunks,
            with_first,
        )
        return self._run(operation, leaves)

    def all_to_all(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """[ranks * s, ...]: part i goes to rank i; comes back in the order of the senders."""
        operation = Operation(
            "all-to-all",
            lambda x: lax.all_to_all(x, AXIS, split_axis=0, concat_axis=0, tiled=True),
            _same,
            self._chunks,
            self._with_chunks,
        )
        return self._run(operation, leaves)

    def ppermute(self, leaves: Sequence[jax.Array], pairs: Sequence[tuple[int, int]]) -> list[jax.Array]:
        """Each source's leaf to its destination; zeros where there is no source."""
        operation = Operation(
            f"collective-permute {tuple(pairs)}", lambda x: lax.ppermute(x, AXIS, list(pairs)), _same, first, with_first
        )
        return self._run(operation, leaves)

    def after(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Under `serial` the leaves, none of which is there before all are: what is computed beside a collective's
        operand is then done before the collective. In every other arm the leaves as they are.
        """
        return tied(leaves) if self.arm == "serial" else list(leaves)

    def _run(self, operation: Operation, leaves: Sequence[jax.Array], computed: bool = True) -> list[jax.Array]:
        match self.arm:
            case "real":
                return [operation.real(leaf) for leaf in leaves]
            case "elided":
                return tied([operation.local(leaf, rank_of_mesh) for leaf in leaves])
            case "serial":
                return tied([operation.real(leaf) for leaf in (tied(leaves) if computed else leaves)])
            case "token":
                leaves = list(lax.optimization_barrier(tuple(leaves)))
                tokens = [operation.real(operation.pick(leaf)) for leaf in leaves]
                local = [operation.local(leaf, rank_of_mesh) for leaf in leaves]
                placed = [operation.place(leaf, token) for leaf, token in zip(local, tokens, strict=True)]
                return list(lax.optimization_barrier(tuple(placed)))
        raise ValueError(f"no training step has the communication arm {self.arm!r}")

    def _chunks(self, x: jax.Array) -> jax.Array:
        """First element of what goes to each rank."""
        return x.reshape(self.num_ranks, -1)[:, 0]

    def _with_chunks(self, x: jax.Array, elements: jax.Array) -> jax.Array:
        """`elements` in the place of the first element from each rank."""
        flat = x.reshape(self.num_ranks, -1)
        return lax.dynamic_update_slice(flat, elements[:, None], (0, 0)).reshape(x.shape)

    def _own(self, x: jax.Array, rank: Rank) -> jax.Array:
        size = x.shape[0] // self.num_ranks
        return lax.dynamic_slice_in_dim(x, rank() * size, size)


def rank_of_mesh() -> jax.Array:
    """Of the device that runs this; inside shard_map."""
    return lax.axis_index(AXIS)


def tied(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """The leaves with the values that they have, none of them there before all are.

    The first elements go through one sort by position: it moves nothing, and the compiler neither sees this nor fuses a
    sort with what stands around it.
    """
    given = [first(leaf) for leaf in (*leaves, leaves[0])]  # two at least: XLA drops a sort of one
    dtypes = list(dict.fromkeys(element.dtype for element in given))
    # One row per dtype, all of one length, so that one sort takes them all.
    rows = [jnp.concatenate([element.astype(dtype) for element in given]) for dtype in dtypes]
    _, *rows = lax.sort((lax.iota(jnp.int32, len(given)), *rows), num_keys=1, is_stable=False)
    sorted_rows = dict(zip(dtypes, rows, strict=True))
    placed = tuple(with_first(leaf, sorted_rows[leaf.dtype][i : i + 1]) for i, leaf in enumerate(leaves))
    return list(lax.optimization_barrier(placed))


def _psum(x: jax.Array) -> jax.Array:
    return lax.psum(x, AXIS)


def _same(x: jax.Array, rank: Rank) -> jax.Array:
    return x


def first(x: jax.Array) -> jax.Array:
    """[1], the first element; without a reshape of the whole, which may copy it into another layout."""
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(1)


def with_first(x: jax.Array, element: jax.Array) -> jax.Array:
    """x with `element` [1] in the place of its first."""
    return lax.dynamic_update_slice(x, element.reshape((1,) * x.ndim), (0,) * x.ndim)
