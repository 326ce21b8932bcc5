"""Which algorithm describes the times of a collective, where the data can tell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from xlacompare.collectives import cost_model
from xlacompare.collectives.cost_fit import Fit, Observation, Values
from xlacompare.core import errors, estimates

# The parts of a verdict on a rival.
SAME, UNDECIDED, WORSE, IMPOSSIBLE = "same on this data", "not told apart", "worse", "impossible"


@dataclasses.dataclass(frozen=True)
class Rival:
    """An algorithm that was tried.

    Attributes:
      algorithm: Its name.
      verdict: "same on this data" (no data on these ranks can tell), "not told apart", "worse", or "impossible" (a
        parameter is negative).
      p: Probability of this difference to the best if both were equally good; NaN where nothing was tested.
    """

    algorithm: str
    verdict: str
    p: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """The algorithm that fits best, and the others.

    Attributes:
      fit: The best one's fit.
      algorithm: Its name.
      identified: Every other one is worse or impossible.
      rivals: The others.
      text: One line for a report.
    """

    fit: Fit
    algorithm: str
    identified: bool
    rivals: tuple[Rival, ...]
    text: str


def choose(observations: Sequence[Observation], others: Mapping[str, str] | None = None, level: float = 0.95) -> Choice:
    """Fits every candidate and tests the others against the best.

    With three launches or more the test is a paired t over launches on the weighted sums of squares, one-sided, with
    Holm's correction over the rivals; with fewer it is Akaike's criterion. On one number of ranks every algorithm is a
    line in the size, so that none can be told from another.

    Args:
      observations: Times of one framework and transport.
      others: Collectives among them whose algorithm is known (a ppermute is "direct"). They pin alpha and beta, which
        tells algorithms apart that differ by a factor only.
      level: 1 - level is the probability of calling a rival worse that is as good.

    Raises:
      BadInputError: Several collectives without a known algorithm, or too few sizes.
    """
    known = dict(others or {})
    names = sorted({each.collective for each in observations} - set(known))
    if len(names) != 1:
        raise errors.BadInputError(f"an algorithm is chosen for one collective at a time, not for {', '.join(names)}")
    collective, data = names[0], cost_model.gather(observations)
    tried = {name: {**known, collective: name} for name in cost_model.candidates(collective)}
    fits = {name: cost_model.fit(observations, algorithms, level) for name, algorithms in tried.items()}
    designs = {name: data.design(tried[name], fits[name].names) for name in fits}
    squares = {name: _squares(designs[name], data) for name in fits}
    possible = [name for name in fits if not _impossible(fits[name])] or list(fits)
    best = min(possible, key=lambda name: float(np.sum(squares[name])))
    rivals = []
    for name in fits:
        if name == best:
            continue
        if name not in possible:
            rivals.append(Rival(name, IMPOSSIBLE, math.nan))
        elif _same_span(designs[best], designs[name]):
            rivals.append(Rival(name, SAME, math.nan))
        else:
            rivals.append(Rival(name, "", _p_value(squares[name], squares[best], data)))
    judged = _holm(rivals, 1 - level)
    identified = all(rival.verdict in (WORSE, IMPOSSIBLE) for rival in judged)
    return Choice(
        fits[best],
        best,
        identified,
        judged,
        _text(best, judged, {n for name, n, _ in data.cells if name == collective}),
    )


def _squares(design: Values, data: cost_model.Data) -> Values:
    """(launches,) weighted sums of squares about each launch's own fit."""
    found = []
    for scaled in data.scaled_times():
        have = np.isfinite(scaled)
        values, *_ = np.linalg.lstsq(design[have], scaled[have], rcond=None)
        found.append(float(np.sum((scaled[have] - design[have] @ values) ** 2)))
    return np.array(found)


def _impossible(fit: Fit) -> bool:
    return any(value is not None and value.high < 0 for value in map(fit.parameter, fit.names))


def _same_span(a: Values, b: Values) -> bool:
    """Whether two designs describe the same times."""
    if a.shape != b.shape:
        return False
    scaled = b / np.linalg.norm(b, axis=0)
    values, *_ = np.linalg.lstsq(a, scaled, rcond=None)
    return bool(np.max(np.abs(scaled - a @ values)) < cost_model.COLLINEAR)


def _p_value(rival: Values, best: Values, data: cost_model.Data) -> float:
    """Probability that the rival is as good as the best, one-sided."""
    if data.launches >= cost_model.MIN_LAUNCHES:
        return estimates.t_interval(rival - best).tail(0.0)
    count = int(np.sum(np.isfinite(data.times)))
    criterion = count * math.log(max(float(np.sum(rival)), 1e-300) / max(float(np.sum(best)), 1e-300))
    return 0.0 if criterion > cost_model.AIC_DECIDES else 1.0


def _holm(rivals: Sequence[Rival], alpha: float) -> tuple[Rival, ...]:
    """Verdicts on those that were tested, step by step from the smallest p (Holm 1979)."""
    tested = sorted((rival for rival in rivals if not rival.verdict), key=lambda rival: rival.p)
    verdicts, rejecting = {}, True
    for index, rival in enumerate(tested):
        rejecting = rejecting and rival.p <= alpha / (len(tested) - index)
        verdicts[rival.algorithm] = WORSE if rejecting else UNDECIDED
    return tuple(dataclasses.replace(rival, verdict=verdicts.get(rival.algorithm, rival.verdict)) for rival in rivals)


def _text(best: str, rivals: Sequence[Rival], ranks: set[int]) -> str:
    same = [rival.algorithm for rival in rivals if rival.verdict == SAME]
    open_ones = [rival.algorithm for rival in rivals if rival.verdict == UNDECIDED]
    if not same and not open_ones:
        return f"{best}: every other algorithm fits worse" if rivals else f"{best}: the only candidate"
    parts = []
    if same:
        why = f"on {min(ranks)} ranks alone every algorithm is a line in the size" if len(ranks) == 1 else (
            "they cost the same but for a factor on these ranks"
        )  # fmt: skip
        remedy = "measure other numbers of ranks, 3 among them, or a ppermute beside it"
        parts.append(f"not identifiable from {', '.join(same)}: {why}; {remedy}")
    if open_ones:
        parts.append(f"not told apart from {', '.join(open_ones)}: more launches or more ranks would decide")
    return f"{best}, " + "; ".join(parts)
