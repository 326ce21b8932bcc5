"""The ranks of torch.distributed, and one collective at a time on them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks import interface, ranks
from xlacompare.frameworks.on_torch import c10d_log, calls, transports


def connect(transport: str, mode: str, place: ranks.Place) -> TorchRanks:
    """Joins the other ranks.

    Raises:
      UnsupportedError: Not a transport or mode of torch.
      BadInputError: The ranks are not those that MPI or CUDA sees.
    """
    if transport not in transports.TRANSPORTS or mode not in transports.TRANSPORTS[transport].modes:
        reason = transports.LACKS.get(transport, f"no transport {transport!r} with mode {mode!r}")
        raise errors.UnsupportedError(f"native torch: {reason}")
    torch.set_num_threads(place.num_threads)
    return _CONNECT[transport](place)


def _connect_gloo(place: ranks.Place) -> TorchRanks:
    _init(place, "gloo")
    return TorchRanks(place, "gloo", torch.device("cpu"))


def _connect_nccl(place: ranks.Place) -> TorchRanks:
    if not torch.cuda.is_available():
        raise errors.UnsupportedError("torch sees no CUDA device (torch.cuda.is_available() is False); NCCL needs one")
    if place.local_rank >= torch.cuda.device_count():
        raise errors.BadInputError(
            f"rank {place.rank} is number {place.local_rank} of this machine, which has {torch.cuda.device_count()} "
            "CUDA device(s); NCCL wants one per rank: start fewer ranks"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    # With the device known, the communicator is made at once and not in the first collective that is timed.
    _init(place, "nccl", device)
    return TorchRanks(place, "nccl", device)


def _connect_mpi(place: ranks.Place) -> TorchRanks:
    """torch's own backend where it was built in; else ours, which needs no store: MPI knows the ranks."""
    if dist.is_mpi_available():
        dist.init_process_group("mpi")
        return TorchRanks(place, "mpi", torch.device("cpu"))
    from xlacompare.frameworks.on_torch import mpi  # starts MPI when it is imported

    mpi.check_place(place.rank, place.size)
    mpi.register()
    dist.init_process_group(mpi.NAME, store=dist.HashStore(), rank=place.rank, world_size=place.size)
    return TorchRanks(place, "mpi", torch.device("cpu"), mpi.describe())


_CONNECT = {"gloo": _connect_gloo, "nccl": _connect_nccl, "mpi": _connect_mpi}


def _init(place: ranks.Place, backend: str, device: torch.device | None = None) -> None:
    """Meets the others at the place's address; the transport gives up after the place's deadline."""
    deadline = timedelta(seconds=place.deadline_s)
    store = dist.TCPStore(place.address, place.port, place.size, is_master=place.rank == 0, timeout=deadline)
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.size, timeout=deadline, device_id=device
    )


class TorchRanks:
    """One rank; the process is the rank."""

    def __init__(
        self, place: ranks.Place, transport: str, device: torch.device, library: Mapping[str, Any] | None = None
    ) -> None:
        self.local = (place.rank,)
        self.transport, self.device = transport, device
        self.count_compiles: Callable[[], int] = lambda: 0  # a collective compiles nothing; a training step may
        self._place = place
        self._library = dict(library or {})
        self._groups: dict[meshes.Groups, dist.ProcessGroup] = {}

    def describe(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": "gpu" if cuda else "cpu",
            "device_kind": torch.cuda.get_device_name(self.device) if cuda else platform.machine(),
            "transport": f"torch.distributed {dist.get_backend()}",
            "asynchronous": cuda,
            "threads": torch.get_num_threads(),
            "torch_mpi_built_in": dist.is_mpi_available(),
            **_about(self.transport),
            **self._library,
        }

    def build(self, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> Step:
        """Allocates the buffers; torch.distributed compiles nothing.

        Raises:
          UnsupportedError: The reason of `transports.unsupported`.
        """
        reason = transports.unsupported(self.transport, "process", request, self._place.platform)
        if reason is None and self.transport == "mpi" and dist.is_mpi_available() and "float16" in request.dtype:
            reason = f"torch's own mpi backend has no MPI type for {request.dtype} (ProcessGroupMPI.cpp, mpiDatatype)"
        if reason:
            raise errors.UnsupportedError(f"torch: {reason}")
        group = self._group(request)
        prepared = calls.make(request, inputs[self._place.rank], group, self.device)
        return Step(prepared, request, group, self._place.rank)

    def _group(self, request: requests.Request) -> dist.ProcessGroup:
        """This rank's group, made at first use. Every rank makes every group, in the same order, as c10d demands."""
        groups = meshes.groups(request.mesh, request.axis)
        if len(groups) == 1 and len(groups[0]) == self._place.size:
            return dist.group.WORLD
        if groups not in self._groups:
            deadline = None if self.transport == "mpi" else timedelta(seconds=self._place.deadline_s)
            made = [dist.new_group(list(group), timeout=deadline) for group in groups]
            self._groups[groups] = next(g for g, of in zip(made, groups, strict=True) if self._place.rank in of)
        return self._groups[groups]

    def barrier(self) -> None:
        dist.barrier()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def compile_count(self) -> int:
        """0 until a training step is built."""
        return self.count_compiles()

    def close(self) -> None:
        self._groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def _about(transport: str) -> dict[str, Any]:
    """What names the library under torch.distributed; gloo has no version of its own and lies in torch's wheel."""
    if transport == "gloo":
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "that of the host name")
        return {"gloo": f"in torch {torch.__version__}", "interface": interface}
    if transport == "nccl":
        version = ".".join(map(str, torch.cuda.nccl.version()))
        interface = os.environ.get("NCCL_SOCKET_IFNAME", "NCCL's choice")
        return {"nccl": version, "cuda": torch.version.cuda, "interface": interface}
    return {}


class Step:
    """One collective over buffers on the device; see `ranks.CollectiveStep`."""

    def __init__(self, call: calls.Prepared, request: requests.Request, group: dist.ProcessGroup, rank: int) -> None:
        self.compile_times = interface.CompileTimes(trace_s=0.0, lower_s=0.0, compile_s=0.0, note="no compiler")
        self._prepared, self._call, self._request, self._group, self._rank = call, call.run, request, group, rank
        self._cuda = call.output.device.type == "cuda"

    def run(self, index: int) -> None:
        """Dispatches once; on the CPU the call returns when the work is done, as it does for torch's users."""
        self._call()

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def refill(self) -> None:
        self._prepared.refill()
        self.synchronize()

    def copy(self) -> bool:
        if self._prepared.copy is None:
            return False
        self._prepared.copy()
        self.synchronize()
        return True

    def outputs(self) -> dict[int, np.ndarray]:
        """The output by rank; bfloat16, which NumPy lacks, widened to float32."""
        self.synchronize()
        return {self._rank: to_numpy(self._prepared.output)}

    def lowered(self) -> dict[str, Any]:
        """What one more run made the library do, by the library's own record."""
        return c10d_log.of_one_run(self, self._request, self._group)

    def close(self) -> None:
        del self._prepared, self._call


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in the tensor's dtype; bfloat16 widened to float32."""
    tensor = tensor.detach().cpu()
    return np.array((tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy())
