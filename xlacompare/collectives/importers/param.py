"""PARAM's comms.py: its text lines COMMS-RES-COLLECTIVE[-DTYPE].

Its size is ours (bytes of the output; of the input for reduce_scatter). Its p50, p75 and p95 are percentiles over
*ranks* of each rank's mean, not over iterations: they are not taken as such. The largest rank's mean is the time.
"""

from __future__ import annotations

import re
from typing import Any

from xlacompare.collectives.importers import common
from xlacompare.core import errors

TOOL = "param"
COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_base": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_base": "reduce_scatter", "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}  # fmt: skip
NOTE = "time: the largest of the ranks' means; its p50, p75, p95 are over ranks and not taken"
COLUMNS = ("size", "elements", "p50", "p75", "p95", "min", "max", "algbw", "busbw")
DEFAULT_DTYPE = "float32"

_ROW = re.compile(r"^\s*COMMS-RES-(?P<name>[a-z_0-9]+?)(?:-(?P<dtype>[a-z]+\d+))?\s+(?P<rest>[\d.\s]+)$")
_WORLD = re.compile(r"['\"]world_size['\"]:\s*(\d+)")
_BACKEND = re.compile(r"\bbackend:\s*(\w+)")
_DTYPE = re.compile(r"torch\.(\w+)")


def read(text: str, told: common.Told) -> list[dict[str, Any]]:
    """Records of a file.

    Raises:
      BadInputError: It is no output of PARAM's collectives, or it does not say what a record needs.
    """
    world, backend, dtype = (pattern.search(text) for pattern in (_WORLD, _BACKEND, _DTYPE))
    about = {
        "ranks": world and int(world[1]),
        "transport": told.transport or (backend and backend[1]),
        "dtype": dtype[1] if dtype else DEFAULT_DTYPE,
    }
    made = []
    for number, line in enumerate(text.splitlines(), 1):
        if "COMMS-RES-" in line:
            made.append(common.to_record(_figure(line, about, told, number), TOOL, "", told))
    if not made:
        raise errors.BadInputError(f"{told.name}: no line COMMS-RES-... of PARAM here")
    return made


def _figure(line: str, about: dict[str, Any], told: common.Told, number: int) -> common.Figure:
    match = _ROW.match(line)
    words = match["rest"].split() if match else []
    if match is None or len(words) < len(COLUMNS):
        raise errors.BadInputError(
            f"{told.name}:{number}: not a result of one collective (pairs, pt2pt, -QUANT are not)"
        )
    name, row = COLLECTIVES.get(match["name"]), dict(zip(COLUMNS, words))
    dtype = match["dtype"] or about["dtype"]
    if name is None or dtype not in common.ITEM_BYTES:
        raise errors.BadInputError(f"{told.name}:{number}: {match['name']} of {dtype} has no counterpart")
    return common.Figure(
        collective=name,
        dtype=dtype,
        size_bytes=common.whole(row["size"], "size", told, number),
        seconds=common.positive(row["max"], "largest latency", told, number) * 1e-6,
        ranks=int(told.need("num_devices", about["ranks"], "no 'world_size' is printed")),
        transport=str(told.need("transport", about["transport"], "no 'backend:' is printed")),
        reduction="sum" if name in ("all_reduce", "reduce_scatter") else "",
        note=NOTE,
    )
