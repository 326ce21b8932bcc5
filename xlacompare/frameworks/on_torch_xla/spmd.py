"""One program over all devices: the calls between xs.enable_manual_sharding and xs.disable_manual_sharding.

xm.all_reduce is a silent no-op there (the world size is 1 under SPMD), hence two private calls. Without a channel id
XLA takes the devices for replicas, of which there is one; so only what can be given one works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch_xla
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.distributed import spmd as xs

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.frameworks.on_torch_xla import operations

_AXIS = "ranks"
_SPEC = (_AXIS,)


def start() -> None:
    """Switches the process to SPMD, for good."""
    runtime.use_spmd()


def _all_reduce(request: requests.Request, groups: list[list[int]]) -> operations.Operation:
    kind = operations.REDUCE[request.reduction or "sum"]
    return lambda x: operations.mean(torch_xla._XLAC._xla_spmd_all_reduce(kind, x, 1.0, groups), request)


def _reduce_scatter(request: requests.Request, groups: list[list[int]]) -> operations.Operation:
    kind, n = operations.REDUCE[request.reduction], len(groups[0])
    return lambda x: operations.mean(torch_xla._XLAC._xla_spmd_reduce_scatter(kind, x, 1.0, 0, n, groups), request)


def _all_gather(request: requests.Request, groups: list[list[int]]) -> operations.Operation:
    return lambda x: xla_model.all_gather(
        x, dim=0, groups=groups, pin_layout=False, channel_id=1, use_global_device_ids=True
    )


TABLE: dict[str, Callable[[requests.Request, list[list[int]]], operations.Operation]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "barrier": _all_reduce,
}


class Sharded:
    """A collective over one tensor that is split over all devices.

    Args:
      request: The collective.
      inputs: Native tensor by rank, in order.
    """

    def __init__(self, request: requests.Request, inputs: Mapping[int, torch.Tensor]) -> None:
        self._size = len(inputs)
        self._mesh = xs.Mesh(np.arange(self._size), (self._size,), (_AXIS,))
        self._host = torch.cat(list(inputs.values()))
        self._call = TABLE[request.collective](
            request, [list(group) for group in meshes.groups(request.mesh, request.axis)]
        )
        self._blocking = request.collective == "barrier"
        self._buffer: torch.Tensor | None = None
        self._output: torch.Tensor | None = None

    def put(self) -> None:
        """Uploads and splits the input, once: no call overwrites it."""
        if self._buffer is None:
            self._buffer = self._host.to(torch_xla.device())
            xs.mark_sharding(self._buffer, self._mesh, _SPEC)
        torch_xla.sync()
        xla_model.wait_device_ops()

    def trace(self) -> torch.Tensor:
        """The lazy output: the ranks' outputs one after the other, split over the devices."""
        local = xs.enable_manual_sharding(self._buffer, _SPEC, mesh=self._mesh).global_tensor
        out = self._call(local)
        return xs.disable_manual_sharding(out, _SPEC, (out.shape[0] * self._size,), mesh=self._mesh).global_tensor

    def launch(self) -> None:
        """Traces and launches the one program."""
        self._output = self.trace()
        torch_xla.sync()
        if self._blocking:
            xla_model.wait_device_ops()

    def first(self) -> None:
        """One thread, one program: nothing to put in order."""
        self.launch()

    def wait(self) -> None:
        """Waits for the devices."""
        xla_model.wait_device_ops()

    def read(self) -> dict[int, np.ndarray]:
        """Output of the last launch, cut into the ranks' parts."""
        assert self._output is not None
        parts = operations.download(self._output).reshape(self._size, -1)
        return dict(enumerate(parts))

    def free(self) -> None:
        """Drops the buffers."""
        self._buffer = self._output = None
