"""Traced steps of JAX: what is communication is said by the program, as often as its census says, on every rank."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any

import jax
import pytest

from tests.frameworks import jax_profiles, jax_ranks
from xlacompare.core import hlo_kinds, timeline, xplane
from xlacompare.graph import lowered, parsing

pytestmark = pytest.mark.framework("jax")
WORLDS = ("gloo", "inprocess")
SAMPLES = pathlib.Path(__file__).parents[1] / "programs"


@functools.cache
def answers(transport: str) -> tuple[list[dict[str, Any]], pathlib.Path]:
    """Answers of the processes of a world of two, and where the traces are."""
    folder = tempfile.mkdtemp(prefix="xlacompare_tests_")
    work = {"do": "profiled", "folder": folder}
    return jax_ranks.start(transport, 2, work), pathlib.Path(folder)


def totals(transport: str) -> list[timeline.Totals]:
    return [timeline.Totals.from_dict(step) for answer in answers(transport)[0] for step in answer["totals"]]


@pytest.mark.parametrize("transport", WORLDS)
def test_every_step_of_every_rank(transport):
    expected = [(rank, step) for rank in (0, 1) for step in range(jax_profiles.STEPS)]
    assert [(step.rank, step.step) for step in totals(transport)] == expected


@pytest.mark.parametrize("transport", WORLDS)
def test_communications_as_often_as_the_census_says(transport):
    for answer in answers(transport)[0]:
        census = lowered.of_module(parsing.hlo(answer["text"]))
        counted = {op.opcode: 0 for op in census}
        for op in census:
            counted[op.opcode] += op.trips
        assert counted == {"all-reduce": 1 + jax_profiles.TRIPS}
    for step in totals(transport):
        seen = {name: op.count for name, op in step.operations.items() if op.kind == timeline.COMMUNICATION}
        assert seen == counted


@pytest.mark.parametrize("transport", WORLDS)
def test_compute_is_compute(transport):
    for step in totals(transport):
        computed = {name: op for name, op in step.operations.items() if op.kind == timeline.COMPUTE}
        products = [op.count for name, op in computed.items() if "dot" in name]
        assert products == [jax_profiles.PRODUCTS]
        assert not any(name in ("while", "call") for name in computed), "a loop's time is that of what it runs"
        assert step.compute_s > 0 and step.exposed_s > 0


def test_no_name_gives_it_away():
    """JAX calls an all-reduce after its primitive; who looks for "all-reduce" in names finds none."""
    for answer in answers("gloo")[0]:
        names = [name for kind, _, name in answer["names"] if kind == timeline.COMMUNICATION]
        assert len(names) == 2 and all(name.startswith("psum") for name in names)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.hlo")), ids=lambda path: path.stem)
def test_opcodes_are_those_of_the_parser(path):
    """Our reader of opcodes against XLA's own, on programs that JAX, torch_xla and a hand wrote."""
    text = path.read_text()
    kinds = hlo_kinds.of_program(text)
    module = parsing.hlo(text)
    parsed = {item.name: item.opcode for one in module.computations.values() for item in one.instructions}
    assert list(kinds) == list(parsed)
    for name, opcode in parsed.items():
        base = opcode.removesuffix("-start").removesuffix("-done")
        if opcode not in ("fusion", "async-start", "async-done"):
            assert (kinds[name].kind == timeline.COMMUNICATION) == (base in lowered.OPCODES), name
            assert kinds[name].operation == base


def test_the_collective_takes_as_long_as_alone():
    """The quickest of either, which a busy machine disturbs least; the trace's has three small sums beside it."""
    found, _ = answers("gloo")
    alone_s = min(min(answer["alone_s"]) for answer in found)
    traced_s = min(step.communication_s for step in totals("gloo"))
    assert 0.5 < traced_s / alone_s < 3, (traced_s, alone_s)
    assert all(step.communication_s < step.length_s for step in totals("gloo"))


@pytest.mark.parametrize("transport", WORLDS)
def test_a_program_of_another_that_is_alive_too(transport):
    """Without its own text the programs that the process holds are asked; equal ones agree."""
    for answer in answers(transport)[0]:
        for step in map(timeline.Totals.from_dict, answer["alike"]):
            assert step.operations["all-reduce"].count == 1 + jax_profiles.TRIPS


def test_traces_are_kept_and_read_as_by_jax():
    found, folder = answers("gloo")
    for rank, answer in enumerate(found):
        (file,) = answer["files"]
        path = folder / f"rank{rank}" / file
        assert list(path.parent.glob("*.trace.json.gz")), "Perfetto's"
        ours = [
            (e.plane, e.line[1], e.name, round(e.start_s * 1e9), round(e.end_s * 1e9), e.stats)
            for e in xplane.events(path)
        ]
        theirs = [
            (plane.name, line.name, e.name, round(e.start_ns), round(e.end_ns), dict(e.stats))
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            for line in plane.lines
            for e in line.events
        ]
        assert len(ours) == len(theirs) > 20 * jax_profiles.STEPS
        for one, other in zip(ours, theirs, strict=True):
            assert one[:3] + one[5:] == other[:3] + other[5:]
            assert abs(one[3] - other[3]) <= 1 and abs(one[4] - other[4]) <= 1
