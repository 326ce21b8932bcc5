"""Collectives as they pass torch's dispatcher: the calls of torch.distributed (c10d) and its functional ones.

This is what was asked for. What the library below made of it is in `c10d_log`: gloo runs a reduce-scatter as an
all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from xlacompare.core import census
from xlacompare.frameworks.on_torch import counters

NAMESPACES = ("c10d", "_c10d_functional")
# Operation without its namespace and final underscore -> opcode in XLA's words. Others keep their own name.
_OPCODES = {
    "allreduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "all_reduce": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_out": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "alltoall": "all-to-all",
    "alltoall_base": "all-to-all",
    "all_to_all_single": "all-to-all",
    "broadcast": "collective-broadcast",
}
# Names of the arguments that go in and that are filled; in-place operations have the first alone.
_GIVEN = ("input_tensors", "input_tensor", "inputs", "input", "tensors")
_FILLED = ("output_tensors", "output_tensor", "outputs", "output", "out")
_WAIT = "wait_tensor"


def is_one(name: str) -> bool:
    """Whether an operation is of torch.distributed (a wait is, and communicates nothing)."""
    return name.partition(".")[0] in NAMESPACES


def lowered(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> census.LoweredCollective | None:
    """The collective of one call; None for a wait."""
    name = str(function._overloadpacket)
    bare = name.partition(".")[2].removesuffix("_")
    if bare == _WAIT:
        return None
    named = dict(zip((item.name for item in function._schema.arguments), args)) | kwargs
    given = _named(named, _GIVEN)
    filled = _named(named, _FILLED) or (_flat(result) if name.startswith("_c10d_functional") else given)
    group = named.get("process_group", named.get("group_name"))
    return census.LoweredCollective(
        opcode=_OPCODES.get(bare, bare.replace("_", "-")),
        dtype=counters.xla_type(given[0].dtype) if given else "",
        operand_bytes=0 if bare == "recv" else nbytes(given),
        result_bytes=0 if bare == "send" else nbytes(filled),
        operands=max(1, len(given)),
        groups=() if group is None else (counters.ranks_of_group(group),),
        reduction=counters.reduction_name(named["reduce_op"]) if "reduce_op" in named else "",
        asynchronous=bool(named.get("async_op", True)),
        computation="main",
        source=name,
    )


def _named(named: dict[str, Any], wanted: tuple[str, ...]) -> list[torch.Tensor]:
    return next((_flat(named[key]) for key in wanted if key in named), [])


def _flat(value: Any) -> list[torch.Tensor]:
    """Tensors in nested lists, in order; what is none (a handle to wait for) is left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)] if isinstance(value, list | tuple) else []


def nbytes(found: Iterable[torch.Tensor]) -> int:
    """Of the elements of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in found)
