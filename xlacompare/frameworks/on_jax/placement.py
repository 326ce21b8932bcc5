"""Where arrays of a training step over ranks lie: whole on every rank, or a part on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlacompare.frameworks.on_jax import communicate

WHOLE = PartitionSpec()
# A part per rank: global [ranks, *part], so that parts need not be slices of the whole. The rank sees [1, *part].
PARTS = PartitionSpec(communicate.AXIS)


class Placement:
    """The mesh of all ranks, and which of its devices are this process's.

    Attributes:
      mesh: 1-D, axis `communicate.AXIS`, in the order of ranks.
      local: Device of each rank of this process.
    """

    def __init__(self, devices: Sequence[jax.Device], local: Sequence[int]) -> None:
        """Args:
        devices: Of all ranks, in order.
        local: Ranks of this process.
        """
        self.mesh = Mesh(np.array(devices), (communicate.AXIS,))
        self.num_ranks = len(devices)
        self.local = {rank: devices[rank] for rank in local}

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Over the mesh."""
        return NamedSharding(self.mesh, spec)

    def put_own(self, host: np.ndarray, spec: PartitionSpec) -> jax.Array:
        """Copies to the device of this process's first rank what it gets of a global array; waits."""
        device = next(iter(self.local.values()))
        return jax.block_until_ready(_copy(host[self.sharding(spec).devices_indices_map(host.shape)[device]], device))

    def put(self, host: np.ndarray, spec: PartitionSpec) -> jax.Array:
        """Copies to the devices of this process what they get of a global array; waits."""
        sharding = self.sharding(spec)
        places = sharding.devices_indices_map(host.shape)
        shards = [_copy(host[places[device]], device) for device in self.local.values()]
        return jax.block_until_ready(jax.make_array_from_single_device_arrays(host.shape, sharding, shards))


def _copy(host: np.ndarray, device: jax.Device) -> jax.Array:
    """Twice: the CPU client borrows NumPy's memory where it is aligned (jax 0.10.2)."""
    return jax.device_put(jax.device_put(host, device), device, may_alias=False)


def own(tree: Any, specs: Any) -> Any:
    """Inside shard_map: what a rank has of each leaf, parts without their leading axis."""
    return jax.tree.map(lambda leaf, spec: leaf[0] if spec == PARTS else leaf, tree, specs)


def shared(tree: Any, specs: Any) -> Any:
    """Inverse of `own`."""
    return jax.tree.map(lambda leaf, spec: leaf[None] if spec == PARTS else leaf, tree, specs)


def first(array: jax.Array) -> np.ndarray:
    """What the first device of this process has of an array, on the host; waits."""
    return np.array(array.addressable_data(0))
