"""What these tests need of each framework beyond its adapter; each module is loaded in that framework's process only.

A module has:
  GATE_ARM: arm whose step makes the update of the exact gate; a fast one to build.
  FENCE_ARM: arm whose fence is tried.
  compile_something(arm): compiles something that this process has not met, the way the arm compiles.
  false_fences(step): name -> the step with a fence that does not wait, on work that outlasts its dispatch.
  true_fence(step): the same step, if need be made asynchronous in the same way, with a fence that waits.
  hand_loop(step, n, first): seconds of n steps with the framework's own calls and one fence; leaves the step `n` on.
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
