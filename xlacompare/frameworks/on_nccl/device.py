"""Memory, copies and one stream of a CUDA device; an array's bytes in and out."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Device:
    """A CUDA device with a stream of its own, through `cuda.bindings.runtime`.

    Attributes:
      stream: cudaStream_t as an integer.
    """

    def __init__(self, runtime: types.ModuleType, number: int) -> None:
        self._runtime = runtime
        self._call("cudaSetDevice", number)
        self._stream = self._call("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)
        self.stream = int(self._stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls the runtime, whose functions return (error, result...).

        Raises:
          RuntimeError: The call failed.
        """
        error, *results = getattr(self._runtime, name)(*arguments)
        if int(error):
            _, text = self._runtime.cudaGetErrorString(error)
            raise RuntimeError(f"{name} failed: {text.decode() if isinstance(text, bytes) else text}")
        return results[0] if results else None

    def count(self) -> int:
        """Devices of this machine."""
        return int(self._call("cudaGetDeviceCount"))

    def name(self, number: int) -> str:
        """The device as the driver names it."""
        text = self._call("cudaGetDeviceProperties", number).name
        return text.decode().rstrip("\0") if isinstance(text, bytes) else str(text)

    def allocate(self, nbytes: int) -> int:
        """Address of new memory; of at least one byte, so that it has one."""
        return int(self._call("cudaMalloc", max(1, nbytes)))

    def free(self, address: int) -> None:
        """Gives memory back."""
        self._call("cudaFree", address)

    def write(self, address: int, array: NDArray) -> None:
        """Copies from the host and waits."""
        if array.nbytes:
            self._call("cudaMemcpy", address, array.ctypes.data, array.nbytes, self._kind("HostToDevice"))

    def read(self, address: int, array: NDArray) -> None:
        """Copies into a host array, after all work of the stream."""
        self.wait()
        if array.nbytes:
            self._call("cudaMemcpy", array.ctypes.data, address, array.nbytes, self._kind("DeviceToHost"))

    def zero(self, address: int, nbytes: int) -> None:
        """Fills with zeros, in the stream."""
        self._call("cudaMemsetAsync", address, 0, nbytes, self._stream)

    def wait(self) -> None:
        """Returns when all work of the stream is done."""
        self._call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Destroys the stream."""
        self._call("cudaStreamDestroy", self._stream)

    def _kind(self, name: str) -> Any:
        return getattr(self._runtime.cudaMemcpyKind, f"cudaMemcpy{name}")


def encode(array: NDArray, dtype: str) -> NDArray:
    """The bytes that NCCL gets: bfloat16 as the upper halves of float32 (whose values are bfloat16's already)."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(array, dtype=dtype)
    if array.dtype.name == "bfloat16":
        return np.ascontiguousarray(array).view(np.uint16)
    return (np.ascontiguousarray(array, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def decode(array: NDArray, dtype: str) -> NDArray:
    """Inverse of `encode`; bfloat16 widened to float32."""
    if dtype != "bfloat16":
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def empty(count: int, dtype: str) -> NDArray:
    """A host array for that many encoded elements."""
    return np.empty(count, np.uint16 if dtype == "bfloat16" else dtype)
