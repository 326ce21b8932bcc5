"""NCCL's calls on one communicator and one stream, with a log of what was called.

Uses `nccl.bindings` (NCCL's C functions one to one) and not `nccl.core`, which resolves a buffer object anew in every
call: this is a floor, and Python's share of it should be small.
"""

from __future__ import annotations

import types
from typing import Any

from xlacompare.core import census

# nccl.h: ncclDataType_t and ncclRedOp_t.
TYPES = {"int32": 2, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
OPERATIONS = {"sum": 0, "max": 2, "min": 3, "mean": 4}
XLA_TYPES = {"int32": "s32", "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16"}
ITEM_BYTES = {"int32": 4, "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2}


class Communicator:
    """The ranks of one group.

    Attributes:
      members: Global ranks, by place in the group.
      place: This rank's place.
      log: None, or a list that takes every call.
    """

    def __init__(self, nccl: types.ModuleType, handle: Any, members: tuple[int, ...], place: int, stream: int) -> None:
        self._nccl, self._handle, self._stream = nccl, handle, stream
        self.members, self.place = members, place
        self.log: list[census.LoweredCollective] | None = None

    def all_reduce(self, source: int, target: int, count: int, dtype: str, reduction: str) -> None:
        self._note("all-reduce", dtype, count, count, reduction)
        kind, op = TYPES[dtype], OPERATIONS[reduction]
        self._nccl.all_reduce(source, target, count, kind, op, self._handle, self._stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str) -> None:
        """`count` is each rank's part."""
        self._note("all-gather", dtype, count, count * len(self.members))
        self._nccl.all_gather(source, target, count, TYPES[dtype], self._handle, self._stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, reduction: str) -> None:
        """`count` is each rank's part."""
        self._note("reduce-scatter", dtype, count * len(self.members), count, reduction)
        kind, op = TYPES[dtype], OPERATIONS[reduction]
        self._nccl.reduce_scatter(source, target, count, kind, op, self._handle, self._stream)

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int) -> None:
        self._note("collective-broadcast", dtype, count, count)
        self._nccl.broadcast(source, target, count, TYPES[dtype], root, self._handle, self._stream)

    def exchange(self, sends: list[tuple[int, int]], receives: list[tuple[int, int]], count: int, dtype: str) -> None:
        """One group of transfers of `count` elements.

        Args:
          sends: (address, place in the group) of each; a rank may send to itself.
          receives: The same.
          count: Elements of each transfer.
          dtype: Their type.
        """
        pairs = [(self.place, peer) for _, peer in sends] + [(peer, self.place) for _, peer in receives]
        self._note("send-recv", dtype, count * len(sends), count * len(receives), pairs=pairs)
        kind = TYPES[dtype]
        self._nccl.group_start()
        for address, peer in sends:
            self._nccl.send(address, count, kind, peer, self._handle, self._stream)
        for address, peer in receives:
            self._nccl.recv(address, count, kind, peer, self._handle, self._stream)
        self._nccl.group_end()

    def split(self, groups: tuple[tuple[int, ...], ...], rank: int) -> Communicator:
        """This rank's group of a partition of all ranks; every rank calls it."""
        color = next(i for i, group in enumerate(groups) if rank in group)
        place = groups[color].index(rank)
        handle = self._nccl.comm_split(self._handle, color, place, 0)
        return Communicator(self._nccl, handle, groups[color], place, self._stream)

    def close(self) -> None:
        """Destroys the communicator."""
        self._nccl.comm_destroy(self._handle)

    def _note(
        self,
        opcode: str,
        dtype: str,
        sent: int,
        received: int,
        reduction: str = "",
        pairs: list[tuple[int, int]] | None = None,
    ) -> None:
        if self.log is None:
            return
        item = ITEM_BYTES[dtype]
        self.log.append(
            census.LoweredCollective(
                opcode=opcode,
                dtype=XLA_TYPES[dtype],
                operand_bytes=sent * item,
                result_bytes=received * item,
                groups=(self.members,),
                pairs=tuple((self.members[a], self.members[b]) for a, b in pairs or ()),
                reduction={"mean": "avg"}.get(reduction, reduction),
                asynchronous=True,
                source="nccl",
            )
        )
