"""Time lines of made spans: every moment of a step counts once, in the part it belongs to."""

from __future__ import annotations

import json
import random

import pytest

from xlacompare.core import intervals, timeline
from xlacompare.core.timeline import COMMUNICATION, COMPUTE, Span, Trace, Window


def compute(start: float, end: float, rank: int = 0, operation: str = "dot") -> Span:
    return Span(start, end, COMPUTE, f"{operation}.1", operation, rank)


def communication(start: float, end: float, rank: int = 0, operation: str = "all-reduce") -> Span:
    return Span(start, end, COMMUNICATION, f"{operation}.1", operation, rank)


def only(spans: list[Span], start: float = 0, end: float = 10) -> timeline.Totals:
    (found,) = timeline.totals(Trace([Window(0, 0, start, end)], spans))
    return found


def parts(found: timeline.Totals) -> tuple[float, ...]:
    return tuple(getattr(found, name) for name in timeline.PARTS)


def test_the_four_parts():
    found = only([compute(1, 5), communication(4, 8)])
    assert parts(found) == (3, 1, 3, 3)  # compute alone, both, exposed, idle
    assert (found.length_s, found.compute_s, found.communication_s) == (10, 4, 4)


def test_an_operation_inside_another_counts_once():
    inner = [compute(2, 3, operation="inner"), compute(3, 4, operation="inner")]
    found = only([compute(1, 5), *inner, communication(6, 9), communication(7, 8)])
    assert parts(found) == (4, 0, 3, 3)
    assert found.operations["dot"] == timeline.Operation(COMPUTE, 1, 4)
    assert found.operations["inner"] == timeline.Operation(COMPUTE, 2, 2)
    assert found.operations["all-reduce"] == timeline.Operation(COMMUNICATION, 2, 3)


def test_threads_side_by_side_count_once():
    assert parts(only([compute(0, 4), compute(2, 6), communication(5, 7), communication(5, 9)])) == (5, 1, 3, 1)


def test_communication_under_compute_is_not_exposed():
    assert parts(only([compute(0, 10), communication(2, 4)])) == (8, 2, 0, 0)
    assert parts(only([compute(2, 4), communication(0, 10)])) == (0, 2, 8, 0)


def test_what_has_no_length_is_counted_and_takes_no_time():
    found = only([compute(3, 3), communication(0, 0), communication(10, 10)])
    assert parts(found) == (0, 0, 0, 10)
    assert {name: entry.count for name, entry in found.operations.items()} == {"dot": 1, "all-reduce": 1}


def test_spans_are_cut_at_the_borders_of_steps():
    windows = [Window(0, 0, 0, 10), Window(1, 0, 10, 20), Window(2, 0, 25, 30)]
    found = timeline.totals(Trace(windows, [communication(8, 13), compute(12, 27), compute(-3, 1), compute(40, 41)]))
    assert [parts(step) for step in found] == [(1, 0, 2, 7), (7, 1, 2, 0), (2, 0, 0, 3)]
    assert [step.operations["dot"].seconds for step in found] == [1, 8, 2]
    counts = [{name: entry.count for name, entry in step.operations.items()} for step in found]
    assert counts == [{"all-reduce": 1, "dot": 0}, {"all-reduce": 0, "dot": 1}, {"dot": 0}]


def test_ranks_do_not_mix():
    windows = [Window(0, 0, 0, 10), Window(0, 1, 100, 104)]  # clocks of their own
    found = timeline.totals(Trace(windows, [compute(0, 5), communication(101, 103, rank=1)]))
    assert [parts(step) for step in found] == [(5, 0, 0, 5), (0, 0, 2, 2)]
    assert [step.rank for step in found] == [0, 1]


def test_moment_by_moment():
    """Against counting every unit of time by itself."""
    generator = random.Random(1)
    for _ in range(300):
        spans = []
        for _ in range(generator.randrange(12)):
            start = generator.randrange(-5, 45)
            make = generator.choice((compute, communication))
            spans.append(make(start, start + generator.randrange(12)))
        windows = [Window(0, 0, 0, 13), Window(1, 0, 13, 29), Window(2, 0, 31, 40)]
        for window, found in zip(windows, timeline.totals(Trace(windows, spans)), strict=True):
            counts = dict.fromkeys([(a, b) for a in (False, True) for b in (False, True)], 0)
            for at in range(int(window.start_s), int(window.end_s)):
                busy = {span.kind for span in spans if span.start_s <= at < span.end_s}
                counts[COMPUTE in busy, COMMUNICATION in busy] += 1
            expected = (counts[True, False], counts[True, True], counts[False, True], counts[False, False])
            assert parts(found) == expected, spans
            assert sum(parts(found)) == found.length_s


def test_intervals():
    assert intervals.union([(5, 6), (0, 1), (1, 2), (7, 7), (0.5, 3)]) == [(0, 3), (5, 6)]
    a, b = [(0, 4), (6, 10)], [(-1, 1), (2, 3), (8, 9), (10, 12)]
    assert intervals.intersection(a, b) == [(0, 1), (2, 3), (8, 9)]
    assert intervals.difference(a, b) == [(1, 2), (3, 4), (6, 8), (9, 10)]
    assert intervals.difference(a, []) == a and intervals.difference([], b) == []
    assert intervals.difference([(0, 1), (2, 3)], [(0, 9)]) == []


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="not 'copy'"):
        Span(0, 1, "copy", "copy.1", "copy", 0)
    with pytest.raises(ValueError, match="ends before it starts"):
        compute(2, 1)
    with pytest.raises(ValueError, match="before the step before it ended"):
        timeline.totals(Trace([Window(1, 0, 5, 9), Window(0, 0, 0, 6)], []))
    with pytest.raises(ValueError, match="both compute and communication"):
        only([compute(0, 1, operation="call"), communication(2, 3, operation="call")])


def steps_of(exposed: dict[int, list[float]]) -> list[timeline.Totals]:
    windows = [Window(i, rank, 10 * i, 10 * i + 10) for rank, all_ in exposed.items() for i in range(len(all_))]
    spans = [
        communication(10 * i + 2, 10 * i + 2 + length, rank)
        for rank, all_ in exposed.items()
        for i, length in enumerate(all_)
    ]
    return timeline.totals(Trace(windows, spans))


def test_figures_are_means_over_steps():
    (found,) = timeline.figures(steps_of({3: [1, 2, 3]}))
    assert found.rank == 3 and found.length.mean == 10 and found.length.half_width == 0
    assert found.exposed.mean == pytest.approx(2) and found.idle.mean == pytest.approx(8)
    # t(0.975, 2) * sd / sqrt(3), sd = 1
    assert found.exposed.half_width == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert found.communication == found.exposed
    wider = timeline.figures(steps_of({3: [1, 2, 3]}), level=0.99)[0]
    assert wider.exposed.half_width > 2 * found.exposed.half_width


def test_one_step_has_no_interval():
    (found,) = timeline.figures(steps_of({0: [4]}))
    assert found.exposed.mean == 4 and found.exposed.df == 0 and found.exposed.high == float("inf")


def test_the_last_to_arrive_waits_least():
    ranks = timeline.figures(steps_of({0: [5, 6], 1: [2, 3], 2: [4, 4]}))
    assert timeline.last_to_arrive(ranks).rank == 1
    assert timeline.waiting_s(ranks) == pytest.approx({0: 3, 1: 0, 2: 1.5})


def test_by_type_of_operation():
    windows = [Window(0, 0, 0, 10), Window(1, 0, 10, 20)]
    spans = [compute(0, 4), compute(11, 13), compute(1, 3, operation="inner"), communication(15, 16)]
    found = timeline.by_operation(timeline.totals(Trace(windows, spans)))
    assert [(one.operation, one.kind, one.count, one.seconds) for one in found] == [
        ("all-reduce", COMMUNICATION, 0.5, 0.5),
        ("dot", COMPUTE, 1, 3),
        ("inner", COMPUTE, 0.5, 1),
    ]


def test_totals_as_plain_values():
    found = only([compute(1, 5), communication(4, 8)])
    assert timeline.Totals.from_dict(json.loads(json.dumps(found.to_dict()))) == found
