"""What a bare TCP socket transfers between two processes: the measured ceiling of a link. No timing code of ours.

python -m xlacompare.launch.bare_transfer serve ADDRESS PORT                one side
python -m xlacompare.launch.bare_transfer measure ADDRESS PORT BYTES N      the other; prints bytes a second, N times

Both sides send BYTES and receive BYTES at the same time, as the two neighbours of a ring do, so that acknowledgements
share each direction with data as they do in a collective. The rate is that of one direction, and the clock stops when
both sides have everything.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

CHUNK = 1 << 20


def exchange(connection: socket.socket, size: int) -> None:
    """Sends and receives `size` bytes at the same time, then a byte each way: the other side is done, too."""
    sender = threading.Thread(target=connection.sendall, args=(memoryview(bytes(size)),))
    sender.start()
    _receive(connection, size)
    sender.join()
    connection.sendall(b".")
    _receive(connection, 1)


def _receive(connection: socket.socket, size: int) -> None:
    while size:
        data = connection.recv(min(size, CHUNK))
        if not data:
            raise ConnectionError("the other side is gone")
        size -= len(data)


def serve(address: str, port: int) -> None:
    """Answers one client until it leaves: each round begins with the number of bytes."""
    with socket.create_server((address, port)) as listener:
        connection, _ = listener.accept()
    with connection:
        while len(head := connection.recv(8, socket.MSG_WAITALL)) == 8:
            exchange(connection, int.from_bytes(head, "big"))


def measure(address: str, port: int, size: int, rounds: int) -> list[float]:
    """Bytes a second and direction of each round; the first round, which opens the window, is not among them."""
    rates = []
    with socket.create_connection((address, port), timeout=60) as connection:
        connection.settimeout(None)
        for _ in range(rounds + 1):
            connection.sendall(size.to_bytes(8, "big"))
            begin = time.perf_counter()
            exchange(connection, size)
            rates.append(size / (time.perf_counter() - begin))
    return rates[1:]


def main(argv: list[str]) -> None:
    """See the module's text."""
    what, address, port, *rest = argv
    if what == "serve":
        serve(address, int(port))
    else:
        for rate in measure(address, int(port), int(rest[0]), int(rest[1])):
            sys.stdout.write(f"{rate:.0f}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
