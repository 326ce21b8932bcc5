"""What a step of native torch does: its operations, counted; a program in StableHLO it has none."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any, Protocol

from torch import nn

from xlacompare.core import census, errors, program
from xlacompare.frameworks.on_torch import counters, dispatched


class Step(Protocol):
    """A built step of one process, alone or among ranks."""

    arm: str
    model: nn.Module

    def run(self, index: int) -> None: ...
    def synchronize(self) -> None: ...
    def reset(self) -> None: ...


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


def count(step: Step) -> census.Counted:
    """The aten operations of one step; the step is reset before and after.

    What torch.compile made cannot be counted (Inductor's kernels call no dispatcher); what it was given can: the same
    functions run once op by op, as AOTAutograd traces them.
    """
    layers = {}
    for name, tensor in step.model.named_parameters():
        layers[dispatched.memory(tensor)] = name.rpartition(".")[0] or name
    eager = step.arm == "eager"
    step.reset()
    with contextlib.nullcontext() if eager else counters.not_compiled(), dispatched.Count(layers) as counted:
        step.run(0)
    step.synchronize()
    step.reset()
    of = "one step" if eager else "the functions that torch.compile was given, run once op by op"
    return census.Counted(f"aten operations of {of}", counted.census())
