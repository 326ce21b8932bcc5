"""Torch's types, reductions and memory as MPI has them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from xlacompare.core import errors

# The library's own types. MPI defines none for 16-bit floats; mpi4py names them where the library has an extension
# (mpich 5.0.2: float16 as MPIX_C_FLOAT16, mpi4py 4.1.2 does not name its bfloat16; openmpi: MPIX_C_FLOAT16).
_KINDS: dict[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int32: "INT32_T",
    torch.float16: "FLOAT16_T",
    torch.bfloat16: "BFLOAT16_T",
    torch.uint8: "UINT8_T",
    torch.int64: "INT64_T",
}
_OPERATIONS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}
_OWN = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
_IN_TORCH = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def own_kind(dtype: torch.dtype) -> MPI.Datatype:
    """The library's type for a dtype; DATATYPE_NULL where it has none.

    Raises:
      UnsupportedError: Not a dtype that this backend carries at all.
    """
    if dtype not in _KINDS:
        raise errors.UnsupportedError(f"the MPI backend carries no {dtype}")
    return getattr(MPI, _KINDS[dtype], MPI.DATATYPE_NULL)


def carrier(dtype: torch.dtype) -> MPI.Datatype:
    """A type of the right width, for calls that only move data."""
    kind = own_kind(dtype)
    return MPI.UINT16_T if kind == MPI.DATATYPE_NULL else kind


def reduction(dtype: torch.dtype, operation: dist.ReduceOp) -> tuple[MPI.Datatype, MPI.Op, str]:
    """Type, operation and its name; an operation of our own where MPI has no such type.

    Raises:
      UnsupportedError: Not a sum, max or min.
    """
    name = next((name for known, name in _OPERATIONS.items() if operation == known), None)
    if name is None:
        raise errors.UnsupportedError(f"the MPI backend reduces by {', '.join(_OPERATIONS.values())} only")
    kind = own_kind(dtype)
    if kind == MPI.DATATYPE_NULL:
        return MPI.UINT16_T, _own_operation(dtype, name), name
    return kind, _OWN[name], name


@functools.cache
def _own_operation(dtype: torch.dtype, name: str) -> MPI.Op:
    """MPI_Op over 16-bit elements that MPI does not know; the arithmetic is torch's, rounding at every step.

    With mpich 5.0.2 as fast as its own MPIX_BFLOAT16 (16 MiB, 2 ranks on one core: 47-82 against 53-90 ms).
    """

    def combine(incoming: MPI.buffer, accumulated: MPI.buffer, kind: MPI.Datatype) -> None:
        left, right = (torch.frombuffer(side, dtype=dtype) for side in (incoming, accumulated))
        _IN_TORCH[name](left, right, out=right)

    return MPI.Op.Create(combine, commute=True)


def how_carried(dtype: torch.dtype, reduction: str) -> str:
    """Remark for the log: as what MPI saw a 16-bit float."""
    if dtype not in (torch.float16, torch.bfloat16):
        return ""
    kind = own_kind(dtype)
    if kind != MPI.DATATYPE_NULL:
        return f"as {kind.Get_name()}"
    return "as MPI_UINT16_T" + (f" with an MPI_Op of torch's {reduction}" if reduction else "")


def buffer(tensor: torch.Tensor, kind: MPI.Datatype) -> list[Any]:
    """The tensor's memory as mpi4py takes it: no copy. No count: mpi4py takes one as that of each part.

    Raises:
      ValueError: Not a contiguous CPU tensor.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"the MPI backend needs contiguous CPU tensors, not {tensor.device}, strides {tensor.stride()}"
        )
    return [MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes), kind]


def split(tensor: torch.Tensor, kind: MPI.Datatype, splits: Sequence[int], size: int) -> list[Any]:
    """Memory with a count per rank; `splits` counts rows, empty means equal parts."""
    rows = list(splits) or [tensor.shape[0] // size] * size
    width = tensor.numel() // max(1, tensor.shape[0])
    memory, kind = buffer(tensor, kind)
    return [memory, [n * width for n in rows], kind]
