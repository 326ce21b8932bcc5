"""Arms with known effects: what each arm takes when compute, latency, bytes and overlap are given. Without noise.

A step's collectives take `wire_latency + wire_bytes` alone; of that, `latency` and `bytes` are exposed and the rest is
hidden behind compute. `token` has the latency that is exposed, `serial` hides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from xlacompare.core import effects


@dataclasses.dataclass(frozen=True)
class Truth:
    """What a step is made of, in seconds.

    Attributes:
      compute: Of the fastest rank.
      waiting: What the slowest rank needs beyond it.
      latency, bytes: Exposed parts of the communication.
      wire_latency, wire_bytes: Parts of the wire.
      unexplained: What `serial` takes beyond elided + wire.
      distortion: What elision adds to the compute.
    """

    compute: float = 20e-3
    waiting: float = 1e-3
    latency: float = 1.5e-3
    bytes: float = 4e-3
    wire_latency: float = 2e-3
    wire_bytes: float = 8e-3
    unexplained: float = 0.0
    distortion: float = 0.0

    @property
    def wire(self) -> float:
        """All collectives alone."""
        return self.wire_latency + self.wire_bytes

    def arms(self) -> dict[str, float]:
        """Communication arm -> seconds a step of the slowest rank; and of the fastest one without communication."""
        work = self.compute + self.waiting
        return {
            effects.REAL: work + self.latency + self.bytes,
            effects.ELIDED: work + self.distortion,
            effects.TOKEN: work + self.distortion + self.latency,
            effects.SERIAL: work + self.wire + self.unexplained,
            effects.ALONE: self.wire,
            effects.ALONE_TOKEN: self.wire_latency,
            effects.FASTEST: self.compute + self.distortion,
        }

    def effects(self) -> dict[str, float]:
        """The true effects by their names, from what the step is made of, not from the arms."""
        exposed = self.latency + self.bytes
        hidden = self.wire - exposed
        return {
            effects.EXPOSED: exposed,
            effects.EXPOSED_LATENCY: self.latency,
            effects.EXPOSED_BYTES: self.bytes,
            effects.WIRE: self.wire,
            effects.WIRE_LATENCY: self.wire_latency,
            effects.WIRE_BYTES: self.wire_bytes,
            effects.HIDDEN: hidden,
            effects.CLOSURE: self.unexplained,
            effects.CONTENTION: -hidden - self.unexplained,
            effects.COMPUTE: self.compute,
            effects.IMBALANCE: self.waiting,
            effects.SHARE: hidden / self.wire,
            effects.EFFICIENCY: hidden / min(self.compute + self.waiting, self.wire),
        }


def more(base: Truth, **seconds: float) -> Truth:
    """The same with more of some parts."""
    return dataclasses.replace(base, **{name: getattr(base, name) + value for name, value in seconds.items()})


# A planted cause -> what it does to the truth. Bytes and latency that are planted are exposed; `hidden` is more wire
# that overlap hides.
PLANTS: Mapping[str, Callable[[Truth, float], Truth]] = {
    "compute": lambda truth, size: more(truth, compute=size),
    "slow rank": lambda truth, size: more(truth, waiting=size),
    "latency": lambda truth, size: more(truth, latency=size, wire_latency=size),
    "bytes": lambda truth, size: more(truth, bytes=size, wire_bytes=size),
    "hidden": lambda truth, size: more(truth, wire_bytes=size),
}
# What each moves by its own size; every other effect in seconds stays where it was.
MOVED: Mapping[str, Mapping[str, int]] = {
    "compute": {effects.COMPUTE: 1},
    "slow rank": {effects.IMBALANCE: 1},
    "latency": {effects.EXPOSED: 1, effects.EXPOSED_LATENCY: 1, effects.WIRE: 1, effects.WIRE_LATENCY: 1},
    "bytes": {effects.EXPOSED: 1, effects.EXPOSED_BYTES: 1, effects.WIRE: 1, effects.WIRE_BYTES: 1},
    "hidden": {effects.HIDDEN: 1, effects.WIRE: 1, effects.WIRE_BYTES: 1, effects.CONTENTION: -1},
}
