"""Ranks of JAX: collectives as compiled programs over a mesh of devices. Those over MPI are in `mpi`."""

from __future__ import annotations

from typing import Any

import jax

from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_jax import counters, process, programs, steps, transports

_LIBRARY = {
    "inprocess": "XLA:CPU in-process collectives",
    "gloo": "XLA:CPU collectives over gloo (TCP)",
    "nccl": "XLA:GPU collectives over NCCL",
}


def connect(transport: str, mode: str, place: ranks.Place) -> ranks.Ranks:
    """Starts JAX and meets the other ranks. `transports.environment` must be in force since the process began.

    Raises:
      UnsupportedError: JAX has no such transport or mode, or the machine lacks devices.
    """
    spec = transports.TRANSPORTS.get(transport)
    if spec is None or mode not in spec.modes:
        reason = transports.LACKS.get(transport) or f"JAX has no transport {transport!r} in mode {mode!r}"
        raise errors.UnsupportedError(reason)
    if transport == "mpi":
        from xlacompare.frameworks.on_jax import mpi  # only this transport needs mpi4jax

        return mpi.MpiRanks(place)
    if mode == "process":
        return MeshRanks(transport, mode, place, process.join(place))
    devices = jax.devices()
    if len(devices) < place.size:
        raise errors.UnsupportedError(f"{place.size} ranks need as many devices, this process has {len(devices)}")
    return MeshRanks(transport, mode, place, devices[: place.size])


class MeshRanks:
    """Ranks on the devices of one JAX, in one process or several; see `ranks.Ranks`.

    Attributes:
      transport, mode: As they were connected.
      devices: Of all ranks, in order.
    """

    def __init__(self, transport: str, mode: str, place: ranks.Place, devices: list[jax.Device]) -> None:
        """`devices` are those of all ranks, in order."""
        self.local = (place.rank,) if mode == "process" else tuple(range(place.size))
        self.transport, self.mode, self.devices = transport, mode, devices
        self._place = place
        self._counters = counters.install()
        self._joined = mode == "process"
        self._meeting: steps.Step | None = None

    def describe(self) -> dict[str, Any]:
        """The environment keys."""
        device = self.devices[self.local[0]]
        return {
            **steps.versions(),
            "platform": device.platform,
            "device_kind": device.device_kind,
            "device_count": len(self.devices),
            "runtime": getattr(device.client, "platform_version", ""),
            "transport": _LIBRARY[self.transport],
        }

    def build(self, request: requests.Request, inputs: steps.Inputs) -> steps.Step:
        """Places the inputs and compiles.

        Raises:
          BadInputError: The request has no meaning (an indivisible count).
          UnsupportedError: JAX cannot do it; the reason is that of `transports.unsupported`.
        """
        reason = transports.unsupported(self.transport, self.mode, request, self._place.platform)
        if reason:
            raise errors.UnsupportedError(reason)
        table.validate(request)
        mesh, axis = programs.mesh_of(request, self.devices)
        local = {rank: self.devices[rank] for rank in self.local}
        buffers = steps.Buffers(request, local, programs.sharding_of(mesh))
        donate = request.placement == "in_place"
        with jax.enable_x64(request.dtype == "float64"):
            one_rank = programs.body(request, axis, self._place.platform)
            executable, times = programs.compile_over(one_rank, mesh, buffers.place(inputs), donate)

        def lowered() -> dict[str, Any]:
            return {"source": "hlo", "text": executable.as_text(), "optimised": True}

        return (steps.DonatedStep if donate else steps.Step)(executable, times, buffers, inputs, lowered)

    def barrier(self) -> None:
        """A sum of one element per rank. Nothing in one process, whose ranks are always together."""
        if not self._joined:
            return
        if self._meeting is None:
            self._meeting = self.build(requests.Request("barrier", "int32", 0, mesh=(len(self.devices),)), {})
        self._meeting.run(0)
        self._meeting.synchronize()

    def compile_count(self) -> int:
        """Programs that the backend was asked for."""
        return self._counters.snapshot().requests

    def close(self) -> None:
        """Leaves jax.distributed, which waits for the other ranks up to the deadline."""
        self._meeting = None
        if self._joined:
            self._joined = False
            jax.distributed.shutdown()
