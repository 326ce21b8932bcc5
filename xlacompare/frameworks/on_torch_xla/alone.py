"""The collectives of a schedule, in order and without compute."""

from __future__ import annotations

from typing import Any

from xlacompare.frameworks.on_torch_xla import collectives
from xlacompare.parallel import request


class Step:
    def __init__(self, ranks: collectives.Lanes, asked: request.Request) -> None:
        raise NotImplementedError
