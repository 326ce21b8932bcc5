"""Traces of torch's profiler (kineto's Chrome trace events) to time lines.

On the CPU communication is what the communication library's own records say, gloo's from its worker threads; compute is
the time inside of the dispatcher's operators, but for those that call or wait for communication. On a GPU both are
activities of the device; one is communication when the call that launched it is one of torch.distributed's: the link is
the profiler's (External id), not the kernel's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xlacompare.core import errors, intervals, timeline

MARKER = "xlacompare_step#"  # name of the annotation that each step stands in, with its number behind it
# Namespaces of operators that start communication or wait for it; their time on the calling thread is neither.
CALLS = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"}
# Libraries whose records say when an operation ran.
LIBRARIES = {"gloo", "mpi"}
# Compiled code has no operators inside; the call of the compiled graph stands for them.
COMPILED = "## Call CompiledFxGraph"
NCCL = "record_param_comms"
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_MICRO = 1e-6
Event = Mapping[str, Any]


def trace(events: Iterable[Event], rank: int, is_operator: Callable[[str, str], bool]) -> timeline.Trace:
    """The time line of one rank.

    Args:
      events: "traceEvents" of the file.
      rank: Global rank.
      is_operator: Of (namespace, name): whether the dispatcher has such an operator.

    Raises:
      UnsupportedError: The library has fewer records than torch.distributed has calls.
    """
    timed = sorted((event for event in events if "ts" in event and "dur" in event), key=lambda event: event["ts"])
    windows = [
        timeline.Window(int(event["name"].removeprefix(MARKER)), rank, *_ends(event))
        for event in timed
        if event["name"].startswith(MARKER) and event.get("cat") == "user_annotation"
    ]
    on_device = [event for event in timed if event.get("cat") in _DEVICE]
    if on_device:
        spans = _device_spans(on_device, timed, rank)
    else:
        spans = _host_spans(timed, rank, is_operator)
    return timeline.Trace(windows, spans)


def _ends(event: Event) -> tuple[float, float]:
    return event["ts"] * _MICRO, (event["ts"] + event["dur"]) * _MICRO


def _namespace(event: Event) -> str:
    return event["name"].partition("::")[0] if "::" in event["name"] else ""


def _host_spans(timed: Sequence[Event], rank: int, is_operator: Callable[[str, str], bool]) -> list[timeline.Span]:
    calls = [event for event in timed if _namespace(event) in CALLS and event.get("cat") == "cpu_op"]
    asked = [event for event in calls if _namespace(event) == "c10d"]
    markers = [event for event in timed if event["name"].startswith(MARKER)]
    callers = {event.get("tid") for event in (*calls, *markers)}
    # On the library's own threads: a user's annotation of such a name stands where the user's code runs.
    records = [e for e in timed if e["name"].partition(":")[0] in LIBRARIES and e.get("tid") not in callers]
    if len(records) < len(asked):
        raise errors.UnsupportedError(
            f"torch.distributed was called {len(asked)} times in the traced steps, and its library has records of "
            f"{len(records)} operations: what the others took cannot be seen"
        )
    spans = [_span(event, timeline.COMMUNICATION, rank) for event in records]
    # What operators do on the library's threads (gloo's copies) is part of its operations.
    for thread in {event.get("tid") for event in timed} - {event.get("tid") for event in records}:
        called = intervals.union(_ends(event) for event in calls if event.get("tid") == thread)
        for event in timed:
            if event.get("tid") == thread and _computes(event, is_operator):
                spans += _without(_span(event, timeline.COMPUTE, rank), called)
    return spans


def _without(span: timeline.Span, holes: intervals.Intervals) -> list[timeline.Span]:
    left = intervals.difference(intervals.union([(span.start_s, span.end_s)]), holes)
    return [
        dataclasses.replace(span, start_s=start, end_s=end, counted=place == 0)
        for place, (start, end) in enumerate(left)
    ]


def _computes(event: Event, is_operator: Callable[[str, str], bool]) -> bool:
    if event["name"].startswith(COMPILED):
        return True
    namespace, _, name = event["name"].partition("::")
    return event.get("cat") == "cpu_op" and bool(name) and namespace not in CALLS and is_operator(namespace, name)


def _span(event: Event, kind: str, rank: int) -> timeline.Span:
    operation = "compiled graph" if event["name"].startswith(COMPILED) else event["name"]
    return timeline.Span(*_ends(event), kind, event["name"], operation, rank)


def _device_spans(on_device: Sequence[Event], timed: Sequence[Event], rank: int) -> list[timeline.Span]:
    """Kernels and copies. What NCCL launches stands under its record, which says which collective it is."""
    names: dict[Any, str] = {}
    for event in timed:
        if event.get("cat") in _DEVICE:
            continue
        args = event.get("args", {})
        if event["name"] == NCCL and "Collective name" in args:
            names[args.get("External id")] = f"nccl:{args['Collective name']}"
        elif _namespace(event) in CALLS:
            names.setdefault(args.get("External id"), event["name"])
    names.pop(None, None)
    operators = {e["args"].get("External id"): e["name"] for e in timed if e.get("cat") == "cpu_op" and "args" in e}
    spans = []
    for event in on_device:
        link = event.get("args", {}).get("External id")
        communicates = link in names
        operation = names[link] if communicates else operators.get(link, f"{event['cat']} of no operator")
        kind = timeline.COMMUNICATION if communicates else timeline.COMPUTE
        spans.append(timeline.Span(*_ends(event), kind, event["name"], operation, rank))
    return spans
