"""Which collectives a program runs, from its HLO. Runs in the graph's child process: it parses with jaxlib."""

from __future__ import annotations

from xlacompare.core import census
from xlacompare.graph import lowered, parsing


def collectives(text: str) -> list[census.LoweredCollective]:
    """Collectives of HLO text (jax's optimised HLO, torch_xla's HLO before the compiler), in the order of the text.

    Raises:
      BadInputError: Not HLO.
    """
    return lowered.of_module(parsing.hlo(text))
