"""Reads XPlane files (*.xplane.pb), the traces of XLA's profiler, whichever framework started it.

The fields that are read, by the numbers of xplane.proto (openxla/xla, xla/tsl/profiler/protobuf). Plain protobuf wire
format, so that no package of a framework is needed, and two frameworks' traces are read by the same code.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

PICO = 1e-12
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SPACE_PLANES = 1
_PLANE_NAME, _PLANE_LINES, _PLANE_EVENT_NAMES, _PLANE_STAT_NAMES = 2, 3, 4, 5
_LINE_ID, _LINE_NAME, _LINE_TIMESTAMP_NS, _LINE_EVENTS = 1, 2, 3, 4
_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_NAMED_ID, _NAMED_NAME, _NAMED_STATS = 1, 2, 5
_MAP_VALUE = 2
_STAT_NAME, _STAT_DOUBLE, _STAT_UINT, _STAT_INT, _STAT_STR, _STAT_BYTES, _STAT_REF = 1, 2, 3, 4, 5, 6, 7


@dataclasses.dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
      name: Of its kind.
      start_s, end_s: Since the begin of the plane's clock; within a file comparable.
      stats: Its own values by name, and those that all events of its kind have.
      plane: "/host:CPU", "/device:GPU:0", ...
      line: (id, name) of the thread or stream.
    """

    name: str
    start_s: float
    end_s: float
    stats: dict[str, Any]
    plane: str
    line: tuple[int, str]


def events(path: pathlib.Path) -> list[Event]:
    """All events of a file, plane by plane, line by line.

    Raises:
      ValueError: Not such a file, or cut off.
    """
    found: list[Event] = []
    for number, plane in _fields(memoryview(path.read_bytes())):
        if number == _SPACE_PLANES:
            found += _Plane(plane).events()
    return found


class _Plane:
    """Names are said once for a plane, wherever its lines stand: two passes."""

    def __init__(self, buffer: memoryview) -> None:
        self.name, self._lines = "", []  # type: str, list[memoryview]
        self._kinds: dict[int, memoryview] = {}
        self._stat_names: dict[int, str] = {}
        for number, value in _fields(buffer):
            if number == _PLANE_NAME:
                self.name = _text(value)
            elif number == _PLANE_LINES:
                self._lines.append(value)
            elif number in (_PLANE_EVENT_NAMES, _PLANE_STAT_NAMES):
                named = dict(_fields(value)).get(_MAP_VALUE, memoryview(b""))
                entry = dict(_fields(named))
                if number == _PLANE_EVENT_NAMES:
                    self._kinds[entry.get(_NAMED_ID, 0)] = named
                else:
                    self._stat_names[entry.get(_NAMED_ID, 0)] = _text(entry.get(_NAMED_NAME, b""))
        self._named = {key: self._kind(named) for key, named in self._kinds.items()}

    def _kind(self, named: memoryview) -> tuple[str, dict[str, Any]]:
        """Name and stats of a kind of event."""
        name = ""
        stats: dict[str, Any] = {}
        for number, value in _fields(named):
            if number == _NAMED_NAME:
                name = _text(value)
            elif number == _NAMED_STATS:
                stats.update([self._stat(value)])
        return name, stats

    def events(self) -> Iterator[Event]:
        for line in self._lines:
            parts = list(_fields(line))
            head = dict(parts)
            where = int(head.get(_LINE_ID, 0)), _text(head.get(_LINE_NAME, b""))
            begin_s = head.get(_LINE_TIMESTAMP_NS, 0) * 1e-9
            for number, value in parts:
                if number == _LINE_EVENTS:
                    yield self._event(value, begin_s, where)

    def _event(self, buffer: memoryview, begin_s: float, line: tuple[int, str]) -> Event:
        kind = offset = duration = 0
        stats: dict[str, Any] = {}
        for number, value in _fields(buffer):
            if number == _EVENT_NAME:
                kind = value
            elif number == _EVENT_OFFSET_PS:
                offset = value
            elif number == _EVENT_DURATION_PS:
                duration = value
            elif number == _EVENT_STATS:
                stats.update([self._stat(value)])
        name, common = self._named.get(kind, ("", {}))
        start_s = begin_s + offset * PICO
        return Event(name, start_s, start_s + duration * PICO, {**common, **stats}, self.name, line)

    def _stat(self, buffer: memoryview) -> tuple[str, Any]:
        name, found = "", None
        for number, value in _fields(buffer):
            if number == _STAT_NAME:
                name = self._stat_names.get(value, "")
            elif number == _STAT_DOUBLE:
                found = struct.unpack("<d", value)[0]
            elif number == _STAT_INT:
                found = value - (1 << 64) if value >> 63 else value
            elif number == _STAT_STR:
                found = _text(value)
            elif number == _STAT_BYTES:
                found = bytes(value)
            elif number == _STAT_REF:
                found = self._stat_names.get(value, "")
            elif number == _STAT_UINT:
                found = value
        return name, found


def _fields(buffer: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message's fields: an int, or the bytes of a message, text or fixed number."""
    place = 0
    while place < len(buffer):
        key, place = _varint(buffer, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(buffer, place)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, place = _varint(buffer, place)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"not an XPlane file: wire type {wire}")
        if place + size > len(buffer):
            raise ValueError("the XPlane file is cut off")
        yield key >> 3, buffer[place : place + size]
        place += size


def _varint(buffer: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(buffer):
        byte = buffer[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("the XPlane file is cut off")


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace")
