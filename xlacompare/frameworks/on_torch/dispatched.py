"""The census of what torch's dispatcher runs: every aten operation of a step, in the terms of a program's census.

Serves whatever goes through the dispatcher: native torch op by op, torch_xla's eager mode. It is no clock: each
operation passes through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from xlacompare.core import census, tally
from xlacompare.frameworks.on_torch import counters, dispatched_collectives, multiplied
from xlacompare.frameworks.on_torch.dispatched_collectives import nbytes

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
        self.tally = tally.Tally()
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
        called = self.tally.opcodes.items()
        own = {name: n for name, n in called if name.partition(".")[0] not in _OWN}
        return self.tally.census(custom_calls=own, collectives=self.collectives)

    def _count(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = str(function._overloadpacket)
        if name.partition(".")[0] in _MARKS:
            return
        given, got = tensors((args, kwargs)), tensors(result)
        self.tally.opcodes[name] += 1
        if dispatched_collectives.is_one(name):
            found = dispatched_collectives.lowered(function, args, kwargs, result)
            self.collectives += [] if found is None else [found]
            return
        view = _is_view(function)
        moved = 0 if view or name in FREE else nbytes(given) + nbytes(got or _written(function, args))
        self.tally.bytes += moved
        if name in TRANSPOSES or (name in COPIES and not _is_convert(given, got)):
            shapes = f"{multiplied.described(given)} -> {multiplied.described(got)}"
            self.tally.move("transpose" if name in TRANSPOSES else "copy", shapes, moved)
        self._convert(name, given, got)
        for product in multiplied.products_of(name, args, kwargs, got):
            dtype = counters.xla_type(got[0].dtype)
            precision = torch.get_float32_matmul_precision() if dtype == "f32" else ""
            self.tally.multiply(product, dtype, precision, layer=self._layer(given))
        if not view:
            self._renew(name, given, got)

    def _convert(self, name: str, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        """A conversion that was asked for, or one that an operation makes of operands of unlike types."""
        if not got or not given:
            return
        target = got[0].dtype
        if name in COPIES:
            source = given[-1].dtype  # copy_(target, source)
            if source != target:
                self.tally.converts[f"{counters.xla_type(source)} -> {counters.xla_type(target)}"] += 1
            return
        if not target.is_floating_point:
            return
        for tensor in given:
            narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize < target.itemsize
            if narrow and tensor.dim():  # a scalar takes the other operand's type
                self.tally.converts[f"{counters.xla_type(tensor.dtype)} -> {counters.xla_type(target)} in {name}"] += 1

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
