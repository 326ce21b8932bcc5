"""Traces of XLA's profiler to time lines: an event names an instruction, the program says what that instruction is.

XLA's runtimes put `hlo_op` and `hlo_module` on the events of their operations (on the CPU `TraceMe`s of thunks, on GPUs
the kernels of the device's planes). The event's own name, and that of the kernel, decide nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from xlacompare.core import errors, hlo_kinds, timeline, xplane

MARKER = "xlacompare_step"  # name of the event that each step stands in, with its number in the stat `step_num`
STEP = "step_num"
_DEVICE = "/device:"
_BEGIN = re.compile(r"^(?=HloModule )", re.MULTILINE)


class Programs:
    """What instructions of the traced programs are, by names of module and instruction."""

    def __init__(self, own: str, others: Iterable[str] = ()) -> None:
        """Args:
        own: Optimised HLO of the step's program (or several, one after the other): believed before all others.
        others: Of programs that may run in a step as well.
        """
        self._own = {hlo_kinds.module_name(text): hlo_kinds.of_program(text) for text in _BEGIN.split(own) if text}
        self._others: dict[str, list[dict[str, hlo_kinds.Kind]]] = {}
        for text in others:
            self._others.setdefault(hlo_kinds.module_name(text), []).append(hlo_kinds.of_program(text))

    def kind(self, module: str, instruction: str) -> hlo_kinds.Kind | None:
        """What an instruction is; None of an unknown program.

        Raises:
          UnsupportedError: Two programs of this name have such an instruction, and only one of them communicates.
        """
        if module in self._own:
            return self._own[module].get(instruction)
        found = [kinds[instruction] for kinds in self._others.get(module, ()) if instruction in kinds]
        if len({kind.kind for kind in found}) > 1:
            raise errors.UnsupportedError(
                f"two programs are called {module} and have an instruction {instruction}: of one it communicates, of "
                "the other not, and the trace does not tell them apart; profile one cell in a process of its own"
            )
        return found[0] if found else None


def modules(events: Iterable[xplane.Event]) -> set[str]:
    """Names of the programs whose instructions the events name."""
    return {str(event.stats["hlo_module"]) for event in events if "hlo_module" in event.stats}


def trace(events: Sequence[xplane.Event], programs: Programs, local: Sequence[int]) -> timeline.Trace:
    """The time lines of the ranks of one process.

    Args:
      events: Of one file.
      programs: Those that ran.
      local: Global ranks of this process in the order of its devices.

    Raises:
      UnsupportedError: No event names an instruction, or one names a program that is not among `programs`.
    """
    windows = [
        timeline.Window(int(event.stats[STEP]), rank, event.start_s, event.end_s)
        for event in events
        if event.name == MARKER and STEP in event.stats
        for rank in local
    ]
    operations = [event for event in events if "hlo_op" in event.stats]
    on_devices = [event for event in operations if event.plane.startswith(_DEVICE)]
    if not operations:
        raise errors.UnsupportedError(
            "no event of the profiler's trace names an HLO instruction (stat hlo_op), so that no operation can be told "
            "from another; the trace itself is kept"
        )
    made = _Spans(events, programs, local)
    for event in sorted(
        on_devices or operations, key=lambda event: event.start_s
    ):  # with a device's own events, the host's are dispatch
        made.add(event)
    return timeline.Trace(sorted(windows, key=lambda window: (window.rank, window.step)), made.finish())


class _Spans:
    """Spans of the events of operations, as they come."""

    def __init__(self, events: Sequence[xplane.Event], programs: Programs, local: Sequence[int]) -> None:
        self._programs, self._local = programs, local
        # "end: NAME" closes what a thunk left running on other threads; its consumer id is the thunk's producer id.
        self._ends = {
            (event.stats.get("_ct"), event.stats["_c"]): event.end_s
            for event in events
            if event.name.startswith("end: ") and "_c" in event.stats
        }
        self._made: list[timeline.Span] = []
        self._begun: dict[tuple[int, str, str], int] = {}  # (rank, module, start) -> place in `_made`

    def add(self, event: xplane.Event) -> None:
        """A span for the event, but for one of a container."""
        module, name = str(event.stats.get("hlo_module", "")), str(event.stats["hlo_op"])
        kind = self._programs.kind(module, name)
        if kind is None:
            raise errors.UnsupportedError(
                f"the trace has an instruction {name} of a program {module} whose text is not at hand: what it does "
                "cannot be said without guessing from its name"
            )
        if not kind.kind:
            return
        rank = self._rank(event)
        span = timeline.Span(event.start_s, self._end_s(event), kind.kind, name, kind.operation, rank)
        begun = self._begun.pop((rank, module, kind.begun_by), None)
        if begun is not None:  # in flight from its start to its done
            span = dataclasses.replace(self._made[begun], end_s=max(self._made[begun].end_s, span.end_s))
            self._made[begun] = span
            return
        if kind.kind == timeline.COMMUNICATION and not kind.begun_by:
            self._begun[rank, module, name] = len(self._made)
        self._made.append(span)

    def finish(self) -> list[timeline.Span]:
        """All of them."""
        return self._made

    def _end_s(self, event: xplane.Event) -> float:
        """When the operation was done: of one that went on elsewhere, later than its event."""
        if "_p" not in event.stats:
            return event.end_s
        return max(event.end_s, self._ends.get((event.stats.get("_pt"), event.stats["_p"]), event.end_s))

    def _rank(self, event: xplane.Event) -> int:
        if len(self._local) == 1:
            return self._local[0]
        if event.plane.startswith(_DEVICE):
            return self._local[int(event.plane.rpartition(":")[2])]
        if "device_ordinal" not in event.stats:
            raise errors.UnsupportedError(
                "this XLA's trace does not say which device an operation ran on (stat device_ordinal), and the "
                f"process has {len(self._local)} ranks"
            )
        return self._local[int(event.stats["device_ordinal"])]
