"""Counters of torch_xla: compilations, seconds, fallbacks. Private or undocumented names, one function each.

All tried with torch 2.9.1, torch_xla 2.9.0.
"""

from __future__ import annotations

import contextlib
import dataclasses

import torch_xla
from torch._dynamo import utils as dynamo_utils
from torch_xla.debug import metrics

_NANOSECONDS = 1e-9


def uncached_compiles() -> int:
    """Programs that torch_xla compiled, lazy or op by op (`CompileTime` counts only the lazy ones)."""
    return int(metrics.counter_value("UncachedCompile") or 0)


def timed_compiles() -> tuple[int, float]:
    """Number and seconds of the compilations of lazy graphs and of Dynamo's graphs."""
    data = metrics.metric_data("CompileTime")
    return (int(data[0]), float(data[1]) * _NANOSECONDS) if data else (0, 0.0)


def dynamo_graphs() -> int:
    """Graphs that Dynamo captured; a recompile is a new one, also where XLA's program cache then hits."""
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


def dynamo_extractions() -> int:
    """Graphs that the `openxla` backend traced into XLA; again when an input's sharding or kind changes."""
    return int(metrics.counter_value("DynamoExtractCompiledGraph") or 0)


def compile_count() -> int:
    """Sum of all of the above: it moves whenever anything is compiled, and is otherwise without meaning."""
    return uncached_compiles() + timed_compiles()[0] + dynamo_graphs() + dynamo_extractions()


def fallbacks() -> dict[str, int]:
    """Operations that XLA lacks and that ran in native torch on the CPU: name (`aten::...`) -> calls so far."""
    names = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return {name: int(metrics.counter_value(name)) for name in names}


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Readings at one moment; compare two with `-`."""

    programs: int
    compile_s: float

    def __sub__(self, before: Snapshot) -> Snapshot:
        return Snapshot(self.programs - before.programs, self.compile_s - before.compile_s)


def snapshot() -> Snapshot:
    """Programs compiled so far, and the seconds of those whose compilation torch_xla times."""
    return Snapshot(uncached_compiles(), timed_compiles()[1])


def set_eager(on: bool) -> None:
    """Switches torch_xla's eager mode for the whole process, as `torch_xla.experimental.eager_mode` does."""
    torch_xla._XLAC._set_use_eager_mode(on)


def traced(name: str, **stats: int) -> contextlib.AbstractContextManager[object]:
    """An event of the calling thread in a running trace.

    `torch_xla.debug.profiler.Trace` is one too, but names the scope of what is traced inside: torch_xla refuses to
    launch a graph in it ("Expecting scope to be empty").
    """
    return torch_xla._XLAC.profiler.TraceMe(name, **stats)
