"""Collectives as they pass torch's dispatcher: the calls of torch.distributed (c10d) and its functional ones.

What was asked for. What the library below made of it is in `c10d_log`: gloo runs a reduce-scatter as an all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xlacompare.core import census
from xlacompare.frameworks.on_torch import counters

# Operation -> (opcode in XLA's words, which tensors go in: "all", or "last"/"first" where output and input are given).
_OPCODES = {
    "c10d.allreduce_": ("all-reduce", "all"),
    "c10d.allreduce_coalesced_": ("all-reduce", "all"),
    "c10d.allgather_": ("all-gather", "input_tensors"),
    "c10d._allgather_base_": ("all-gather", "input_tensor"),
    "c10d.allgather_into_tensor_coalesced_": ("all-gather", "inputs"),
    "c10d.reduce_scatter_": ("reduce-scatter", "input_tensors"),
    "c10d._reduce_scatter_base_": ("reduce-scatter", "input_tensor"),
    "c10d.reduce_scatter_tensor_coalesced_": ("reduce-scatter", "inputs"),
    "c10d.alltoall_": ("all-to-all", "input_tensors"),
    "c10d.alltoall_base_": ("all-to-all", "input"),
    "c10d.broadcast_": ("collective-broadcast", "all"),
    "c10d.reduce_": ("reduce", "all"),
    "c10d.send": ("send", "all"),
    "c10d.recv_": ("recv", "all"),
    "c10d.barrier": ("barrier", "none"),
    "_c10d_functional.all_reduce": ("all-reduce", "all"),
    "_c10d_functional.all_reduce_": ("all-reduce", "all"),
    "_c10d_functional.all_reduce_coalesced": ("all-reduce", "all"),
    "_c10d_functional.all_gather_into_tensor": ("all-gather", "all"),
    "_c10d_functional.reduce_scatter_tensor": ("reduce-scatter", "all"),
    "_c10d_functional.all_to_all_single": ("all-to-all", "all"),
    "_c10d_functional.broadcast": ("collective-broadcast", "all"),
}
_WAITS = "_c10d_functional.wait_tensor"


def is_one(name: str) -> bool:
    """Whether an operation is of torch.distributed (a wait is, and communicates nothing)."""
    return name.partition(".")[0] in ("c10d", "_c10d_functional")


def lowered(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[torch.Tensor], got: Sequence[Any]
) -> list[census.LoweredCollective]:
    """The collective of one call; none for a wait.

    Raises:
      KeyError: An operation of torch.distributed that this table does not have: it must not be overlooked.
    """
    name = str(function._overloadpacket)
    if name == _WAITS:
        return []
    opcode, which = _OPCODES[name]
    named = dict(zip((item.name for item in function._schema.arguments), args)) | kwargs
    inputs = [] if which == "none" else list(given) if which == "all" else _flat(named[which])
    results = [tensor for tensor in got if isinstance(tensor, torch.Tensor)] or list(inputs)
    passed = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    received = sum(tensor.numel() * tensor.element_size() for tensor in results)
    group = named.get("process_group", named.get("group_name"))
    return [
        census.LoweredCollective(
            opcode=opcode,
            dtype=counters.xla_type(inputs[0].dtype) if inputs else "",
            operand_bytes=0 if opcode == "recv" else passed,
            result_bytes=0 if opcode == "send" else received,
            operands=max(1, len(inputs)),
            groups=() if group is None else counters.group_of(group),
            reduction=counters.reduction_of(named.get("reduce_op")),
            asynchronous=bool(named.get("asyncOp", True)),
            computation="main",
            source=name,
        )
    ]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]
