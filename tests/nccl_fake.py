"""NCCL and CUDA's runtime in host memory, for one process whose threads are the ranks: the functions that on_nccl uses.

Addresses are those of real host buffers; a collective meets at a barrier per communicator, and computes with NumPy.
"""

from __future__ import annotations

import ctypes
import enum
import queue
import threading
import types
from typing import Any

import numpy as np

KINDS = {2: np.int32, 6: np.float16, 7: np.float32, 8: np.float64, 9: np.uint16}
BFLOAT16 = 9
DEADLINE_S = 20


class Error(enum.IntEnum):
    OK = 0
    INVALID = 1


class Runtime:
    """cuda.bindings.runtime: every function returns (error, results...)."""

    cudaStreamNonBlocking = 1
    cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)

    def __init__(self, devices: int) -> None:
        self.devices, self.memory = devices, {}

    def cudaGetDeviceCount(self) -> tuple:
        return Error.OK, self.devices

    def cudaSetDevice(self, number: int) -> tuple:
        return (Error.OK if number < self.devices else Error.INVALID,)

    def cudaGetErrorString(self, error: Error) -> tuple:
        return Error.OK, b"invalid argument"

    def cudaGetDeviceProperties(self, number: int) -> tuple:
        return Error.OK, types.SimpleNamespace(name=b"fake\0\0")

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple:
        return Error.OK, 77

    def cudaStreamSynchronize(self, stream: int) -> tuple:
        return (Error.OK,)

    cudaStreamDestroy = cudaStreamSynchronize

    def cudaMalloc(self, nbytes: int) -> tuple:
        buffer = np.full(nbytes, 0xAB, np.uint8)
        self.memory[buffer.ctypes.data] = buffer
        return Error.OK, buffer.ctypes.data

    def cudaFree(self, address: int) -> tuple:
        return (Error.OK if self.memory.pop(address, None) is not None else Error.INVALID,)

    def cudaMemcpy(self, target: int, source: int, nbytes: int, kind: int) -> tuple:
        ctypes.memmove(target, source, nbytes)
        return (Error.OK,)

    def cudaMemsetAsync(self, address: int, value: int, nbytes: int, stream: int) -> tuple:
        ctypes.memset(address, value, nbytes)
        return (Error.OK,)


class Group:
    """What the ranks of a communicator share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.board = size, threading.Barrier(size), {}
        self.children: dict[Any, Group] = {}
        self.queues: dict[tuple[int, int], queue.Queue] = {}


class Nccl:
    """nccl.bindings.nccl."""

    def __init__(self) -> None:
        self.groups: dict[bytes, Group] = {}
        self.lock, self.local = threading.Lock(), threading.local()
        self.live = 0

    def get_version(self) -> int:
        return 22705

    def get_unique_id(self) -> bytes:
        return b"\x05" * 128

    def comm_init_rank(self, size: int, unique_id: bytearray, rank: int) -> tuple[Group, int]:
        assert bytes(unique_id) == self.get_unique_id(), "the id of rank 0"
        with self.lock:
            self.live += 1
            return self.groups.setdefault(bytes(unique_id), Group(size)), rank

    def comm_split(self, handle: tuple[Group, int], color: int, key: int, config: int) -> tuple[Group, int]:
        everyone = self._exchange(handle, (color, key))
        mine = sorted(k for c, k in everyone if c == color)
        group, _ = handle
        with self.lock:
            self.live += 1
            child = group.children.setdefault((tuple(everyone), color), Group(len(mine)))
        return child, mine.index(key)

    def comm_destroy(self, handle: Any) -> None:
        with self.lock:
            self.live -= 1

    def _exchange(self, handle: tuple[Group, int], value: Any) -> list[Any]:
        group, rank = handle
        group.board[rank] = value
        group.barrier.wait(DEADLINE_S)
        values = [group.board[r] for r in range(group.size)]
        group.barrier.wait(DEADLINE_S)
        return values

    def all_reduce(self, source: int, target: int, count: int, kind: int, op: int, handle: Any, stream: int) -> None:
        write(target, kind, combine(self._exchange(handle, read(source, count, kind)), kind, op))

    def all_gather(self, source: int, target: int, count: int, kind: int, handle: Any, stream: int) -> None:
        write(target, kind, np.concatenate(self._exchange(handle, read(source, count, kind))))

    def reduce_scatter(
        self, source: int, target: int, count: int, kind: int, op: int, handle: Any, stream: int
    ) -> None:
        group, rank = handle
        whole = combine(self._exchange(handle, read(source, count * group.size, kind)), kind, op)
        write(target, kind, whole[rank * count : (rank + 1) * count])

    def broadcast(self, source: int, target: int, count: int, kind: int, root: int, handle: Any, stream: int) -> None:
        write(target, kind, self._exchange(handle, read(source, count, kind))[root])

    def group_start(self) -> None:
        self.local.sends, self.local.receives = [], []

    def send(self, address: int, count: int, kind: int, peer: int, handle: Any, stream: int) -> None:
        self.local.sends.append((peer, read(address, count, kind), handle))

    def recv(self, address: int, count: int, kind: int, peer: int, handle: Any, stream: int) -> None:
        self.local.receives.append((peer, address, kind, handle))

    def group_end(self) -> None:
        """Transfers go through a queue per (from, to)."""
        for peer, array, (group, rank) in self.local.sends:
            self._queue(group, rank, peer).put(array)
        for peer, address, kind, (group, rank) in self.local.receives:
            write(address, kind, self._queue(group, peer, rank).get(timeout=DEADLINE_S))

    def _queue(self, group: Group, source: int, target: int) -> queue.Queue:
        with self.lock:
            return group.queues.setdefault((source, target), queue.Queue())


def read(address: int, count: int, kind: int) -> np.ndarray:
    """A copy; bfloat16 widened."""
    dtype = np.dtype(KINDS[kind])
    array = np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype)
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT16 else array


def write(address: int, kind: int, array: np.ndarray) -> None:
    if kind == BFLOAT16:
        array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    data = np.ascontiguousarray(array, KINDS[kind]).tobytes()
    ctypes.memmove(address, data, len(data))


def combine(arrays: list[np.ndarray], kind: int, op: int) -> np.ndarray:
    stacked = np.stack(arrays)
    if op == 4:
        return (stacked.sum(0, dtype=np.float64) / len(arrays)).astype(stacked.dtype)
    return {0: np.add, 2: np.maximum, 3: np.minimum}[op].reduce(stacked)
