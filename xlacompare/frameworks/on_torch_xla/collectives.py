"""The ranks of a process of PyTorch/XLA: a thread per CPU device, one SPMD program, or a process per TPU chip."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch_xla
from torch_xla import runtime
from torch_xla._internal import pjrt, tpu
from torch_xla.core import xla_model

from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch_xla import collective_step, counters, dumps, lanes, operations, spmd, transports


def connect(transport: str, mode: str, place: ranks.Place) -> ranks.Ranks:
    """Starts the runtime.

    Raises:
      UnsupportedError: torch_xla has no such transport or mode, or its runtime runs already.
      BadInputError: The process was started with another number of devices.
    """
    spec = transports.TRANSPORTS.get(transport)
    if spec is None or mode not in spec.modes:
        raise errors.UnsupportedError(
            transports.LACKS.get(transport, f"torch_xla has no transport {transport!r} in mode {mode!r}")
        )
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise errors.UnsupportedError("torch_xla joins ranks once per process; this one's runtime has started already")
    kept = dumps.Dumps()
    return _spmd(place, kept) if mode == "spmd" else Lanes(transport, mode, place, kept)


def _spmd(place: ranks.Place, kept: dumps.Dumps) -> ranks.Ranks:
    spmd.start()
    _require_devices(runtime.global_runtime_device_count(), place.size)
    return Spmd(place, kept)


def _require_devices(found: int, wanted: int) -> None:
    if found != wanted:
        raise errors.BadInputError(
            f"torch_xla has {found} devices, {wanted} ranks are wanted; on the CPU start the process with "
            f"CPU_NUM_DEVICES={wanted}, on TPU ask for as many ranks as there are chips"
        )


class _Ranks:
    """What the modes have in common. Subclasses set `local` and `program`."""

    local: tuple[int, ...]

    def __init__(self, transport: str, mode: str, place: ranks.Place, kept: dumps.Dumps) -> None:
        self.transport, self.mode, self._place = transport, mode, place
        self.dumps = kept

    def describe(self) -> dict[str, Any]:
        """Versions, devices, threads, flags; XLA's dump, which this module switches on, is not among the flags."""
        return {
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
            "platform": str(runtime.device_type()).lower(),
            "transport": f"{self.transport} (PJRT {runtime.device_type()}, XLA of torch_xla {torch_xla.__version__})",
            "mode": self.mode,
            "device_kind": self._device_kind(),
            "devices": self._place.size,
            "local_devices": len(self.local),
            "threads": int(os.environ.get("NPROC", "0")),
            "launch_threads": int(os.environ.get("XLA_THREAD_POOL_SIZE", "0")),
            "all_gather": "pad+all_reduce" if transports.wants_default_all_gather() else "all-gather",
            "xla_flags": self.dumps.user_flags,
            "libtpu_flags": os.environ.get("LIBTPU_INIT_ARGS", "").strip(),
        }

    def _device_kind(self) -> str:
        return str(xla_model.xla_device_kind())

    def build(self, request: requests.Request, inputs: Mapping[int, np.ndarray]) -> collective_step.Step:
        """Uploads, and runs twice: lazy programs are compiled by running them.

        Raises:
          UnsupportedError: With the reason.
        """
        operations.check(self.transport, self.mode, request, self._place.size, self._place.platform)
        if request.collective == "barrier":
            inputs = dict.fromkeys(self.local, np.ones(1, np.float32))
        dtype = "float32" if request.collective == "barrier" else request.dtype
        tensors = {rank: operations.upload(inputs[rank], dtype) for rank in self.local}
        return collective_step.Step(self._program(request, tensors), self.dumps, request)

    def _program(self, request: requests.Request, inputs: dict[int, torch.Tensor]) -> collective_step.Program:
        raise NotImplementedError

    def compile_count(self) -> int:
        """Moves whenever a program is compiled."""
        return counters.compile_count()

    def close(self) -> None:
        """Deletes what XLA dumped; safe to call twice."""
        self.dumps.close()


class Lanes(_Ranks):
    """Modes threads and process: a lane per device of this process."""

    def __init__(self, transport: str, mode: str, place: ranks.Place, kept: dumps.Dumps) -> None:
        super().__init__(transport, mode, place, kept)
        if mode == "threads":
            pjrt.initialize_multiprocess(0, 1)
        else:
            pjrt.initialize_multiprocess(place.local_rank, tpu.num_local_processes())
        _require_devices(runtime.global_device_count(), place.size)
        devices = xla_model.get_xla_supported_devices()
        ordinals = [torch_xla._XLAC._xla_get_device_ordinal(device) for device in devices]
        self.lanes = lanes.Lanes(devices)
        self.local = tuple(ordinals)
        self._alone = len(ordinals) == place.size
        self._meet: Callable[[], float] = lambda: 0.0
        if not self._alone:
            self._meet = self._meeting()

    def _meeting(self) -> Callable[[], float]:
        one = torch.ones(1).to(torch_xla.device())
        torch_xla.sync()
        return lambda: xla_model.all_reduce(xla_model.REDUCE_SUM, one).item()

    def barrier(self) -> None:
        """In one process: all threads have nothing left to do. Between processes: an all_reduce of one element."""
        self.lanes.settle()
        self._meet()

    def _program(self, request: requests.Request, inputs: dict[int, torch.Tensor]) -> collective_step.Program:
        return lanes.PerLane(self.lanes, request, inputs)

    def close(self) -> None:
        """Ends the threads and deletes what XLA dumped."""
        self.lanes.close()
        super().close()


class Spmd(_Ranks):
    """Mode spmd: all ranks in one program of one thread."""

    def __init__(self, place: ranks.Place, kept: dumps.Dumps) -> None:
        super().__init__("inprocess", "spmd", place, kept)
        self.local = tuple(range(place.size))

    def barrier(self) -> None:
        """One thread launches all ranks at once: nobody can be late."""

    def _device_kind(self) -> str:
        """The one device that SPMD shows has no kind (torch_xla 2.9.0 fails on it)."""
        return str(runtime.device_type()).lower()

    def _program(self, request: requests.Request, inputs: dict[int, torch.Tensor]) -> collective_step.Program:
        return spmd.Sharded(request, inputs)
