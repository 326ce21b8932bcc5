"""Costs of the known algorithms: t = alpha * steps + beta * bytes + gamma * reduced bytes.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19(1), 2005, 49-66; section 4 has each formula.
alpha is the latency of a message, beta the time per byte sent, gamma the time per byte combined, all by one rank. The
size S is that of the table (nccl-tests' meaning); own chunks are not sent. Where the number of ranks is no power of
two, recursive halving and doubling first fold the surplus ranks into the others and unfold at the end: S each way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from xlacompare.core import errors


@dataclasses.dataclass(frozen=True)
class Terms:
    """What one run costs a rank, for S = 1 byte.

    Attributes:
      steps: Messages one after the other; times alpha.
      sent: Bytes sent per byte of size; times beta.
      combined: Bytes reduced per byte of size; times gamma.
    """

    steps: float
    sent: float
    combined: float = 0.0

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.steps + other.steps, self.sent + other.sent, self.combined + other.combined)


Formula = Callable[[int], Terms]


def _floor(n: int) -> int:
    return n.bit_length() - 1


def _ceil(n: int) -> int:
    return (n - 1).bit_length()


def _part(n: int) -> float:
    return (n - 1) / n


def _fold(n: int, back: bool) -> Terms:
    """Surplus ranks hand their data over before, and get the result after."""
    if n == 1 << _floor(n):
        return Terms(0, 0)
    return Terms(2, 2, 1) if back else Terms(1, 1, 1)


def _ring_reduce_scatter(n: int) -> Terms:
    return Terms(n - 1, _part(n), _part(n))


def _halving(n: int) -> Terms:
    whole = 1 << _floor(n)
    return Terms(_floor(n), _part(whole), _part(whole))


def _ring_all_gather(n: int) -> Terms:
    return Terms(n - 1, _part(n))


def _bruck_bytes(n: int) -> float:
    """Step k sends the chunks whose number has bit k set (Bruck and others 1997)."""
    return sum(place.bit_count() for place in range(n)) / n


def _rabenseifner(n: int) -> Terms:
    whole = 1 << _floor(n)
    return _halving(n) + Terms(_floor(n), _part(whole)) + _fold(n, back=True)


def _doubling_all_reduce(n: int) -> Terms:
    return Terms(_floor(n), _floor(n), _floor(n)) + _fold(n, back=True)


def _binomial(n: int) -> Terms:
    return Terms(_ceil(n), _ceil(n))


def _binomial_reduce(n: int) -> Terms:
    return Terms(_ceil(n), _ceil(n), _ceil(n))


ALGORITHMS: dict[str, dict[str, Formula]] = {
    "all_reduce": {
        "ring": lambda n: _ring_reduce_scatter(n) + _ring_all_gather(n),
        "rabenseifner": _rabenseifner,
        "recursive doubling": _doubling_all_reduce,
        "binomial tree": lambda n: _binomial_reduce(n) + _binomial(n),
    },
    "all_gather": {
        "ring": _ring_all_gather,
        "recursive doubling": lambda n: Terms(_ceil(n), _part(n)),  # Bruck's where n is no power of two
        "binomial tree": lambda n: Terms(_ceil(n), _part(n)) + _binomial(n),
    },
    "reduce_scatter": {
        "pairwise": _ring_reduce_scatter,  # the ring costs the same
        "recursive halving": lambda n: _halving(n) + _fold(n, back=True),
        "recursive doubling": lambda n: Terms(_ceil(n), _ceil(n) - _part(n), _ceil(n) - _part(n)),
        "all_reduce by ring": lambda n: _ring_reduce_scatter(n) + _ring_all_gather(n),
    },
    "all_to_all": {"pairwise": lambda n: Terms(n - 1, _part(n)), "bruck": lambda n: Terms(_ceil(n), _bruck_bytes(n))},
    "broadcast": {
        "binomial tree": _binomial,
        "scatter and all_gather": lambda n: Terms(_ceil(n), _part(n)) + _ring_all_gather(n),  # van de Geijn's
        "linear": lambda n: Terms(n - 1, n - 1),
    },
    "ppermute": {"direct": lambda n: Terms(1, 1)},
    "barrier": {"dissemination": lambda n: Terms(_ceil(n), 0), "binomial tree": lambda n: Terms(2 * _ceil(n), 0)},
}


def terms(collective: str, algorithm: str, n: int) -> Terms:
    """Cost of one run on n ranks, for S = 1 byte; nothing on one rank.

    Raises:
      BadInputError: No such algorithm for this collective.
    """
    known = ALGORITHMS.get(collective, {})
    if algorithm not in known:
        raise errors.BadInputError(
            f"no algorithm {algorithm!r} for {collective}; there are {', '.join(known) or 'none'}"
        )
    return known[algorithm](n) if n > 1 else Terms(0, 0)


def seconds(collective: str, algorithm: str, n: int, size_bytes: float, alpha: float, beta: float,
            gamma: float = 0.0) -> float:  # fmt: skip
    """Predicted time.

    Args:
      collective: Name in the table.
      algorithm: Name in ALGORITHMS.
      n: Ranks.
      size_bytes: Size in the table's meaning.
      alpha: Seconds per message.
      beta: Seconds per byte sent.
      gamma: Seconds per byte combined.
    """
    cost = terms(collective, algorithm, n)
    return math.fsum((alpha * cost.steps, beta * cost.sent * size_bytes, gamma * cost.combined * size_bytes))
