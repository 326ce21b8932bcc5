"""Compile counters of JAX, from the events of jax.monitoring. Tried with jax 0.10.2.

`jax.monitoring` is public, the names of its events are not documented: they are listed here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools

import jax

# Fires for every program that the backend compiles *or* loads from the disk cache, in every mode (also for the one-op
# programs of eager mode and for ahead-of-time compilation).
_BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_DISK_HIT = "/jax/compilation_cache/cache_hits"
_DISK_MISS = "/jax/compilation_cache/cache_misses"


@dataclasses.dataclass(frozen=True)
class Counts:
    """Totals since `install`.

    Attributes:
      requests: Programs that the backend was asked for: compiled or loaded from disk.
      disk_hits: Of these, loaded from the persistent cache.
      disk_misses: Of these, looked up there in vain (0 without a persistent cache).
      trace_s, lower_s, compile_s: Seconds in the three phases (nested traces count twice; load time counts as compile).
    """

    requests: int = 0
    disk_hits: int = 0
    disk_misses: int = 0
    trace_s: float = 0.0
    lower_s: float = 0.0
    compile_s: float = 0.0

    def __sub__(self, earlier: Counts) -> Counts:
        names = [field.name for field in dataclasses.fields(Counts)]
        return Counts(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def __add__(self, other: Counts) -> Counts:
        names = [field.name for field in dataclasses.fields(Counts)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Counters:
    """Listens to the compile events of this process."""

    def __init__(self) -> None:
        self._seconds = {_TRACE: 0.0, _LOWER: 0.0, _BACKEND_COMPILE: 0.0}
        self._events = {_DISK_HIT: 0, _DISK_MISS: 0}
        self.requests = 0

    def on_duration(self, event: str, duration_secs: float, **_: object) -> None:
        """Listener of duration events."""
        if event in self._seconds:
            self._seconds[event] += duration_secs
            self.requests += event == _BACKEND_COMPILE

    def on_event(self, event: str, **_: object) -> None:
        """Listener of plain events."""
        if event in self._events:
            self._events[event] += 1

    def snapshot(self) -> Counts:
        """Totals until now."""
        return Counts(
            requests=self.requests,
            disk_hits=self._events[_DISK_HIT],
            disk_misses=self._events[_DISK_MISS],
            trace_s=self._seconds[_TRACE],
            lower_s=self._seconds[_LOWER],
            compile_s=self._seconds[_BACKEND_COMPILE],
        )


@functools.cache
def install() -> Counters:
    """The counters of this process; the listeners are registered at the first call only."""
    counters = Counters()
    jax.monitoring.register_event_duration_secs_listener(counters.on_duration)
    jax.monitoring.register_event_listener(counters.on_event)
    return counters
