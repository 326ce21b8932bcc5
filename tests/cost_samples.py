"""Times with known alpha, beta, gamma and noise, for the tests of the cost model."""

from __future__ import annotations

import math

import numpy as np

from xlacompare.collectives import cost_formulas
from xlacompare.collectives.cost_fit import Observation

ALPHA, BETA, GAMMA = 30e-6, 1e-9, 0.4e-9
SIZES = tuple(1 << power for power in range(10, 25, 2))
RING = {"all_reduce": "ring"}


def simulate(rng, truth, ranks=(2, 3, 4), launches=6, launch_noise=0.04, noise=0.03, sizes=SIZES, gamma=0.0,
             alpha=ALPHA, beta=BETA):  # fmt: skip
    """Times whose launches differ as a whole, beside the noise of each time; `truth`: collective -> algorithm."""
    found = []
    for launch in range(launches):
        speed = math.exp(launch_noise * rng.standard_normal())
        for collective, algorithm in truth.items():
            for n in ranks:
                for size in sizes:
                    seconds = cost_formulas.seconds(collective, algorithm, n, size, alpha, beta, gamma)
                    seconds *= speed * math.exp(noise * rng.standard_normal())
                    found.append(Observation(collective, n, size, seconds, launch))
    return found


def exact(truth, **changes):
    return simulate(np.random.default_rng(0), truth, launch_noise=0, noise=0, **changes)


def kinked(rng, noise=0.02):
    """A cache, or a switch of algorithm: twice the time per byte from 1 MiB on."""
    found = []
    for each in simulate(rng, RING, ranks=(2,), noise=noise, sizes=tuple(1 << power for power in range(10, 27))):
        extra = BETA * max(0.0, each.size_bytes - (1 << 20)) * 3
        found.append(Observation("all_reduce", 2, each.size_bytes, each.seconds + extra, each.launch))
    return found
