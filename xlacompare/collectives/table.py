"""The table of collectives: what each means, how large its buffers are, and its bus factor.

Sizes and factors are those of nccl-tests (its PERFORMANCE.md): busbw = algbw * factor, algbw = size / time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import errors

# NumPy name (or "bfloat16", which NumPy lacks) -> bytes of one element.
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
REDUCTIONS = ("sum", "mean", "max", "min")
PLACEMENTS = ("out_of_place", "in_place")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One row. n is the number of ranks of a group, count the elements that each rank passes in.

    Attributes:
      name: As in flags and records.
      definition: What rank p of a group gets.
      size_means: Which buffer `size_bytes` is.
      factor_text: The bus factor as a formula of n.
      factor: n -> busbw / algbw on n > 1 ranks.
      reductions: Legal reductions; empty where nothing is reduced.
      divided: The input is n equal chunks, so that n must divide count.
      grows: Output elements per input element, times n: the output is n inputs.
      in_place: What "in place" means; empty where it has no meaning.
    """

    name: str
    definition: str
    size_means: str
    factor_text: str
    factor: Callable[[int], float]
    reductions: tuple[str, ...] = ()
    divided: bool = False
    grows: bool = False
    in_place: str = ""

    @property
    def reduces(self) -> bool:
        """Whether elements of several ranks are combined."""
        return bool(self.reductions)

    def bus_factor(self, n: int) -> float:
        """busbw / algbw on n ranks; 0 on one rank, where nothing crosses a bus."""
        return self.factor(n) if n > 1 else 0.0

    def input_count(self, count: int) -> int:
        """Elements that each rank passes in."""
        return count

    def output_count(self, count: int, n: int) -> int:
        """Elements that each rank gets."""
        if self.grows:
            return count * n
        return count // n if self.divided and self.reduces else count

    def size_count(self, count: int, n: int) -> int:
        """Elements of the buffer that `size_bytes` means."""
        return count * n if self.grows else count

    def size_bytes(self, count: int, n: int, dtype: str) -> int:
        """Bytes of the buffer that `size_bytes` means, pad included."""
        return self.size_count(count, n) * item_bytes(dtype)


def _all(n: int) -> float:
    return 2 * (n - 1) / n


def _part(n: int) -> float:
    return (n - 1) / n


def _one(n: int) -> float:
    return 1.0


_SAME = "the output overwrites the input"
ALL_REDUCE = Collective(
    "all_reduce", "the reduction over the ranks, element by element; mean = sum, then divided by n",
    "each rank's buffer", "2(n-1)/n", _all, REDUCTIONS, in_place=_SAME,
)  # fmt: skip
ALL_GATHER = Collective(
    "all_gather", "the inputs of all ranks, one after the other by rank of the group",
    "each rank's output (n inputs)", "(n-1)/n", _part, grows=True,
    in_place="the input is the rank's own chunk of the output",
)  # fmt: skip
REDUCE_SCATTER = Collective(
    "reduce_scatter", "chunk p of the reduction over the ranks",
    "each rank's input (n outputs)", "(n-1)/n", _part, REDUCTIONS, divided=True,
    in_place="the output is the rank's own chunk of the input",
)  # fmt: skip
ALL_TO_ALL = Collective(
    "all_to_all", "chunk p of every rank's input, one after the other by rank of the group",
    "each rank's buffer", "(n-1)/n", _part, divided=True, in_place=_SAME,
)  # fmt: skip
PPERMUTE = Collective(
    "ppermute", "the input of the source that the pairs name; zeros where they name none; a self edge is a local copy",
    "each rank's buffer", "1", _one, in_place=_SAME,
)  # fmt: skip
BROADCAST = Collective(
    "broadcast", "the input of the root; the other ranks' inputs are finite and are not used",
    "each rank's buffer", "1", _one, in_place=_SAME,
)  # fmt: skip
BARRIER = Collective(
    "barrier", "no data; returns when every rank has entered", "nothing (0 bytes)", "0", lambda n: 0.0
)  # fmt: skip

TABLE: dict[str, Collective] = {
    entry.name: entry for entry in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, PPERMUTE, BROADCAST, BARRIER)
}


def get(name: str) -> Collective:
    """The row of a collective.

    Raises:
      BadInputError: No such collective.
    """
    if name not in TABLE:
        raise errors.BadInputError(f"no collective {name!r}; there are {', '.join(TABLE)}")
    return TABLE[name]


def item_bytes(dtype: str) -> int:
    """Bytes of one element.

    Raises:
      BadInputError: No such dtype for collectives.
    """
    if dtype not in ITEM_BYTES:
        raise errors.BadInputError(f"no collective dtype {dtype!r}; there are {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


def output_count(request: requests.Request) -> int:
    """Elements that each rank gets."""
    return get(request.collective).output_count(request.count, meshes.group_size(request.mesh, request.axis))


def unsupported(collective: str, reduction: str, dtype: str) -> str | None:
    """Why no framework can be asked for this, or None."""
    if reduction == "mean" and dtype.startswith("int"):
        return f"{collective} with mean of {dtype}: the mean of integers is no integer; ask for sum"
    return None


def validate(request: requests.Request) -> None:
    """Refuses a request that has no meaning, whichever the framework.

    Raises:
      BadInputError: With what to change.
    """
    entry = get(request.collective)
    item_bytes(request.dtype)
    n = meshes.group_size(request.mesh, request.axis)
    _validate_count(entry, request, n)
    if request.reduction not in (entry.reductions or ("",)):
        legal = ", ".join(entry.reductions) or "none"
        raise errors.BadInputError(f"{entry.name} with reduction {request.reduction!r}; legal: {legal}")
    if request.placement not in PLACEMENTS:
        raise errors.BadInputError(f"no placement {request.placement!r}; there are {', '.join(PLACEMENTS)}")
    if entry is PPERMUTE:
        meshes.validate_pairs(request.pairs, n)
    elif request.pairs:
        raise errors.BadInputError(f"{entry.name} takes no pairs; only ppermute does")
    if not 0 <= request.root < n:
        raise errors.BadInputError(f"root {request.root} is no place in a group of {n} ranks")
    reason = unsupported(entry.name, request.reduction, request.dtype)
    if reason:
        raise errors.BadInputError(reason)


def _validate_count(entry: Collective, request: requests.Request, n: int) -> None:
    if entry is BARRIER:
        if request.count:
            raise errors.BadInputError(f"a barrier carries no data; its count is 0, not {request.count}")
    elif request.count < 1:
        raise errors.BadInputError(f"{entry.name} of {request.count} elements; the least is 1")
    elif entry.divided and request.count % n:
        raise errors.BadInputError(
            f"{entry.name} of {request.count} elements over {n} ranks: not a multiple; pad as sizes.counts does"
        )
