"""What a client makes of a program: something that runs again and again on the same inputs, and waits when asked.

The clients (jaxlib's, a PJRT plugin's, torch_xla's own) differ in how they compile and where they put arrays; what is
timed and what is checked is this.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np


class Runnable(Protocol):
    """A compiled program with its inputs on the device; donation is left out, so every run reads the same inputs.

    Attributes:
      client: Name and version of the runtime ("jaxlib 0.10.2"): one XLA build under one client.
      compile_s: Seconds from the bytecode to the executable.
    """

    client: str
    compile_s: float

    def dispatch(self) -> None:
        """Starts one run; returns as soon as the client lets it. Results of the run before may be dropped."""
        ...

    def synchronize(self) -> None:
        """Waits until every run is done."""
        ...

    def results(self) -> list[np.ndarray]:
        """Outputs of the last run, in call order."""
        ...

    def close(self) -> None:
        """Frees inputs, results and the executable; safe to call twice."""
        ...


@dataclasses.dataclass
class Repeated:
    """A program in a client as `core.timing` wants it: every run reads the same inputs."""

    made: Runnable

    def run(self, index: int) -> None:
        """One more run."""
        self.made.dispatch()

    def synchronize(self) -> None:
        """Waits for all of them."""
        self.made.synchronize()
