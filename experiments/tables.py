"""Tables of experiments: rows that are dataclasses, as CSV."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any


def write(path: pathlib.Path, kind: type[Any], rows: Sequence[Any], digits: int = 4) -> None:
    """Writes rows of one dataclass, their fields as columns; numbers with so many decimals."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(kind))
        for row in rows:
            values = dataclasses.astuple(row)
            writer.writerow(f"{value:.{digits}f}" if isinstance(value, float) else value for value in values)
