"""Noise for `error_rates`: read from records or made, and resampled. Nothing here knows a verdict.

Noise of blocks: neighbouring blocks of two cells of one process in one launch, as the product pairs them, each side
divided by its mean. A simulated run joins circular moving blocks of `BLOCK_LENGTH` pairs, which keeps the correlation.
In an A/A comparison the sides are exchangeable, which two different cells are not: so a coin deals the sides of each
such piece. Without the coin (`dealt=False`) the sides keep their unlike noise.

Noise of launches: logarithms of a cell's mean in each launch, centred, times sqrt(k / (k - 1)) for k launches; drawn by
the smoothed bootstrap that keeps the variance (Silverman and Young 1987), because k is small: (e + h s z) /
sqrt(1 + h^2) with z normal, s their standard deviation, h = 1.06 k^(-1/5). These means hold the noise of their blocks
already; blocks are drawn on top of them, so that the simulated noise is, if anything, larger than the real one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xlacompare.core import errors, pairs, record, samples

Values = NDArray[np.float64]

BLOCK_LENGTH = 16  # pairs
MIN_PAIRS, MIN_LAUNCHES = 20, 4
SEED_SYNTHETIC = 20250103
# Correlation of the blocks of an arm from pair to pair; standard deviation of launches.
SYNTHETIC = ((0.0, 0.02), (0.0, 0.04), (0.3, 0.04), (0.5, 0.04), (0.5, 0.07))
SPIKES, BLOCK_SD = 0.02, 0.02


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of a population.

    Attributes:
      name: For the report.
      series: Pairs of block times in the order of time, each side with mean 1: [pairs, 2].
      launches: Per cell, centred logarithms of the launch means, [launches].
    """

    name: str
    series: list[Values]
    launches: list[Values]

    def describe(self) -> str:
        """What the noise is like, in one line."""
        spread = [float(x.std()) for x in self.launches]
        correlation = [pairs.autocorrelation(s[:, 0] - s[:, 1]) for s in self.series]
        sizes = [len(s) for s in self.series]
        return (
            f"noise {self.name}: {len(sizes)} series of {min(sizes)}-{max(sizes)} pairs, lag-1 correlation of pairs "
            f"{min(correlation):.2f} to {max(correlation):.2f}; {len(spread)} cells of "
            f"{min(map(len, self.launches))}-{max(map(len, self.launches))} launches, standard deviation "
            f"{min(spread):.1%} to {max(spread):.1%}"
        )


def load(paths: Sequence[str]) -> Noise:
    """Noise of the cells of some record files or run folders, each a run of its own.

    Raises:
      BadInputError: They hold too little.
    """
    series: list[Values] = []
    launches: list[Values] = []
    for path in paths:
        cells = [c for c in samples.collect(record.read(pathlib.Path(path)).records).values() if c.timed]
        for a, b in itertools.combinations(cells, 2):
            series += _series(a, b)
        for cell in cells:
            if len(cell.launches) >= MIN_LAUNCHES:
                launches.append(centred([math.log(launch.mean_s) for launch in cell.launches.values()]))
    if not series or not launches:
        raise errors.BadInputError(
            f"these records hold {len(series)} series of {MIN_PAIRS} pairs in one process and {len(launches)} cells "
            f"with {MIN_LAUNCHES} launches; at least one of each is needed: --compiler=eager,compiled --launches=8"
        )
    return Noise("of records", series, launches)


def _series(a: samples.CellSamples, b: samples.CellSamples) -> Iterator[Values]:
    if a.cell.comparison != b.cell.comparison:
        return
    for launch in samples.common_launches(a, b):
        one, other = a.launches[launch], b.launches[launch]
        if one.process is not None and one.process == other.process:
            both = np.stack(samples.neighbours(one, other), axis=1)
            if len(both) >= MIN_PAIRS:
                yield both / both.mean(axis=0)


def centred(logs: Sequence[float]) -> Values:
    """Residuals about the mean, scaled to the variance of what they were drawn from."""
    x = np.asarray(logs, dtype=np.float64)
    return np.asarray((x - x.mean()) * math.sqrt(x.size / (x.size - 1)))


def synthetic() -> Iterator[Noise]:
    """AR(1) blocks in each arm with spikes of up to tens of standard deviations; normal launches."""
    for number, (rho, launch_sd) in enumerate(SYNTHETIC):
        rng = np.random.default_rng([SEED_SYNTHETIC, number])
        series = [_autoregressive(rho, rng) for _ in range(30)]
        launches = [centred(rng.normal(0, launch_sd, 12).tolist()) for _ in range(8)]
        yield Noise(f"AR({rho}), launches {launch_sd:.0%}", series, launches)


def _autoregressive(rho: float, rng: np.random.Generator, length: int = 400) -> Values:
    shocks = rng.standard_normal((length, 2))
    shocks += (rng.random((length, 2)) < SPIKES) * rng.exponential(8, (length, 2))
    walk = np.zeros_like(shocks)
    for t in range(1, length):
        walk[t] = rho * walk[t - 1] + shocks[t]
    return np.asarray(1 + BLOCK_SD * (walk - walk.mean(axis=0)))


def draw_blocks(noise: Noise, n: int, count: int, rng: np.random.Generator, dealt: bool = True) -> Values:
    """Block noise, each run from one series: [count, n, 2]."""
    drawn = np.empty((count, n, 2))
    pieces = -(-n // BLOCK_LENGTH)
    for run, which in enumerate(rng.integers(len(noise.series), size=count)):
        series = noise.series[which]
        starts = rng.integers(len(series), size=pieces)
        index = ((starts[:, None] + np.arange(BLOCK_LENGTH)).ravel()[:n]) % len(series)
        swapped = np.repeat(rng.integers(2, size=pieces) * dealt, BLOCK_LENGTH)[:n]
        drawn[run, :, 0] = series[index, swapped]
        drawn[run, :, 1] = series[index, 1 - swapped]
    return drawn


def draw_launches(noise: Noise, n: int, count: int, rng: np.random.Generator) -> Values:
    """Launch effects (logarithms), each run from one cell: [count, n, 2]."""
    drawn = np.empty((count, n, 2))
    for run, which in enumerate(rng.integers(len(noise.launches), size=count)):
        residuals = noise.launches[which]
        h = 1.06 * residuals.size**-0.2
        smooth = h * residuals.std() * rng.standard_normal((n, 2))
        drawn[run] = (rng.choice(residuals, (n, 2)) + smooth) / math.sqrt(1 + h * h)
    return drawn
