"""Made events of XLA's profiler: what an operation is comes from the program's text, never from a name."""

from __future__ import annotations

from typing import Any

import pytest

from xlacompare.core import errors, hlo_kinds, hlo_trace, timeline, xla_threads, xplane
from xlacompare.core.timeline import COMMUNICATION, COMPUTE

PROGRAM = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%product (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %inner = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %banana = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add, metadata={op_name="dot(all-gather(x))"}
  ROOT %next = (s32[], /*index=1*/f32[8]{0}) tuple(%i, %banana)
}

%hidden (q: f32[4]) -> f32[8] {
  %q = f32[4]{0} parameter(0)
  ROOT %gathered = f32[8]{0} all-gather(%q), dimensions={0}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %all-reduce.7 = f32[8,8]{1,0} fusion(%x), kind=kOutput, calls=%product
  %loop = (s32[], f32[8]{0}) while(%init), condition=%less, body=%body
  %begin = ((f32[4]{0:T(8)(2,1)}), f32[8]{0:T(8)}, u32[]) async-start(%y), calls=%hidden
  %early = (f32[8]{0}, f32[8]{0}) all-reduce-start(%x), to_apply=%add
  %end = f32[8]{0} async-done(%begin)
  %late = f32[8]{0} all-reduce-done(%early)
  %moved = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%x)
  %came = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0}, u32[]) %moved)
  %mpi = (f32[8]{0}, token[]) custom-call(%x, %token), custom_call_target="mpi_allreduce_ffi"
  ROOT %call.1 = f32[8]{0} custom-call(%late), custom_call_target="__onednn$matmul"
}
"""
HOST = "/host:CPU"


def event(name: str, start: float, end: float, plane: str = HOST, line: int = 1, **stats: Any) -> xplane.Event:
    return xplane.Event(name, start, end, stats, plane, (line, ""))


def operation(instruction: str, start: float, end: float, name: str = "", **more: Any) -> xplane.Event:
    return event(name or instruction, start, end, hlo_op=instruction, hlo_module="jit_step", **more)


MARK = event(hlo_trace.MARKER, 0, 10, step_num=4)


def traced(*events: xplane.Event, local: tuple[int, ...] = (0,), text: str = PROGRAM) -> timeline.Trace:
    return hlo_trace.trace([MARK, *events], hlo_trace.Programs(text), local)


def only(*events: xplane.Event, **more: Any) -> timeline.Span:
    (span,) = traced(*events, **more).spans
    return span


def test_kinds_by_opcode():
    kinds = hlo_kinds.of_program(PROGRAM)
    assert kinds["banana"] == hlo_kinds.Kind(COMMUNICATION, "all-reduce")
    assert kinds["all-reduce.7"] == hlo_kinds.Kind(COMPUTE, "fusion of dot")
    assert kinds["begin"] == hlo_kinds.Kind(COMMUNICATION, "all-gather")
    assert kinds["end"] == hlo_kinds.Kind(COMMUNICATION, "all-gather", "begin")
    assert kinds["early"] == hlo_kinds.Kind(COMMUNICATION, "all-reduce")
    assert kinds["late"] == hlo_kinds.Kind(COMMUNICATION, "all-reduce", "early")
    assert kinds["came"] == hlo_kinds.Kind(COMPUTE, "copy", "moved")
    assert kinds["mpi"].kind == COMMUNICATION and kinds["call.1"] == hlo_kinds.Kind(COMPUTE, "custom-call")
    assert kinds["loop"] == hlo_kinds.Kind("", "while")
    assert kinds["sum"] == hlo_kinds.Kind(COMPUTE, "add")
    assert hlo_kinds.module_name(PROGRAM) == "jit_step"


@pytest.mark.parametrize("new", ["add.3", "fusion.12", "dot", "wrapped_tanh"])
def test_a_renamed_all_reduce_is_still_communication(new):
    text = PROGRAM.replace("%banana", f"%{new}")
    assert only(operation(new, 1, 2, name="dot.5"), text=text).kind == COMMUNICATION


def test_compute_called_all_reduce_is_still_compute():
    assert only(operation("all-reduce.7", 1, 2, name="ncclDevKernel_AllReduce")).kind == COMPUTE


def test_a_loop_is_what_it_runs():
    made = traced(operation("loop", 0, 9), operation("banana", 1, 2), operation("banana", 3, 4))
    (step,) = timeline.totals(made)
    assert (step.step, step.compute_s, step.exposed_s, step.idle_s) == (4, 0, 2, 8)
    assert step.operations["all-reduce"].count == 2


def test_in_flight_from_start_to_done():
    made = traced(
        operation("early", 1, 1.5), operation("all-reduce.7", 2, 5), operation("late", 6, 7), operation("late", 8, 9)
    )
    spans = [(span.start_s, span.end_s, span.operation) for span in made.spans]
    assert spans == [(1, 7, "all-reduce"), (2, 5, "fusion of dot"), (8, 9, "all-reduce")]
    (step,) = timeline.totals(made)
    assert (step.overlap_s, step.exposed_s) == (3, 4)


def test_a_copy_in_flight_is_no_compute():
    """Only its own events are: the copy engine leaves the cores alone."""
    made = traced(operation("moved", 1, 2), operation("came", 6, 7))
    assert timeline.totals(made)[0].compute_s == 2


def test_what_goes_on_after_its_event():
    """An operation that was left to other threads is over at its "end:" event."""
    later = event("end: banana", 4, 5, line=9, _ct=0, _c=17)
    assert only(operation("banana", 1, 2, _pt=0, _p=17), later).end_s == 4
    assert only(operation("banana", 1, 2, _pt=0, _p=18), later).end_s == 2
    assert only(operation("banana", 1, 4.5, _pt=0, _p=17), later).end_s == 4.5


@pytest.mark.parametrize("reader", ["late", "call.1"])
def test_an_operation_is_over_when_another_reads_its_result(reader):
    """The thread that ends it goes on to its readers before it says so; "late" has no event of its own in one case."""
    text = PROGRAM.replace("all-reduce-done(%early)", "bitcast(%mpi)")
    made = traced(
        operation("mpi", 1, 2, _pt=0, _p=17),
        operation("all-reduce.7", 2.5, 3),
        operation(reader, 3, 9),
        event("end: mpi", 9, 9, line=9, _ct=0, _c=17),
        text=text,
    )
    assert (made.spans[0].start_s, made.spans[0].end_s) == (1, 3)


def test_devices_speak_for_themselves():
    """On a GPU the host's event is the dispatch of what the device's plane has."""
    gpu = operation("banana", 5, 8, name="ncclDevKernel", plane="/device:GPU:1")
    span = only(operation("banana", 1, 2), gpu, local=(4, 5))
    assert (span.start_s, span.rank) == (5, 5)


def test_ranks_of_one_process():
    found = [operation("banana", 1, 2, device_ordinal=1), operation("banana", 1, 3, device_ordinal=0)]
    made = traced(*found, local=(6, 7))
    assert {(span.rank, span.end_s) for span in made.spans} == {(7, 2), (6, 3)}
    assert [(window.rank, window.step) for window in made.windows] == [(6, 4), (7, 4)]
    with pytest.raises(errors.UnsupportedError, match="does not say which device"):
        traced(operation("banana", 1, 2), local=(0, 1))


def pool(*parts: tuple[str, float, int, int]) -> list[xplane.Event]:
    """Events of a pool's listener: (Record, StartRegion or StopRegion, when, line, task)."""
    return [
        event(f"ThreadpoolListener::{name}", at, at, line=line, **{"_p" if name == "Record" else "_c": task})
        for name, at, line, task in parts
    ]


def test_the_thread_that_handed_in_the_work():
    """Rank 6's thread is line 1, rank 7's line 2; threads 8 and 9 of the pool work for both, 9 inside of a wait."""
    tasks = pool(
        *[("Record", 1, 1, 100), ("Record", 1, 2, 200), ("StartRegion", 2, 8, 100), ("Record", 3, 8, 101)],
        *[("StopRegion", 5, 8, 100), ("StartRegion", 5, 8, 200), ("StopRegion", 9, 8, 200)],
        *[("StartRegion", 4, 9, 101), ("Record", 5.5, 8, 201), ("StartRegion", 6, 9, 201), ("StopRegion", 7, 9, 201)],
        *[("StopRegion", 8, 9, 101), ("StartRegion", 8.5, 9, 300)],
    )
    found = xla_threads.Threads(tasks)
    for line, at, root in ((8, 2.5, 1), (8, 6, 2), (9, 4.5, 1), (9, 6.5, 2), (9, 7.5, 1), (1, 5, 1), (8, 9.5, 8)):
        assert found.root(event("x", at, at, line=line)) == (root, "")
    assert found.root(event("x", 9, 9, line=9)) is None, "handed in before the trace began"
    ranks = [event(hlo_trace.RANK, 0, 0, line=1, rank=6), event(hlo_trace.RANK, 0, 0, line=2, rank=7)]
    operations = [operation("banana", at, at + 0.2, line=9) for at in (4.5, 6.5)]
    assert [span.rank for span in traced(*tasks, *ranks, *operations, local=(6, 7)).spans] == [6, 7]
    with pytest.raises(errors.UnsupportedError, match="nor which rank's thread launched it"):
        traced(*tasks, *ranks, operation("banana", 9, 9.1, line=9), local=(6, 7))


def test_nothing_is_guessed():
    with pytest.raises(errors.UnsupportedError, match=r"no event .* names an HLO instruction"):
        traced(event("all-reduce", 1, 2))
    with pytest.raises(errors.UnsupportedError, match="all-reduce of a program jit_step whose text is not at hand"):
        traced(operation("all-reduce", 1, 2))


def test_programs_of_one_name():
    other = PROGRAM.replace("%banana = f32[8]{0} all-reduce", "%banana = f32[8]{0} negate")
    made = [MARK, operation("banana", 1, 2)]
    assert hlo_trace.trace(made, hlo_trace.Programs(PROGRAM, [other]), [0]).spans[0].kind == COMMUNICATION
    assert hlo_trace.trace(made, hlo_trace.Programs("", [other, other]), [0]).spans[0].kind == COMPUTE
    with pytest.raises(errors.UnsupportedError, match="two programs are called jit_step"):
        hlo_trace.trace(made, hlo_trace.Programs("", [PROGRAM, other]), [0])
    second = other.replace("HloModule jit_step", "HloModule jit_other")
    both = hlo_trace.Programs(PROGRAM + "\n" + second)
    assert both.kind("jit_step", "banana").kind == COMMUNICATION and both.kind("jit_other", "banana").kind == COMPUTE


def number(value: int) -> bytes:
    """As protobuf writes it."""
    made = b""
    while value > 0x7F:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return number(key << 3) + number(value)
    return number(key << 3 | 2) + number(len(value)) + value


def named(key: int, identity: int, name: bytes, more: bytes = b"") -> bytes:
    """An entry of a plane's map of names."""
    return field(key, field(1, identity) + field(2, field(1, identity) + field(2, name) + more))


def space() -> bytes:
    """One plane, one line, one event, whose stats are of every kind; its names stand behind its use."""
    stats = [
        field(1, 1) + number(2 << 3 | 1) + b"\x00\x00\x00\x00\x00\x00\xf8\x3f",
        field(1, 2) + field(3, 1 << 63),
        field(1, 3) + field(4, (1 << 64) - 5),
        field(1, 4) + field(5, "ü".encode()),
        field(1, 5) + field(6, b"\x00\xff"),
        field(1, 6) + field(7, 4),
    ]
    one = field(1, 8) + field(2, 3_000_000) + field(3, 2_000_000) + b"".join(field(4, stat) for stat in stats)
    line = field(1, 77) + field(2, b"thread") + field(3, 1000) + field(4, one) + number(99 << 3 | 5) + b"1234"
    names = b"".join(named(5, key, b"s%d" % key) for key in range(1, 8))
    kinds = named(4, 8, b"banana", field(5, field(1, 7) + field(4, 1)))
    return field(1, field(2, b"/host:CPU") + field(3, line) + kinds + names) + field(2, b"an error")


def test_the_reader(tmp_path):
    path = tmp_path / "made.xplane.pb"
    path.write_bytes(space())
    (found,) = xplane.events(path)
    expected = {"s1": 1.5, "s2": 1 << 63, "s3": -5, "s4": "ü", "s5": b"\x00\xff", "s6": "s4", "s7": 1}
    assert found.stats == expected
    assert (found.name, found.plane, found.line) == ("banana", HOST, (77, "thread"))
    assert found.start_s == pytest.approx(4e-6) and found.end_s == pytest.approx(6e-6)


@pytest.mark.parametrize("length", [5, 40, 120])
def test_a_file_that_is_cut_off(tmp_path, length):
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(space()[:length])
    with pytest.raises(ValueError, match="cut off"):
        xplane.events(path)


def test_another_file(tmp_path):
    path = tmp_path / "other.xplane.pb"
    path.write_bytes(b"\x0b{}")
    with pytest.raises(ValueError, match="not an XPlane file"):
        xplane.events(path)
