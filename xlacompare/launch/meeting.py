"""Where ranks that this run did not start report to the coordinator: one listening socket, a token.

A rank's process connects by itself, whoever started it (mpiexec, a launcher's agent), so that all of them are asked the
same way; a child of the coordinator has a socket pair instead. The token keeps strangers on the network out; it travels
in the environment, which other users cannot read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from xlacompare.launch import protocol

LOOPBACK = "127.0.0.1"
ADDRESS_VARIABLE = "XLACOMPARE_MEETING"  # host:port
TOKEN_VARIABLE = "XLACOMPARE_TOKEN"
CHANNEL_VARIABLE = "XLACOMPARE_CHANNEL"  # file descriptor of an inherited socket, instead of address and token
RANK_VARIABLE = "XLACOMPARE_RANK"
LOG_VARIABLE = "XLACOMPARE_RANK_LOG"  # where the rank sends its own output; its number is put in for {rank}
HELLO_S = 5.0
CONNECT_S = 30.0


@dataclasses.dataclass
class Arrival:
    """One process that reported: who it says it is, and the channel to it."""

    hello: dict[str, Any]
    channel: protocol.Channel


def free_port(address: str = LOOPBACK) -> int:
    """A port that nobody listens on now, for the ranks' own meeting."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


class Meeting:
    """The coordinator's listening socket."""

    def __init__(self, token: str, address: str = LOOPBACK, ports: tuple[int, ...] = (0,)) -> None:
        """Listens on the first of `ports` that is free (0: any).

        Raises:
          OSError: None of them is free.
        """
        self._token = token
        self._socket = _listening(address, ports)
        self.port: int = self._socket.getsockname()[1]

    def accept(self, wanted: int, deadline_s: float, still: Callable[[], bool]) -> list[Arrival]:
        """Waits for `wanted` processes with the right token.

        Args:
          wanted: How many.
          deadline_s: Seconds.
          still: Asked twice a second whether waiting makes sense (False: somebody died).

        Returns:
          Those that came; fewer than `wanted` when the time passed or `still` said no.
        """
        end, arrived = time.monotonic() + deadline_s, list[Arrival]()
        while len(arrived) < wanted and time.monotonic() < end:
            ready, _, _ = select.select([self._socket], [], [], 0.5)
            if not ready and not still():
                break
            if ready and (arrival := self._greet()) is not None:
                arrived.append(arrival)
        return arrived

    def _greet(self) -> Arrival | None:
        connection, _ = self._socket.accept()
        channel = wrap(connection)
        with contextlib.suppress(protocol.StreamClosed, protocol.DeadlinePassed, ValueError):
            hello = channel.receive(HELLO_S)
            if hmac.compare_digest(str(hello.pop("token", "")), self._token):
                channel.send({"ok": None})
                return Arrival(hello, channel)
        channel.close()
        return None

    def close(self) -> None:
        """Frees the port."""
        self._socket.close()


def wrap(connection: socket.socket) -> protocol.Channel:
    """A channel whose small messages leave at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return protocol.Channel(connection)


def report(address: str, port: int, hello: dict[str, Any]) -> protocol.Channel:
    """Connects to the coordinator; `hello` holds the token.

    Raises:
      StreamClosed: It is not there, or refused the token.
      DeadlinePassed: Somebody listens there and does not answer.
    """
    try:
        connection = socket.create_connection((address, port), timeout=CONNECT_S)
    except OSError:
        raise protocol.StreamClosed from None
    connection.settimeout(None)
    channel = wrap(connection)
    channel.send(hello)
    channel.receive(HELLO_S)
    return channel


def _listening(address: str, ports: tuple[int, ...]) -> socket.socket:
    for last, port in ((port == ports[-1], port) for port in ports):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            listening.listen(1024)
            return listening
        except OSError:
            listening.close()
            if last:
                raise
    raise OSError("no port was offered")
