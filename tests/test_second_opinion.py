"""Traces beside arms: the same is called the same, a planted difference is told with its size."""

from __future__ import annotations

import json

import numpy as np
import pytest

from xlacompare.core import estimates, second_opinion, timeline
from xlacompare.core.second_opinion import EXPOSED, HIDDEN

LENGTH = 0.1


def steps(exposed: dict[int, list[float]], overlap: float = 0.0) -> list[timeline.Totals]:
    """Of ranks whose steps all last `LENGTH`."""
    return [
        timeline.Totals(step, rank, LENGTH, LENGTH - overlap - one, one, overlap, 0.0, {})
        for rank, all_ in exposed.items()
        for step, one in enumerate(all_)
    ]


def arms(mean: float, spread: float = 1e-4, n: int = 10) -> estimates.Estimate:
    values = mean + spread * np.resize([-1.0, 1.0], n)
    return estimates.t_interval(values)


TRACED = steps({0: [0.020, 0.0201, 0.0199, 0.020], 1: [0.030, 0.031, 0.029, 0.030]}, overlap=0.010)


def test_they_agree():
    found = second_opinion.compare([TRACED], arms(0.02), arms(0.01), real_s=0.09)
    assert [(opinion.figure, opinion.kind) for opinion in found.opinions] == [(EXPOSED, "agree"), (HIDDEN, "agree")]
    assert not found.disagrees and found.slowdown == pytest.approx(LENGTH / 0.09)
    lines = second_opinion.sentences(found)
    assert "they agree" in lines[0] and "20.0" in lines[0] and lines[2].startswith("traced steps took 1.11x")
    assert lines[3].startswith("compared is rank 0, ") and lines[3].endswith("rank 0 0.00 s; rank 1 10.0 ms")


def test_the_rank_that_the_others_wait_for():
    """The arms take the slowest rank's time: what rank 1 waits for it is not the step's price."""
    (opinion,) = second_opinion.compare([TRACED], arms(0.02), None, real_s=LENGTH).opinions
    assert opinion.trace.mean == pytest.approx(0.02)


@pytest.mark.parametrize(("figure", "more", "words"), [(EXPOSED, 1, "profiler"), (EXPOSED, -1, "packing")])
@pytest.mark.parametrize("size", [0.005, 0.003])
def test_a_planted_difference(figure, more, words, size):
    found = second_opinion.compare([TRACED], arms(0.02 - more * size), arms(0.01), real_s=LENGTH)
    (opinion, _) = found.opinions
    assert opinion.kind == "disagree" and opinion.difference.mean == pytest.approx(more * size)
    assert opinion.difference.low <= more * size <= opinion.difference.high
    text = second_opinion.sentence(opinion)
    assert f"they DISAGREE: the trace has {size * 1e3:.2f} ms" in text and ("more" if more > 0 else "less") in text
    assert words in text and found.disagrees


def test_a_difference_within_two_percent_of_a_step_is_negligible():
    (opinion,) = second_opinion.compare([TRACED], arms(0.019), None, real_s=LENGTH).opinions
    assert opinion.kind == "disagree" and opinion.negligible
    text = second_opinion.sentence(opinion)
    assert "the trace has 1.00 ms" in text and "negligible: within 2% of a step" in text and "DISAGREE" not in text


def test_hidden_by_both():
    (opinion,) = second_opinion.compare([TRACED], None, arms(0.004), real_s=LENGTH).opinions
    assert opinion.kind == "disagree" and "slow each other down" in second_opinion.sentence(opinion)
    (opinion,) = second_opinion.compare([TRACED], None, arms(0.024), real_s=LENGTH).opinions
    assert opinion.kind == "disagree" and "longer alone" in second_opinion.sentence(opinion)


def test_without_a_spread_nothing_is_said():
    (opinion,) = second_opinion.compare([steps({0: [0.05]})], arms(0.02), None, real_s=LENGTH).opinions
    assert opinion.kind == "unknown" and "not compared" in second_opinion.sentence(opinion)
    with pytest.raises(ValueError, match="no traced step"):
        second_opinion.compare([], arms(0.02), None, real_s=LENGTH)


def test_launches_differ_by_more_than_steps_do():
    """Two launches whose steps agree within each: the interval is that over launches."""
    one, other = ({0: [base, base + 1e-5, base - 1e-5]} for base in (0.020, 0.022))
    (figures,) = second_opinion.over_launches([steps(one), steps(other)])
    assert figures.exposed.mean == pytest.approx(0.021) and figures.exposed.half_width > 0.01
    (alone,) = second_opinion.over_launches([steps(one)])
    assert alone.exposed.half_width < 1e-4


def test_as_plain_values():
    found = second_opinion.compare([TRACED], arms(0.02), arms(0.01), real_s=LENGTH)
    assert json.loads(json.dumps([opinion.to_dict() for opinion in found.opinions]))[0]["kind"] == "agree"


def test_how_often_a_difference_is_said_where_there_is_none():
    generator, said, runs = np.random.default_rng(3), 0, 600
    for _ in range(runs):
        traced = [steps({0: list(generator.normal(0.02, 0.001, 12))})]
        e = estimates.t_interval(generator.normal(0.02, 0.0007, 9))
        said += second_opinion.compare(traced, e, None, real_s=1.0).opinions[0].kind == "disagree"
    assert 0.02 < said / runs < 0.09
