"""The stages of a jitted function, each timed: what both training steps and collectives are compiled through."""

from __future__ import annotations

import itertools
import time
from typing import Any

import jax

from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import counters


def ahead_of_time(
    jitted: Any, *arguments: Any
) -> tuple[jax.stages.Lowered, jax.stages.Compiled, interface.CompileTimes]:
    """Traces, lowers and compiles a jitted function for these arguments."""
    counts = counters.install()
    before = counts.snapshot()
    marks = [time.perf_counter()]
    traced = jitted.trace(*arguments)
    marks.append(time.perf_counter())
    lowered = traced.lower()
    marks.append(time.perf_counter())
    executable = lowered.compile()
    marks.append(time.perf_counter())
    spent = counts.snapshot() - before
    trace_s, lower_s, compile_s = (later - earlier for earlier, later in itertools.pairwise(marks))
    times = interface.CompileTimes(
        trace_s=trace_s,
        lower_s=lower_s,
        compile_s=compile_s,
        disk_cache_hits=spent.disk_hits,
        disk_cache_misses=spent.disk_misses,
        note="ahead of time; compile_s is the load time on a disk-cache hit",
    )
    return lowered, executable, times
