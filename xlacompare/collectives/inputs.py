"""Inputs of collectives: different at every rank and index, and exact in every dtype.

A check is worth what its inputs can show. With the same constant on every rank (PARAM) misrouted data passes; with
floats a reduction in another order differs in the last bit and needs a tolerance in which faults hide. Here:

- Every value is an integer that the dtype holds exactly. Where values are summed, so is every partial sum, in any order
  and of any subset: n positive values of at most `limit // n`, where all integers up to `limit` are exact (256 in
  bfloat16, with its 8 bits of significand). Positive, so that a missing, a doubled and an unreduced contribution is
  wrong at *every* element. Up to 64 ranks leave at least 4 values even in bfloat16.
- Where values are reduced, those of the ranks lie in disjoint ranges that rotate with the index: each rank is largest,
  and smallest, once in as many elements as there are ranks, and taking one rank for another is always seen. Within
  its range the value is the same walk for all, so that the reduced values of neighbours differ. (Where a 16-bit sum has
  no room for this, every rank has an independent walk.)
- Where values are moved, they are signed and never 0, no two ranks have the same value at one index, and no two
  neighbours at one rank are equal.
- The whole request and the seed are mixed in, so that what an earlier run left in a buffer is wrong.
- 32-bit types use more bits than 16-bit ones hold, and float64 more than float32, so that a narrowed transfer is seen.

A long buffer is a table of BLOCK values read from a pseudo-random offset in each block. The offsets are the same on all
ranks, so that an element-wise reduction of buffers is that of tables: checking 256 MiB costs one pass over it.

bfloat16, which NumPy lacks, is held as float32 with bfloat16's values.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import errors

Table = NDArray[np.int64]

# A prime: transfers in pieces of a power of two never fall on the same place of the table again.
BLOCK = 16381
# All integers up to this are exact; beyond what a check needs where the dtype holds more.
SUM_LIMIT = {"bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 44, "int32": (1 << 31) - 1}
# Number of values where nothing is summed: primes below twice the limit, so that the ranks' stride meets each once.
MOVED_VALUES = {"bfloat16": 509, "float16": 4093, "float32": 33554393, "float64": (1 << 31) - 1, "int32": (1 << 31) - 1}
# Values that a rank's own range must hold at the least.
LEAST_WIDTH = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's type that holds a dtype's values: float32 for bfloat16."""
    return np.dtype(np.float32 if dtype == "bfloat16" else dtype)


def values(request: requests.Request, rank: int, seed: int) -> NDArray:
    """What a rank passes in.

    Args:
      request: The collective.
      rank: Global rank.
      seed: Seed of the launch; every rank has the same.

    Returns:
      (count,) in the dtype; bfloat16's values as float32. Empty for a barrier.

    Raises:
      BadInputError: More ranks in a group than the dtype's exact sums allow.
    """
    out = np.empty(request.count, numpy_dtype(request.dtype))
    values_of_rank = rank_table(request, rank, seed)
    for start, piece in pieces(request, values_of_rank, 0, request.count, seed):
        out[start : start + len(piece)] = piece
    return out


def pieces(
    request: requests.Request, of_table: NDArray, start: int, stop: int, seed: int
) -> Iterator[tuple[int, NDArray]]:
    """The buffer that a table stands for, from element `start` to `stop`: (index in the buffer, values) in order.

    Args:
      request: The collective whose input buffer it is.
      of_table: (min(count, BLOCK),) values; any dtype.
      start: First element.
      stop: One past the last.
      seed: Seed of the launch.
    """
    if request.count <= BLOCK:
        yield start, of_table[start:stop]
        return
    twice = np.concatenate([of_table, of_table])
    key = _key(request, seed)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        shift = _mix(key + 0x5BD1E995 * block) % BLOCK - block * BLOCK
        yield first, twice[first + shift : last + shift]


def rank_table(request: requests.Request, rank: int, seed: int) -> Table:
    """(min(count, BLOCK),) integers that a rank's input is made of."""
    length = min(request.count, BLOCK)
    key = _key(request, seed)
    if request.reduction in ("sum", "mean"):
        number = _summands(request)
        if number // meshes.size(request.mesh) < LEAST_WIDTH:
            return 1 + _walk(_mix(key + _GOLDEN * (rank + 1)), length, number)
        return 1 + _rotating(request, rank, key, length, number)
    number = MOVED_VALUES[request.dtype]
    if request.reduction:
        places = _rotating(request, rank, key, length, number)
    else:
        places = (_walk(key, length, number) + rank * int(number * 0.618)) % number
    signed = places - number // 2
    return signed + (signed >= 0)


def _rotating(request: requests.Request, rank: int, key: int, length: int, number: int) -> Table:
    """(length,) values below `number`: the ranks in ranges of their own, which rotate with the index."""
    ranges = min(meshes.size(request.mesh), number // LEAST_WIDTH + 1)
    width = number // ranges
    return (np.arange(length) + rank + key % ranges) % ranges * width + _walk(key, length, width)


@functools.lru_cache(maxsize=8)
def reduced_table(request: requests.Request, group: tuple[int, ...], seed: int) -> NDArray:
    """Like `rank_table`, reduced over a group; the mean as float64, not yet rounded. Read-only."""
    combine = {"max": np.maximum, "min": np.minimum}.get(request.reduction, np.add)
    out: NDArray = rank_table(request, group[0], seed)
    for rank in group[1:]:
        out = combine(out, rank_table(request, rank, seed))
    if request.reduction == "mean":
        out = out / len(group)
    out.flags.writeable = False
    return out


def round_bfloat16(x: NDArray) -> NDArray[np.float32]:
    """Nearest bfloat16 of finite values, ties to even, held as float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _summands(request: requests.Request) -> int:
    """Number of different values that each rank may pass into a sum."""
    n = meshes.group_size(request.mesh, request.axis)
    number = SUM_LIMIT[request.dtype] // n
    if number < 4:
        raise errors.BadInputError(
            f"a sum of {request.dtype} over {n} ranks cannot be checked exactly: integers are exact up to "
            f"{SUM_LIMIT[request.dtype]} only; take at most {SUM_LIMIT[request.dtype] // 4} ranks, or float32"
        )
    return number


def _walk(key: int, length: int, number: int) -> Table:
    """(length,) values below `number`, pseudo-random, each different from the one before."""
    index = np.arange(1, length + 1, dtype=np.uint64)
    hashed = _mix_array(index * np.uint64(_GOLDEN) + np.uint64(key))
    steps = (hashed % np.uint64(number - 1)).astype(np.int64) + 1
    steps[:1] = key % number
    return np.cumsum(steps) % number


def _key(request: requests.Request, seed: int) -> int:
    """A number of 64 bits from everything that tells two runs apart."""
    text = repr((sorted(request.to_dict().items()), seed)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _mix(x: int) -> int:
    """One number through the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    x &= _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same for an array."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
