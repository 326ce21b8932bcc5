"""Noise of arms for `effect_coverage`: what the arms of a launch share, and what each has of its own.

A launch's arms, each divided by its mean, are split visit by visit into their common part (the mean over arms) and
their own parts, scaled by sqrt(k / (k - 1)) for k arms, so that the difference of two arms keeps its variance.
A simulated launch joins circular moving blocks of `BLOCK_LENGTH` visits (the correlation stays): one sequence of pieces
for the common part, another for every arm's own part; a coin deals the sign of each piece of it only where the source
has two arms, which then differ by sign alone. Launches: `noise.draw_launches`; all arms of a launch share its effect.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments import noise
from xlacompare.core import effects, errors, parallel_samples, record

Values = NDArray[np.float64]
BLOCK_LENGTH, MIN_VISITS = 8, 12
SEED_SYNTHETIC = 20250501
# Correlation of an arm's own noise from visit to visit; standard deviation of launches.
SYNTHETIC = ((0.0, 0.02), (0.3, 0.04), (0.5, 0.04))
OWN_SD, COMMON_SD, SPIKES = 0.01, 0.02, 0.02


@dataclasses.dataclass(frozen=True)
class ArmNoise:
    """Noise of a population of launches.

    Attributes:
      name: For the report.
      common: Of each launch, relative, mean 0, [visits].
      own: Of each launch and arm, relative, mean 0, [visits, arms].
      launches: Of each framework or cell, centred logarithms of launch means, [launches].
    """

    name: str
    common: list[Values]
    own: list[Values]
    launches: list[Values]

    def describe(self) -> str:
        """What the noise is like, in one line."""
        spread = [float(x.std()) for x in self.own]
        launches = [float(x.std()) for x in self.launches]
        return (
            f"noise {self.name}: {len(self.own)} launches of {min(map(len, self.own))} visits or more; "
            f"an arm's own {min(spread):.1%} to {max(spread):.1%} (median {float(np.median(spread)):.1%}); "
            f"launches {min(launches):.1%} to {max(launches):.1%}"
        )


def split(series: Values) -> tuple[Values, Values]:
    """Common and own parts of arms that have mean 1, [visits, arms]."""
    k = series.shape[1]
    common = series.mean(axis=1)
    return common - 1, (series - common[:, None]) * math.sqrt(k / (k - 1))


def load(paths: Sequence[str]) -> ArmNoise:
    """Noise of record files or run folders: of parallel runs, or of the main job where there is none.

    Raises:
      BadInputError: They hold too little.
    """
    found: list[Values] = []
    launches: list[Values] = []
    for path in paths:
        for world in parallel_samples.collect(record.read(pathlib.Path(path)).records):
            aligned = world.launches()
            found += [_relative(launch) for launch in aligned.values() if _long(launch)]
            for key in dict.fromkeys(key for launch in aligned.values() for key in launch.arms):
                known = [launch.arms[key].mean() for launch in aligned.values() if key in launch.arms]
                if len(known) >= noise.MIN_LAUNCHES:
                    launches.append(noise.centred(np.log(known).tolist()))
    if found and launches:
        parts = [split(series) for series in found]
        return ArmNoise("of parallel records", [c for c, _ in parts], [o for _, o in parts], launches)
    if found:
        raise errors.BadInputError(f"no arm with {noise.MIN_LAUNCHES} launches in these records; give more runs")
    of_blocks = noise.load(paths)
    parts = [split(_by_visit(series)) for series in of_blocks.series]
    return ArmNoise("of main-job records", [c for c, _ in parts], [o for _, o in parts], of_blocks.launches)


def _long(launch: effects.Launch) -> bool:
    return len(launch.arms) > 1 and next(iter(launch.arms.values())).size >= MIN_VISITS


def _relative(launch: effects.Launch) -> Values:
    return np.stack([values / values.mean() for values in launch.arms.values()], axis=1)


def _by_visit(series: Values) -> Values:
    """Two neighbouring pairs of blocks, as in a visit, averaged."""
    even = series[: len(series) // 2 * 2]
    return np.asarray(even.reshape(-1, 2, even.shape[1]).mean(axis=1))


def synthetic() -> Iterator[ArmNoise]:
    """A shared random walk that returns, AR(1) own noise with spikes of many standard deviations, normal launches."""
    for number, (rho, launch_sd) in enumerate(SYNTHETIC):
        rng = np.random.default_rng([SEED_SYNTHETIC, number])
        common = [_autoregressive(0.8, COMMON_SD, (200, 1), rng)[:, 0] for _ in range(20)]
        own = [_autoregressive(rho, OWN_SD, (200, 6), rng) for _ in range(20)]
        launches = [noise.centred(rng.normal(0, launch_sd, 12).tolist()) for _ in range(8)]
        yield ArmNoise(f"AR({rho}), launches {launch_sd:.0%}", common, own, launches)


def _autoregressive(rho: float, sd: float, shape: tuple[int, int], rng: np.random.Generator) -> Values:
    shocks = rng.standard_normal(shape)
    shocks += (rng.random(shape) < SPIKES) * rng.exponential(8, shape)
    walk = np.zeros(shape)
    for t in range(1, shape[0]):
        walk[t] = rho * walk[t - 1] + shocks[t]
    return np.asarray(sd * (walk - walk.mean(axis=0)))


def draw(source: ArmNoise, arms: int, visits: int, rng: np.random.Generator) -> Values:
    """Relative noise of the arms of one launch, mean about 1, [visits, arms]."""
    which = int(rng.integers(len(source.own)))
    own = source.own[which]
    made = 1 + source.common[which][_index(len(own), visits, rng)][:, None] * np.ones(arms)
    for arm in range(arms):
        index = _index(len(own), visits, rng)
        sign = np.repeat(rng.choice((-1.0, 1.0), -(-visits // BLOCK_LENGTH)), BLOCK_LENGTH)[:visits]
        made[:, arm] += own[index, arm % own.shape[1]] * (sign if own.shape[1] == 2 else 1.0)
    return np.asarray(made)


def _index(length: int, visits: int, rng: np.random.Generator) -> NDArray[np.int_]:
    starts = rng.integers(length, size=-(-visits // BLOCK_LENGTH))
    return np.asarray(((starts[:, None] + np.arange(BLOCK_LENGTH)).ravel()[:visits]) % length)


def launch(
    source: ArmNoise, truths: Mapping[str, Mapping[str, float]], visits: int, factor: float, rng: np.random.Generator
) -> effects.Launch:
    """One launch whose arms have these true seconds: variant -> arm -> seconds, the fastest rank's among them."""
    keys = [(variant, arm) for variant, arms in truths.items() for arm in arms]
    drawn = draw(source, len(keys), visits, rng) * factor
    return effects.Launch({(v, arm): truths[v][arm] * drawn[:, i] for i, (v, arm) in enumerate(keys)})
