"""The census of what torch's dispatcher runs: every aten operation of a step, in the terms of a program's census.

Serves whatever goes through the dispatcher: native torch op by op, torch_xla's eager mode. It is no clock: each
operation passes through Python.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from xlacompare.core import census, products
from xlacompare.frameworks.on_torch import counters, dispatched_collectives, multiplied

COPIES = {"aten.clone", "aten.copy_", "aten._to_copy", "aten.contiguous", "aten._copy_from", "aten.detach_copy"}
# Views of memory in native torch; copies where a device has no views.
TRANSPOSES = {f"aten.{name}{last}" for name in ("t", "transpose", "permute") for last in ("", "_copy")}
# What gives memory and writes nothing, or reads nothing but one number.
FREE = {"aten._unsafe_view", "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.detach"}


class Count(TorchDispatchMode):
    """Counts while it is entered.

    An operation that the autograd engine runs on a thread of its own is counted too: the engine hands the mode on.
    """

    def __init__(
        self, layers: Mapping[int, str] | None = None, identity: Callable[[torch.Tensor], int | None] | None = None
    ) -> None:
        """Makes an empty count.

        Args:
          layers: Layer of each parameter, by `identity`.
          identity: What a tensor and its views have in common; by default their memory.
        """
        super().__init__()
        self.opcodes: collections.Counter[str] = collections.Counter()
        self.converts: collections.Counter[str] = collections.Counter()
        self.bytes = 0
        self.heavy: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.moves: dict[tuple[str, str], dict[str, Any]] = {}
        self.collectives: list[census.LoweredCollective] = []
        self._identity = identity or memory
        self._layers: dict[int, str] = dict(layers or {})
        self._read_by: dict[int, str] = {}  # what a layer's product read, which its gradient reads again

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and counts it."""
        result = function(*args, **(kwargs or {}))
        self._count(function, args, kwargs or {}, result)
        return result

    def census(self) -> census.Census:
        """What was counted so far."""
        heavy = sorted(self.heavy.values(), key=lambda entry: -entry["flops"])
        return census.Census(
            instructions=sum(self.opcodes.values()),
            opcodes=dict(self.opcodes.most_common()),
            flops=sum(entry["flops"] for entry in heavy),
            bytes=self.bytes,
            heavy=heavy,
            fusions={},
            moves=sorted(self.moves.values(), key=lambda entry: -entry["bytes"]),
            custom_calls={name: n for name, n in self.opcodes.items() if name.partition(".")[0] not in _OWN},
            collectives=[item.to_dict() for item in self.collectives],
            converts=dict(self.converts.most_common()),
            unknown_trips=0,
        )

    def _count(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = str(function._overloadpacket)
        if name.partition(".")[0] in _MARKS:
            return
        given, got = tensors((args, kwargs)), tensors(result)
        self.opcodes[name] += 1
        if dispatched_collectives.is_one(name):
            found = dispatched_collectives.lowered(function, args, kwargs, result)
            self.collectives += [] if found is None else [found]
            return
        view = _is_view(function)
        moved = 0 if view or name in FREE else _bytes(given) + _bytes(got or _written(function, args))
        self.bytes += moved
        if name in TRANSPOSES or (name in COPIES and not _is_convert(given, got)):
            self._move("transpose" if name in TRANSPOSES else "copy", given, got, moved)
        self._convert(name, given, got)
        for product in multiplied.products_of(name, args, kwargs, got):
            self._multiply(product, given, got)
        if not view:
            self._renew(name, given, got)

    def _move(self, opcode: str, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor], moved: int) -> None:
        key = opcode, f"{multiplied.described(given)} -> {multiplied.described(got)}"
        entry = self.moves.setdefault(key, {"opcode": key[0], "shapes": key[1], "count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += moved

    def _convert(self, name: str, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        """A conversion that was asked for, or one that an operation makes of operands of unlike types."""
        if not got or not given:
            return
        target = got[0].dtype
        if name in COPIES:
            source = given[-1].dtype  # copy_(target, source)
            if source != target:
                self.converts[f"{counters.xla_type(source)} -> {counters.xla_type(target)}"] += 1
            return
        if not target.is_floating_point:
            return
        for tensor in given:
            narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize < target.itemsize
            if narrow and tensor.dim():  # a scalar takes the other operand's type
                self.converts[f"{counters.xla_type(tensor.dtype)} -> {counters.xla_type(target)} in {name}"] += 1

    def _multiply(self, product: products.Product, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        dtype = counters.xla_type(got[0].dtype)
        entry = {
            "opcode": product.opcode,
            "form": product.form,
            "shapes": product.shapes,
            "dtype": dtype,
            "precision": torch.get_float32_matmul_precision() if dtype == "f32" else "",
            "promoted_from": "",
        }
        kept = self.heavy.setdefault(tuple(entry.values()), {**entry, "count": 0, "flops": 0, "layers": []})
        kept["count"] += 1
        kept["flops"] += product.flops
        layer = self._layer(given)
        if layer and layer not in kept["layers"]:
            kept["layers"].append(layer)

    def _layer(self, given: Sequence[torch.Tensor]) -> str:
        """Of a product: that of the parameter it reads, else the one layer that read the same activations before."""
        places = [place for tensor in given if (place := self._identity(tensor)) is not None]
        found = [self._layers[place] for place in places if place in self._layers]
        if found:
            for place in places:
                if place not in self._layers:
                    self._read_by[place] = found[0] if self._read_by.get(place, found[0]) == found[0] else ""
            return found[0]
        return next(filter(None, (self._read_by.get(place, "") for place in places)), "")

    def _renew(self, name: str, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        """New values may lie where freed ones did; a converted parameter is still its layer's."""
        sources = [self._layers.get(place) for tensor in given if (place := self._identity(tensor)) is not None]
        old = {self._identity(tensor) for tensor in given}
        for tensor in got:
            place = self._identity(tensor)
            if place is None or place in old:
                continue
            self._read_by.pop(place, None)
            self._layers.pop(place, None)
            if name in COPIES and sources and sources[-1]:
                self._layers[place] = sources[-1]


_MARKS = ("profiler",)  # they mark a place in a trace
_OWN = {"aten", "prim", "prims", *dispatched_collectives.NAMESPACES}


def memory(tensor: torch.Tensor) -> int | None:
    """Where a tensor's elements lie; None where there are none, or where a subclass wraps the tensor that has them."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return tensor.untyped_storage().data_ptr() or None if plain else None


def tensors(tree: Any) -> list[torch.Tensor]:
    """Tensors among arguments or results, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(found: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in found)


def _is_convert(given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> bool:
    return bool(given and got) and given[-1].dtype != got[0].dtype


def _is_view(function: Any) -> bool:
    """Whether the results share the memory of an operand that is not written."""
    returns = [item.alias_info for item in function._schema.returns]
    return any(info is not None and not info.is_write for info in returns)


def _written(function: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Tensors that an operation without a result writes (multi-tensor operations in place)."""
    found = []
    for argument, value in zip(function._schema.arguments, args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors(value)
    return found
