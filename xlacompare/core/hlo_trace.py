"""Traces of XLA's profiler to time lines: an event names an instruction, the program says what that instruction is.

XLA's runtimes put `hlo_op` and `hlo_module` on the events of their operations (on the CPU `TraceMe`s of thunks, on GPUs
the kernels of the device's planes). The event's own name, and that of the kernel, decide nothing.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Sequence

from xlacompare.core import errors, hlo_kinds, timeline, xla_threads, xplane

MARKER = "xlacompare_step"  # name of the event that each step stands in, with its number in the stat `step_num`
STEP = "step_num"
RANK = "xlacompare_rank"  # name of an event on the thread that launches the programs of the rank in its stat `rank`
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
    # Where devices have events of their own, the host's are dispatch.
    chosen = sorted(on_devices or operations, key=lambda event: event.start_s)
    spans = _Spans(events, programs, local).add(chosen)
    return timeline.Trace(sorted(windows, key=lambda window: (window.rank, window.step)), spans)


def _name(event: xplane.Event) -> tuple[str, str]:
    """Module and instruction of an operation's event."""
    return str(event.stats.get("hlo_module", "")), str(event.stats["hlo_op"])


class _Spans:
    """Spans of the events of operations, as they come."""

    def __init__(self, events: Sequence[xplane.Event], programs: Programs, local: Sequence[int]) -> None:
        self._programs, self._local = programs, local
        # "end: NAME" begins when other threads have done what an operation left them, or when the thread that did the
        # last of it has gone through what depends on it, if that is later.
        self._ends = {
            (event.stats.get("_ct"), event.stats["_c"]): event.start_s
            for event in events
            if event.name.startswith("end: ") and "_c" in event.stats
        }
        self._starts: dict[tuple[int, str, str], list[float]] = {}  # (rank, module, instruction) -> in order
        self._threads = xla_threads.Threads(events)
        self._launching: dict[xla_threads.Line | None, int] = {
            event.line: int(event.stats["rank"]) for event in events if event.name == RANK
        }
        self._made: list[timeline.Span] = []
        self._begun: dict[tuple[int, str, str], int] = {}  # (rank, module, start) -> place in `_made`

    def add(self, events: Sequence[xplane.Event]) -> list[timeline.Span]:
        """Spans for events of operations in the order of time, but for those of containers."""
        found = [(event, self._rank(event), self._known(event)) for event in events]
        for event, rank, _ in found:
            self._starts.setdefault((rank, *_name(event)), []).append(event.start_s)
        for event, rank, kind in found:
            if kind.kind:
                self._add(event, rank, kind)
        return self._made

    def _known(self, event: xplane.Event) -> hlo_kinds.Kind:
        module, name = _name(event)
        kind = self._programs.kind(module, name)
        if kind is None:
            raise errors.UnsupportedError(
                f"the trace has an instruction {name} of a program {module} whose text is not at hand: what it does "
                "cannot be said without guessing from its name"
            )
        return kind

    def _add(self, event: xplane.Event, rank: int, kind: hlo_kinds.Kind) -> None:
        module, name = _name(event)
        span = timeline.Span(event.start_s, self._end_s(event, rank), kind.kind, name, kind.operation, rank)
        begun = self._begun.pop((rank, module, kind.begun_by), None)
        if begun is not None:  # in flight from its start to its done
            self._made[begun] = dataclasses.replace(self._made[begun], end_s=max(self._made[begun].end_s, span.end_s))
            return
        if kind.kind == timeline.COMMUNICATION and not kind.begun_by:
            self._begun[rank, module, name] = len(self._made)
        self._made.append(span)

    def _end_s(self, event: xplane.Event, rank: int) -> float:
        """When the operation was done: at the end of its event, or later where it was left to other threads, but
        before anything that reads its result began.
        """
        end_s = self._ends.get((event.stats.get("_pt"), event.stats.get("_p")), event.end_s)
        if end_s <= event.end_s:
            return event.end_s
        return max(event.end_s, min(end_s, self._first_reader_s(event, rank)))

    def _first_reader_s(self, event: xplane.Event, rank: int) -> float:
        """When the first instruction began that reads the result, seen through those without events of their own."""
        module, name = _name(event)
        waiting, seen, first = [name], {name}, float("inf")
        while waiting:
            kind = self._programs.kind(module, waiting.pop())
            for reader in set(kind.readers if kind else ()) - seen:
                seen.add(reader)
                starts = self._starts.get((rank, module, reader), [])
                later = bisect.bisect_left(starts, event.start_s)
                if later < len(starts):
                    first = min(first, starts[later])
                elif not starts:
                    waiting.append(reader)
        return first

    def _rank(self, event: xplane.Event) -> int:
        if len(self._local) == 1:
            return self._local[0]
        if event.plane.startswith(_DEVICE):
            return self._local[int(event.plane.rpartition(":")[2])]
        if "device_ordinal" in event.stats:
            return self._local[int(event.stats["device_ordinal"])]
        root = self._threads.root(event)
        if root not in self._launching:
            raise errors.UnsupportedError(
                "this XLA's trace does not say which device an operation ran on (stat device_ordinal), nor which "
                f"rank's thread launched it, and the process has {len(self._local)} ranks"
            )
        return self._launching[root]
