"""A c10d backend over mpi4py, for torch wheels without MPI (all that PyTorch publishes).

CPU tensors are handed to MPI as they lie in memory. Collectives block: they are done when they return, so that the Work
that c10d wants is born completed; `send` and `recv` are MPI_Isend and MPI_Irecv, and their Work waits for the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from xlacompare.core import errors
from xlacompare.frameworks.on_torch import mpi_types

NAME = "xlacompare_mpi"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of MPI.

    Attributes:
      function: MPI's name, e.g. "MPI_Allreduce".
      dtype: Element type of the tensor.
      sent, received: Elements that this rank passes in and gets.
      reduction: "sum", "max", "min" or "".
      note: How a type that MPI lacks was carried.
      peer: The other rank of a point-to-point transfer, in the group; -1 for a collective.
    """

    function: str
    dtype: torch.dtype
    sent: int
    received: int
    reduction: str = ""
    note: str = ""
    peer: int = -1


class Done(dist.Work):
    """A Work whose call has returned with everything done."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Pending(dist.Work):
    """A Work that waits for an MPI request; keeps the tensor alive until then."""

    def __init__(self, request: MPI.Request, tensor: torch.Tensor) -> None:
        super().__init__()
        self._request, self._tensor = request, tensor

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._request.Wait()
        return True

    def is_completed(self) -> bool:
        return bool(self._request.Test())


class ProcessGroupMPI4Py(dist.ProcessGroup):
    """c10d's calls as MPI calls on one communicator.

    Attributes:
      log: None, or a list that takes a `Call` for every call.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self.log: list[Call] | None = None

    def getBackendName(self) -> str:
        return NAME

    def allreduce(self, tensors: Sequence[torch.Tensor], options: dist.AllreduceOptions) -> dist.Work:
        (tensor,) = tensors
        kind, op, name = mpi_types.reduction(tensor.dtype, options.reduceOp)
        self._note("MPI_Allreduce", tensor, tensor.numel(), tensor.numel(), name)
        self.comm.Allreduce(MPI.IN_PLACE, mpi_types.buffer(tensor, kind), op)
        return Done()

    def broadcast(self, tensors: Sequence[torch.Tensor], options: dist.BroadcastOptions) -> dist.Work:
        (tensor,) = tensors
        self._note("MPI_Bcast", tensor, tensor.numel(), tensor.numel())
        self.comm.Bcast(mpi_types.buffer(tensor, mpi_types.carrier(tensor.dtype)), options.rootRank)
        return Done()

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> dist.Work:
        kind = mpi_types.carrier(input.dtype)
        self._note("MPI_Allgather", input, input.numel(), output.numel())
        self.comm.Allgather(mpi_types.buffer(input, kind), mpi_types.buffer(output, kind))
        return Done()

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], options: Any = None
    ) -> dist.Work:
        (targets,), (tensor,) = outputs, inputs
        gathered = tensor.new_empty(len(targets) * tensor.numel())
        self._allgather_base(gathered, tensor.contiguous())
        for target, part in zip(targets, gathered.chunk(len(targets)), strict=True):
            target.copy_(part.view_as(target))
        return Done()

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, options: dist.ReduceScatterOptions
    ) -> dist.Work:
        kind, op, name = mpi_types.reduction(input.dtype, options.reduceOp)
        self._note("MPI_Reduce_scatter_block", input, input.numel(), output.numel(), name)
        self.comm.Reduce_scatter_block(mpi_types.buffer(input, kind), mpi_types.buffer(output, kind), op)
        return Done()

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any = None,
    ) -> dist.Work:
        kind = mpi_types.carrier(input.dtype)
        self._note("MPI_Alltoallv" if input_splits else "MPI_Alltoall", input, input.numel(), output.numel())
        if not (input_splits or output_splits):
            self.comm.Alltoall(mpi_types.buffer(input, kind), mpi_types.buffer(output, kind))
            return Done()
        sent, received = (
            mpi_types.split(input, kind, input_splits, self.size()),
            mpi_types.split(output, kind, output_splits, self.size()),
        )
        self.comm.Alltoallv(sent, received)
        return Done()

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int) -> dist.Work:
        (tensor,) = tensors
        self._note("MPI_Isend", tensor, tensor.numel(), 0, peer=destination)
        return Pending(
            self.comm.Isend(mpi_types.buffer(tensor, mpi_types.carrier(tensor.dtype)), destination, tag), tensor
        )

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int) -> dist.Work:
        (tensor,) = tensors
        self._note("MPI_Irecv", tensor, 0, tensor.numel(), peer=source)
        return Pending(self.comm.Irecv(mpi_types.buffer(tensor, mpi_types.carrier(tensor.dtype)), source, tag), tensor)

    def barrier(self, opts: Any = None) -> dist.Work:
        if self.log is not None:
            self.log.append(Call("MPI_Barrier", torch.uint8, 0, 0))
        self.comm.Barrier()
        return Done()

    @staticmethod
    def gather_all(value: Any) -> list[Any]:
        """Small objects of all ranks of the world, by rank."""
        return MPI.COMM_WORLD.allgather(value)

    def _note(
        self, function: str, tensor: torch.Tensor, sent: int, received: int, reduction: str = "", peer: int = -1
    ) -> None:
        if self.log is not None:
            note = mpi_types.how_carried(tensor.dtype, reduction)
            self.log.append(Call(function, tensor.dtype, sent, received, reduction, note, peer))


def register() -> None:
    """Makes the backend known to torch.distributed; once per process."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> ProcessGroupMPI4Py:
    """Called by torch.distributed on the members of a group only, hence Create_group and not Split."""
    members = MPI.COMM_WORLD.Get_group().Incl(list(options.global_ranks_in_group) or list(range(options.group_size)))
    return ProcessGroupMPI4Py(MPI.COMM_WORLD.Create_group(members))


def check_place(rank: int, size: int) -> None:
    """The launcher's idea of the ranks must be MPI's.

    Raises:
      BadInputError: They differ, usually because the processes were not started by mpiexec.
    """
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise errors.BadInputError(
            f"this process is rank {rank} of {size}, but MPI says {world.rank} of {world.size}; MPI ranks must be "
            f"started by the mpiexec of the same MPI: mpiexec -n {size} python ..."
        )


def describe() -> dict[str, Any]:
    """Version of the standard and of the library."""
    return {
        "mpi_library": " ".join(MPI.Get_library_version().split("\n", 1)[0].split()),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": __import__("mpi4py").__version__,
    }
