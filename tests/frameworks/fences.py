"""Steps with another fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Fenced:
    """A step with `fence` for its own `synchronize`."""

    def __init__(self, step: Any, fence: Callable[[], Any]) -> None:
        self.run, self.loss, self.synchronize = step.run, step.loss, fence
