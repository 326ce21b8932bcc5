"""NCCL's unique id from rank 0 to the others, over one TCP connection each."""

from __future__ import annotations

import socket
import time


def share(rank: int, size: int, address: str, port: int, deadline_s: float, own: bytes) -> bytes:
    """Rank 0's bytes, at every rank.

    Args:
      rank: This process's.
      size: Ranks in all.
      address: Where rank 0 listens, with `port`.
      port: See `address`.
      deadline_s: Seconds until all must have met.
      own: Rank 0's bytes; of the others only the length counts.

    Raises:
      TimeoutError: Somebody did not come.
    """
    end = time.monotonic() + deadline_s
    if rank == 0:
        _hand_out(size - 1, address, port, end, own)
        return own
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(0.1, end - time.monotonic())) as connection:
                return _receive(connection, len(own))
        except ConnectionRefusedError:  # rank 0 is not there yet
            if time.monotonic() > end:
                raise TimeoutError(f"rank 0 does not listen on {address}:{port} after {deadline_s:g} s") from None
            time.sleep(0.05)


def _hand_out(others: int, address: str, port: int, end: float, data: bytes) -> None:
    with socket.create_server((address, port)) as server:
        for _ in range(others):
            server.settimeout(max(0.1, end - time.monotonic()))
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise TimeoutError("rank 0 closed the connection before it sent NCCL's unique id")
        data += part
    return data
