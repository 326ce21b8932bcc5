"""The program of a step in StableHLO: native torch has none of its own."""

from __future__ import annotations

import importlib.util
from typing import Any

from xlacompare.core import errors, program


def capture(step: Any, title: str = "") -> program.Program:
    """Refuses.

    Raises:
      UnsupportedError: Always; the reason depends on what is installed.
    """
    if importlib.util.find_spec("torchax") is None:
        raise errors.UnsupportedError(
            "native torch emits no StableHLO, and the converter torchax is not installed; "
            "its aten operations are in the profile, its program for XLA is that of framework torch_xla"
        )
    raise errors.UnsupportedError(
        "torch.export captures no backward pass, so that torchax would convert the forward pass only: "
        "not the program of a training step"
    )
