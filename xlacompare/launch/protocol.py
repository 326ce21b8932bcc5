"""Requests and answers between the parent and a worker: one JSON object per line over a socket pair.

A request is {"op": NAME, ...}; an answer is {"ok": RESULT} or {"error": {"status": STATUS, "message": TEXT}}. A worker
that dies answers nothing: the parent reads the end of the stream. Arrays travel as files, named in the request.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any


class StreamClosed(Exception):
    """The other side is gone."""


class DeadlinePassed(Exception):
    """No answer within the deadline."""


class Channel:
    """One end of the socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message.

        Raises:
          StreamClosed: The other side is gone.
        """
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:  # broken pipe, reset
            raise StreamClosed from None

    def receive(self, deadline_s: float | None = None) -> dict[str, Any]:
        """Waits for one message.

        Raises:
          StreamClosed: The other side is gone.
          DeadlinePassed: `deadline_s` seconds passed.
        """
        end = None if deadline_s is None else time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            if end is not None:
                ready, _, _ = select.select([self._socket], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    raise DeadlinePassed
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                raise StreamClosed from None
            if not data:
                raise StreamClosed
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def fileno(self) -> int:
        """File descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether a whole message has been read from the socket already, so that `select` would not tell of it."""
        return b"\n" in self._buffer

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()
