"""The seam. Four rules:

1. A file imports one framework family at most: {jax, flax, optax} or {torch, torch_xla}.
2. A framework is imported in the worker process that uses it, never in the parent. `arms.py` of each folder is read by
   the parent and imports no framework.
3. An adapter never falls back: what it cannot do raises `UnsupportedError` with the reason.
4. Every folder has the same files: arms.py (arms, settings, environment; no framework import), framework.py (the
   adapter), models.py, optimizers.py, compiler.py (one builder per arm), counters.py (compile counters: private APIs,
   one function each).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from xlacompare.workloads import spec


@dataclasses.dataclass(frozen=True)
class ArmSpec:
    """A compiler arm of one framework, as the parent sees it before anything is imported.

    Attributes:
      name: Name of the flag value, e.g. "compiled".
      definition: One sentence: what exactly this framework does under this name. Printed in the report.
      scope: What one compiled program holds, e.g. "model, loss, backward, optimizer".
      environment: Variables that must be set before the runtime starts; an arm with any has processes of its own.
      expert: True for arms that stay off the first screen.
    """

    name: str
    definition: str
    scope: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    expert: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting in which a framework's own default may differ from the matched run.

    Attributes:
      name: e.g. "matmul_precision", "threads", "donation".
      matched: Value in a matched run.
      shipped: The framework's own default.
      where: "build" (passed to `Framework.build`) or "environment" (a worker process of its own).
      environment: For "environment": variables of the shipped value (None removes the variable).
      note: One sentence on what it changes.
    """

    name: str
    matched: Any
    shipped: Any
    where: str
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True)
class XlaOptions:
    """How a framework gives XLA's options to the compiler, for --ablate_flags. One without has no XLA.

    Attributes:
      where: "build" (an option of one compilation: `Framework.build` takes `xla_options.CHANGED` among its settings) or
        "environment" (a worker process of its own, since XLA reads XLA_FLAGS once).
      arms: Compiler arms that are compiled with them.
    """

    where: str
    arms: tuple[str, ...]


@dataclasses.dataclass
class CompileTimes:
    """Seconds of the first build; None where a framework cannot tell the phase apart (say so in `note`)."""

    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    disk_cache_hits: int | None = None  # of the framework's own counter; None: no such counter
    disk_cache_misses: int | None = None
    note: str = ""


@dataclasses.dataclass
class Evaluation:
    """One forward and backward on one batch, as float64 NumPy in the neutral layout.

    Activations are in the neutral layout too (images [batch, height, width, channel]).
    """

    loss: float
    activations: spec.Arrays
    gradients: spec.Arrays
    exceptions: dict[str, str] = dataclasses.field(default_factory=dict)  # operation -> why it was composed differently


class TrainStep(Protocol):
    """A built training step: forward, backward, optimizer update, over batches that lie on the device.

    `run` dispatches and may return before the work is done; `synchronize` returns when all of it is done. Every `run`
    advances the state (parameters, optimizer state, buffers).
    """

    compile_times: CompileTimes

    def run(self, index: int) -> None:
        """Dispatches one step on batch `index % len(batches)`."""
        ...

    def synchronize(self) -> None:
        """Waits for all dispatched work (every output, not only the loss)."""
        ...

    def loss(self) -> float:
        """Loss of the last step (waits)."""
        ...

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers as NumPy, neutral layout (waits)."""
        ...

    def reset(self) -> None:
        """Back to the initial parameters, buffers and empty optimizer state, without recompiling."""
        ...

    def close(self) -> None:
        """Frees the arrays and the program."""
        ...


class Framework(Protocol):
    """One adapter. Made by `load_framework(name)` inside a worker; its construction starts the runtime."""

    name: str
    convention: str  # key of the layout table: "flax" or "torch"

    def describe(self) -> dict[str, Any]:
        """Versions, platform, device kind and count, threads, flags in force.

        `asynchronous` is False where a call returns only when its work is done.
        """
        ...

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> Evaluation:
        """Loss, named activations and per-parameter gradients, for the gate (not timed, any arm will do)."""
        ...

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> TrainStep:
        """Puts everything on the device and builds the step (compiles it where the arm has a separate compile).

        `settings` maps "build" settings of `arms.SETTINGS` to values.
        """
        ...

    def compile_count(self) -> int:
        """Compilations since the process began, any arm; where it grows during a block, the block is no sample."""
        ...

    def memory_bytes(self) -> int | None:
        """Peak bytes of the device's allocator; None where the platform has none (CPU: the worker measures it)."""
        ...
