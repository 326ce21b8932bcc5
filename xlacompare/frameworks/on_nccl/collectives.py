"""The ranks of NCCL, and one collective at a time on them."""

from __future__ import annotations

import os
import platform
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.collectives import table
from xlacompare.core import errors
from xlacompare.frameworks import interface, ranks
from xlacompare.frameworks.on_nccl import communicator, meeting, transports
from xlacompare.frameworks.on_nccl import device as devices


def connect(transport: str, mode: str, place: ranks.Place) -> NcclRanks:
    """Joins the other ranks.

    Raises:
      UnsupportedError: Not NCCL.
      BadInputError: More ranks on this machine than devices.
    """
    if transport not in transports.TRANSPORTS or mode not in transports.TRANSPORTS[transport].modes:
        raise errors.UnsupportedError(f"nccl: {transports.LACKS.get(transport, f'no {transport!r} in mode {mode!r}')}")
    from cuda.bindings import runtime
    from nccl.bindings import nccl

    return join(nccl, runtime, place)


def join(nccl: types.ModuleType, runtime: types.ModuleType, place: ranks.Place) -> NcclRanks:
    """`connect` with the libraries given: nccl.bindings.nccl and cuda.bindings.runtime, or what stands in for them."""
    error, found = runtime.cudaGetDeviceCount()
    if int(error) or place.local_rank >= found:
        raise errors.BadInputError(
            f"rank {place.rank} is number {place.local_rank} of this machine, where CUDA sees {found or 0} device(s); "
            "NCCL wants one per rank: start fewer ranks, or look at CUDA_VISIBLE_DEVICES and the driver"
        )
    device = devices.Device(runtime, place.local_rank)
    own = bytes(nccl.get_unique_id()) if place.rank == 0 else bytes(128)  # sizeof(ncclUniqueId)
    unique_id = meeting.share(place.rank, place.size, place.address, place.port, place.deadline_s, own)
    handle = nccl.comm_init_rank(place.size, bytearray(unique_id), place.rank)
    world = communicator.Communicator(nccl, handle, tuple(range(place.size)), place.rank, device.stream)
    return NcclRanks(nccl, device, world, place)


class NcclRanks:
    """One rank; the process is the rank."""

    def __init__(
        self, nccl: types.ModuleType, device: devices.Device, world: communicator.Communicator, place: ranks.Place
    ) -> None:
        self.local = (place.rank,)
        self._nccl, self._device, self._world, self._place = nccl, device, world, place
        self._groups: dict[meshes.Groups, communicator.Communicator] = {(world.members,): world}
        self._token = device.allocate(4)

    def describe(self) -> dict[str, Any]:
        version = int(self._nccl.get_version())
        return {
            "nccl": f"{version // 10000}.{version // 100 % 100}.{version % 100}",
            "python": platform.python_version(),
            "platform": "gpu",
            "device_kind": self._device.name(self._place.local_rank),
            "transport": "nccl, no framework",
            "asynchronous": True,
            "interface": os.environ.get("NCCL_SOCKET_IFNAME", "NCCL's choice"),
        }

    def build(self, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> Step:
        reason = transports.unsupported("nccl", "process", request, "gpu")
        if reason:
            raise errors.UnsupportedError(f"nccl: {reason}")
        groups = meshes.groups(request.mesh, request.axis)
        if groups not in self._groups:
            self._groups[groups] = self._world.split(groups, self._place.rank)
        return Step(self, self._device, self._groups[groups], request, inputs[self._place.rank])

    def barrier(self) -> None:
        """An all-reduce of one element, waited for."""
        self.enter(self._world)
        self._device.wait()

    def enter(self, group: communicator.Communicator) -> None:
        """Enqueues what no rank of the group passes before all have come."""
        group.all_reduce(self._token, self._token, 1, "int32", "max")

    def compile_count(self) -> int:
        """0: nothing is compiled."""
        return 0

    def close(self) -> None:
        if not self._groups:
            return
        self._device.wait()
        for group in reversed(self._groups.values()):
            group.close()
        self._groups.clear()
        self._device.free(self._token)
        self._device.close()


class Step:
    """One collective over buffers on the device; see `ranks.CollectiveStep`."""

    def __init__(
        self,
        owner: NcclRanks,
        device: devices.Device,
        group: communicator.Communicator,
        request: requests.Request,
        array: np.ndarray,
    ) -> None:
        self.compile_times = interface.CompileTimes(trace_s=0.0, lower_s=0.0, compile_s=0.0, note="no compiler")
        self._owner, self._device, self._group, self._request = owner, device, group, request
        self._host = devices.encode(array, request.dtype)
        self._item = self._host.itemsize
        n, place = len(group.members), group.place
        self._output_count = table.output_count(request)
        self._memory = device.allocate(max(request.count, self._output_count) * self._item)
        self._input = self._output = self._memory
        if request.placement == "in_place":
            # NCCL's meaning: the smaller buffer is this rank's own part of the larger one.
            self._input += self._item * request.count * place if request.collective == "all_gather" else 0
            part = request.count // n if request.collective == "reduce_scatter" else 0
            self._output += self._item * part * place
        else:
            self._output = device.allocate(self._output_count * self._item)
        device.write(self._input, self._host)
        self._call: Callable[[], None] = getattr(self, f"_{request.collective}")

    def run(self, index: int) -> None:
        """Enqueues once."""
        self._call()

    def synchronize(self) -> None:
        self._device.wait()

    def refill(self) -> None:
        if self._request.placement == "in_place":
            self._device.wait()
            self._device.write(self._input, self._host)

    def copy(self) -> bool:
        """False: NCCL has both placements, and needs no copy."""
        return False

    def outputs(self) -> dict[int, np.ndarray]:
        host = devices.empty(self._output_count, self._request.dtype)
        self._device.read(self._output, host)
        return {self._owner.local[0]: devices.decode(host, self._request.dtype)}

    def lowered(self) -> dict[str, Any]:
        """The calls of NCCL in one more run."""
        self._group.log = []
        try:
            self._call()
            self._device.wait()
        finally:
            calls, self._group.log = self._group.log, None
        return {"source": "nccl", "ops": [call.to_dict() for call in calls]}

    def close(self) -> None:
        self._device.wait()
        self._device.free(self._memory)
        if self._request.placement == "out_of_place":
            self._device.free(self._output)

    def _all_reduce(self) -> None:
        r = self._request
        self._group.all_reduce(self._input, self._output, r.count, r.dtype, r.reduction)

    def _all_gather(self) -> None:
        # In place the output begins at the memory, and the input is this rank's part of it.
        self._group.all_gather(self._input, self._output, self._request.count, self._request.dtype)

    def _reduce_scatter(self) -> None:
        r = self._request
        self._group.reduce_scatter(self._input, self._output, self._output_count, r.dtype, r.reduction)

    def _broadcast(self) -> None:
        r = self._request
        self._group.broadcast(self._input, self._output, r.count, r.dtype, r.root)

    def _all_to_all(self) -> None:
        n = len(self._group.members)
        part = self._request.count // n
        step = part * self._item
        sends = [(self._input + peer * step, peer) for peer in range(n)]
        self._group.exchange(
            sends, [(self._output + peer * step, peer) for peer in range(n)], part, self._request.dtype
        )

    def _ppermute(self) -> None:
        """Without a source: zeros, which NCCL does not write."""
        r, place = self._request, self._group.place
        sends = [(self._input, b) for a, b in r.pairs if a == place]
        receives = [(self._output, a) for a, b in r.pairs if b == place]
        if not receives:
            self._device.zero(self._output, r.count * self._item)
        if sends or receives:
            self._group.exchange(sends, receives, r.count, r.dtype)

    def _barrier(self) -> None:
        self._owner.enter(self._group)
