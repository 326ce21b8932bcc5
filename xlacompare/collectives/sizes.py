"""Sizes of a sweep, and from a size the elements that each rank passes in."""

from __future__ import annotations

from xlacompare.collectives import table
from xlacompare.core import errors, units


def parse(text: str) -> tuple[int, ...]:
    """Bytes of "1KiB:64MiB:4" (first:last:factor), "8:256MiB" (factor 2) or "1MiB,3MiB", in this order.

    A list may hold ranges; a size that comes twice is kept once.

    Raises:
      BadInputError: A part is no size or no range, or a size is 0.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        found.update(dict.fromkeys(units.parse_bytes_range(part)))
    if not all(found):
        raise errors.BadInputError(f"{text!r} holds a size of 0 bytes; the least is 1 byte (a barrier takes no size)")
    return tuple(found)


def counts(collective: str, size_bytes: int, dtype: str, n: int) -> tuple[int, int]:
    """Elements that each rank of a group of n passes in, and the bytes of pad that this adds to `size_bytes`.

    A size that is no whole number of elements, or that n ranks do not divide where they must, is rounded up;
    nccl-tests rounds down, to 0 for small sizes. The pad is data like the rest: it is sent, and its values are checked.
    The size is the table's: for all_gather the output's.

    Raises:
      BadInputError: No such collective or dtype, or a size below 1 byte.
    """
    entry = table.get(collective)
    if entry is table.BARRIER:
        return 0, 0
    if size_bytes < 1 or n < 1:
        raise errors.BadInputError(f"{collective} of {size_bytes} bytes over {n} ranks; the least is 1 of each")
    item = table.item_bytes(dtype)
    elements = -(-size_bytes // item)
    if entry.grows or entry.divided:
        elements = -(-elements // n) * n
    count = elements // n if entry.grows else elements
    return count, elements * item - size_bytes
