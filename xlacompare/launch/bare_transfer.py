"""What a bare TCP socket transfers between two processes: the measured ceiling of a link. No timing code of ours.

python -m xlacompare.launch.bare_transfer serve ADDRESS PORT                one side
python -m xlacompare.launch.bare_transfer measure ADDRESS PORT BYTES N      the other; prints two numbers N times

A round is two transfers of BYTES: one way, this side to the other, which is what a link is said to carry; and both ways
at once, as between the neighbours of a ring, where acknowledgements share each direction with data and TCP loses more
to it. Each number is bytes a second of one direction, and the clock stops when the receivers have everything.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time

CHUNK = 1 << 20
HEAD = struct.Struct("!QQ")  # bytes that the server receives, bytes that it sends


def exchange(connection: socket.socket, out: int, back: int) -> None:
    """Sends `out` and receives `back` bytes at the same time, then a byte each way: the other side is done, too."""
    sender = threading.Thread(target=_send, args=(connection, out))
    sender.start()
    _receive(connection, back)
    sender.join()
    connection.sendall(b".")
    _receive(connection, 1)


def _send(connection: socket.socket, size: int) -> None:
    chunk = memoryview(bytes(CHUNK))
    while size:
        size -= connection.send(chunk[:size])


def _receive(connection: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(CHUNK))
    while size:
        got = connection.recv_into(buffer[:size])
        if not got:
            raise ConnectionError("the other side is gone")
        size -= got


def serve(address: str, port: int) -> None:
    """Answers one client until it leaves: each transfer begins with its bytes to here and back."""
    with socket.create_server((address, port)) as listener:
        connection, _ = listener.accept()
    with connection:
        while len(head := connection.recv(HEAD.size, socket.MSG_WAITALL)) == HEAD.size:
            here, back = HEAD.unpack(head)
            exchange(connection, back, here)


def measure(address: str, port: int, size: int, rounds: int) -> list[tuple[float, float]]:
    """Bytes a second one way, and of each direction both ways; without the first round, which opens the window."""
    rates = []
    with socket.create_connection((address, port), timeout=60) as connection:
        connection.settimeout(None)
        for _ in range(rounds + 1):
            rates.append((_timed(connection, size, 0), _timed(connection, size, size)))
    return rates[1:]


def _timed(connection: socket.socket, out: int, back: int) -> float:
    connection.sendall(HEAD.pack(out, back))
    begin = time.perf_counter()
    exchange(connection, out, back)
    return out / (time.perf_counter() - begin)


def main(argv: list[str]) -> None:
    """See the module's text."""
    what, address, port, *rest = argv
    if what == "serve":
        serve(address, int(port))
    else:
        for one_way, both_ways in measure(address, int(port), int(rest[0]), int(rest[1])):
            sys.stdout.write(f"{one_way:.0f} {both_ways:.0f}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
