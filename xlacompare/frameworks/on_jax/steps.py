"""Buffers of a collective on the devices of this process, and the step that runs its program over them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.frameworks import interface

# More than 32 executions in flight deadlock XLA:CPU in one process (jaxlib 0.10.2: "Expected 2 threads to join the
# rendezvous, but only 1 of them arrived", then the process aborts): 33 did within seconds, 32 never. Half of that is
# allowed, and less where the outputs are large, so that a block of 256 MiB collectives does not hold gigabytes.
_MOST_PENDING = 16
_PENDING_BYTES = 64 << 20

Inputs = Mapping[int, np.ndarray]


class Buffers:
    """Places inputs and reads outputs.

    Attributes:
      output_bytes: Bytes that the ranks of this process get together.
    """

    def __init__(self, request: requests.Request, devices: Mapping[int, jax.Device], sharding: Sharding) -> None:
        """Args:
        request: The collective.
        devices: Device of each rank of this process.
        sharding: Of a 1-D array that holds every shard, rank after rank.
        """
        self._devices = dict(devices)
        self._ranks = {device: rank for rank, device in devices.items()}
        self._sharding = sharding
        self._barrier = request.collective == "barrier"
        self._count = 1 if self._barrier else request.count
        self._dtype = jnp.dtype(request.dtype)
        self.output_bytes = len(devices) * max(table.output_count(request), 1) * self._dtype.itemsize

    def place(self, inputs: Inputs) -> jax.Array:
        """The inputs of this process's ranks as one array, a rank after the other; waits. A barrier gets one element
        per rank.
        """
        host = {rank: np.ones(1) for rank in self._devices} if self._barrier else inputs
        with jax.enable_x64(self._dtype.itemsize == 8):
            shards = [_copy_to(device, host[rank].astype(self._dtype)) for rank, device in self._devices.items()]
            shape = (len(self._sharding.device_set) * self._count,)
            return jax.block_until_ready(jax.make_array_from_single_device_arrays(shape, self._sharding, shards))

    def outputs(self, array: jax.Array) -> dict[int, np.ndarray]:
        """Output of each rank of this process."""
        if self._barrier:
            return {rank: np.empty(0, self._dtype) for rank in self._devices}
        return {self._ranks[shard.device]: np.array(shard.data) for shard in array.addressable_shards}


def _copy_to(device: jax.Device, host: np.ndarray) -> jax.Array:
    """Copies a host array to a device.

    The CPU client borrows NumPy's memory where it happens to be aligned (jax 0.10.2, also with may_alias=False): the
    second device_put, from device to device, does copy.
    """
    return jax.device_put(jax.device_put(host, device), device, may_alias=False)


class Step:
    """A compiled collective out of place; see `ranks.CollectiveStep`."""

    def __init__(
        self,
        call: Callable[[jax.Array], jax.Array],
        compile_times: interface.CompileTimes,
        buffers: Buffers,
        inputs: Inputs,
        lowered: Callable[[], dict[str, Any]],
    ) -> None:
        """Args:
        call: The program, input to output.
        compile_times: What it cost.
        buffers: Where input and output lie.
        inputs: By rank.
        lowered: What `lowered` answers.
        """
        self.compile_times = compile_times
        self._call: Any = call
        self._buffers = buffers
        self._lowered: Any = lowered
        self._input: Any = buffers.place(inputs)
        self._last: Any = None
        self._pending = 0
        self._most = most_pending(buffers.output_bytes)

    def run(self, index: int) -> None:
        """Dispatches once; waits when too many runs are in flight. An output is dropped with the next run, as in any
        loop over a jitted function: memory that is freed early is used again.
        """
        self._last = self._call(self._input)
        self._pending += 1
        if self._pending >= self._most:
            self.synchronize()

    def synchronize(self) -> None:
        """Waits for the last output. Programs of a device end in the order of their dispatch: on a GPU by the stream;
        for XLA:CPU a test holds it.
        """
        self._pending = 0
        if self._last is not None:
            self._last.block_until_ready()

    def refill(self) -> None:
        """Nothing to do: the input is never overwritten."""

    def copy(self) -> bool:
        """False: `run` contains no copy of ours (a copy inside XLA's program is in its census)."""
        return False

    def outputs(self) -> dict[int, np.ndarray]:
        """Output of the last run by rank; waits.

        Raises:
          ValueError: Nothing has run.
        """
        self.synchronize()
        if self._last is None:
            raise ValueError("no run since the build")
        return self._buffers.outputs(self._last)

    def lowered(self) -> dict[str, Any]:
        """What ran."""
        return self._lowered()

    def close(self) -> None:
        """Drops buffers and program."""
        self._input = self._last = self._call = self._lowered = None


class DonatedStep(Step):
    """In place: the input's memory is donated to the output, which feeds the next run."""

    def __init__(
        self,
        call: Callable[[jax.Array], jax.Array],
        compile_times: interface.CompileTimes,
        buffers: Buffers,
        inputs: Inputs,
        lowered: Callable[[], dict[str, Any]],
    ) -> None:
        """See `Step`. The host's inputs are kept for `refill`."""
        super().__init__(call, compile_times, buffers, inputs, lowered)
        self._host = dict(inputs)

    def run(self, index: int) -> None:
        """Dispatches once; waits when too many runs are in flight."""
        super().run(index)
        self._input = self._last

    def refill(self) -> None:
        """Puts the input back."""
        self.synchronize()
        self._last = None
        self._input = self._buffers.place(self._host)

    def close(self) -> None:
        """Drops buffers and program."""
        super().close()
        self._host = {}


def most_pending(output_bytes: int) -> int:
    """Runs with `output_bytes` bytes of output that may be in flight at once in this process."""
    return max(1, min(_MOST_PENDING, _PENDING_BYTES // max(1, output_bytes)))


def versions(*distributions: str) -> dict[str, Any]:
    """Versions, flags and threads of this process."""
    return {
        **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", *distributions)},
        "threads": int(os.environ.get("NPROC") or len(os.sched_getaffinity(0))),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "x64": bool(jax.config.values["jax_enable_x64"]),
    }
