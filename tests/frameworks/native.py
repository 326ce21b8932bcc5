"""What these tests need of each framework beyond its adapter; each module is loaded in that framework's process only.

A module has:
  GATE_ARM: arm whose step makes the update of the exact gate; a fast one to build.
  compile_something(arm): compiles something that this process has not met, the way the arm compiles.
  asynchronous_step(framework): a step whose work outlasts its dispatch by far, with a fence that waits.
  false_fences(): name -> what looks like a fence, or is one elsewhere, and does not wait for that step.
  hand_loop(step, n, first): seconds of n steps with the framework's own calls and one fence; the step is then n on.
"""

from __future__ import annotations

import importlib
from types import ModuleType

MODULES = {
    "jax": "tests.frameworks.native_jax",
    "torch": "tests.frameworks.native_torch",
    "torch_xla": "tests.frameworks.native_torch_xla",
}


def load(name: str) -> ModuleType:
    """The module of a framework; a new framework needs one here."""
    return importlib.import_module(MODULES[name])
