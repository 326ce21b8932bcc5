"""Words of the self-test: causes that are planted, what counts, and rows of its table. The rules: `planted_causes`."""

from __future__ import annotations

import dataclasses
from typing import Literal

Found = Literal["found", "not found", "undecided", "left out", "not measured"]
Left = Literal["yes", "moved", "undecided", ""]
LABEL = "planted:"
KNOWN, AS_COMPUTE, AS_ALONE, AS_FACTOR, UNKNOWN = "known", "as compute", "as alone", "as factor", "unknown"
RECOMPILED, REFUSED = "recompiled", "refused"  # what shows otherwise than in an effect
OF_OPTIMIZER = "update "  # what an optimizer's epsilon spoils first: gradients and loss come before it and are right


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something that is planted.

    Attributes:
      name: For the table.
      text: What a cell's `changed` holds, as `launch.planted.parsed` reads it; "" where it is another compiler arm.
      where: Where it must show, for the table.
      arms: Communication arms that its twin needs.
      shows: Effects that it must move.
      stays: Effects that it must leave alone.
      size: How its size is known: KNOWN (`seconds`), AS_COMPUTE (that of the matched step), AS_ALONE (the same thing
        by itself, in the arm `alone` of the variant `apart`), AS_FACTOR (`seconds` is a ratio), UNKNOWN; RECOMPILED
        and REFUSED have none.
      seconds: The size.
      apart: Text of the twin that has the thing by itself.
      of_clocks: Needs ranks with clocks of their own.
    """

    name: str
    text: str
    where: str
    arms: tuple[str, ...]
    shows: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    size: str = KNOWN
    seconds: float = 0.0
    apart: str = ""
    of_clocks: bool = False


@dataclasses.dataclass(frozen=True)
class Limits:
    """What counts.

    Attributes:
      tolerance: Share of the planted size by which a reported one may be off beyond its interval.
      margin: Share of the matched step that counts as nothing for what must stay.
    """

    tolerance: float
    margin: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One statement of the table.

    Attributes:
      size, reported: As text; "" where there is none.
      found, left: See the module; `left` is "" where nothing was to stay.
      note: What moved, what is undecided, why it was left out.
    """

    planted: str
    where: str
    size: str
    reported: str
    found: Found
    left: Left
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether the self-test failed here."""
        return self.found == "not found" or self.left == "moved"
