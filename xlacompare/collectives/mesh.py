"""Ranks of a mesh, the groups along its axes, and the pairs of a permutation."""

from __future__ import annotations

import functools
import math
import re

from xlacompare.core import errors

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]

_PAIR = re.compile(r"\s*(\d+)\s*>\s*(\d+)\s*")


def parse_mesh(text: str) -> tuple[int, ...]:
    """Extents of "4" or "2x4" (rows x columns).

    Raises:
      BadInputError: It is no mesh of one or two axes.
    """
    parts = text.strip().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdigit() and int(part) for part in parts):
        raise errors.BadInputError(f"{text!r} is no mesh; write 4 for a line of ranks or 2x4 for rows x columns")
    return tuple(int(part) for part in parts)


def validate(mesh: tuple[int, ...], axis: int | None) -> None:
    """Refuses what is no mesh of one or two axes, or no axis of it.

    Raises:
      BadInputError: With what to change.
    """
    if not 1 <= len(mesh) <= 2 or min(mesh) < 1:
        raise errors.BadInputError(f"mesh {mesh} is not one or two extents of at least 1")
    if axis is not None and not 0 <= axis < len(mesh):
        raise errors.BadInputError(f"axis {axis} is no axis of mesh {'x'.join(map(str, mesh))}; count from 0")


def size(mesh: tuple[int, ...]) -> int:
    """Ranks in all."""
    return math.prod(mesh)


@functools.lru_cache(maxsize=256)
def groups(mesh: tuple[int, ...], axis: int | None) -> Groups:
    """Global ranks of each group, row by row; a rank's place in its group is its index there.

    Raises:
      BadInputError: No such mesh or axis.
    """
    validate(mesh, axis)
    if axis is None or len(mesh) == 1:
        return (tuple(range(size(mesh))),)
    rows, columns = mesh
    if axis == 1:
        return tuple(tuple(row * columns + column for column in range(columns)) for row in range(rows))
    return tuple(tuple(row * columns + column for row in range(rows)) for column in range(columns))


def group_size(mesh: tuple[int, ...], axis: int | None) -> int:
    """Ranks of one group (n of the bus factors)."""
    return len(groups(mesh, axis)[0])


def group_of(mesh: tuple[int, ...], axis: int | None, rank: int) -> tuple[tuple[int, ...], int]:
    """Group of a global rank, and the rank's place in it.

    Raises:
      ValueError: No such rank.
    """
    for group in groups(mesh, axis):
        if rank in group:
            return group, group.index(rank)
    raise ValueError(f"rank {rank} is not in mesh {mesh}")


def global_pairs(mesh: tuple[int, ...], axis: int | None, pairs: Pairs) -> Pairs:
    """(source, destination) as global ranks, of all groups."""
    return tuple((group[a], group[b]) for group in groups(mesh, axis) for a, b in pairs)


def validate_pairs(pairs: Pairs, n: int) -> None:
    """Refuses pairs that are no partial permutation of n ranks.

    Raises:
      BadInputError: No pair, a place out of range, or a source or a destination twice (XLA refuses both).
    """
    if not pairs:
        raise errors.BadInputError("a permutation without pairs moves nothing; give ring, shift:1 or pairs:0>1,1>0")
    outside = [f"{a}>{b}" for a, b in pairs if not (0 <= a < n and 0 <= b < n)]
    if outside:
        raise errors.BadInputError(f"pair {outside[0]} is outside a group of {n} ranks; places are 0 to {n - 1}")
    for which, places in (("source", [a for a, _ in pairs]), ("destination", [b for _, b in pairs])):
        twice = sorted({place for place in places if places.count(place) > 1})
        if twice:
            raise errors.BadInputError(f"rank {twice[0]} is a {which} twice; each is one at most once in a permutation")


def parse_pattern(text: str, n: int) -> Pairs:
    """Pairs of "ring" (to the next rank), "shift:k" (k places on, round the end) or "pairs:0>1,2>2" among n ranks.

    Raises:
      BadInputError: No such pattern, or no partial permutation of n ranks.
    """
    name, _, rest = text.strip().partition(":")
    if name == "ring" and not rest:
        return _shift(1, n)
    if name == "shift" and re.fullmatch(r"[+-]?\d+", rest.strip()):
        return _shift(int(rest), n)
    found = [_PAIR.fullmatch(part) for part in rest.split(",")]
    if name != "pairs" or not all(found):
        raise errors.BadInputError(f"{text!r} is no pattern; write ring, shift:2 or pairs:0>1,1>0 (source>destination)")
    pairs = tuple((int(match[1]), int(match[2])) for match in found if match)
    validate_pairs(pairs, n)
    return pairs


def _shift(k: int, n: int) -> Pairs:
    return tuple((place, (place + k) % n) for place in range(n))
