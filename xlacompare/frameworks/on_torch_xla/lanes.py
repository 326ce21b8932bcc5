"""One persistent thread per device. torch_xla's default device belongs to the thread, and xm.* asks it for the rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_model

from xlacompare.collectives import request as requests
from xlacompare.frameworks.on_torch_xla import operations

Task = Callable[[int], None]


def enter(device: str) -> None:
    """Makes a device the calling thread's own."""
    torch_xla._XLAC._xla_set_default_device(device)


class _Lane(threading.Thread):
    """Runs tasks in order; after a failure it runs no more, and keeps the error."""

    def __init__(self, index: int, device: str, done: queue.SimpleQueue[int]) -> None:
        super().__init__(name=f"rank {index}", daemon=True)
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.failure: Exception | None = None
        self._index, self._device, self._done = index, device, done
        self.open = True

    def run(self) -> None:
        enter(self._device)
        while self.open:
            task = self.tasks.get()
            if task is None:
                self._done.put(self._index)
            elif self.failure is None:
                self._try(task)

    def _try(self, task: Task) -> None:
        try:
            task(self._index)
        except (RuntimeError, ValueError, TypeError) as error:  # torch_xla's own; `Lanes.wait` raises it again
            self.failure = error


class Lanes:
    """The devices of this process, in order of their ordinals. The first one's lane is the calling thread.

    So a measurement's dispatch time is that of one rank's own xm.* call and launch, and the others' work goes on beside
    it; `each` costs about 1 us per other lane (measured, see `transports`).
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._others = [_Lane(index, device, self._done) for index, device in enumerate(devices) if index]
        enter(devices[0])
        for lane in self._others:
            lane.start()

    def each(self, task: Task) -> None:
        """Runs a task on every lane, returns when the first lane's is through."""
        for lane in self._others:
            lane.tasks.put(task)
        task(0)

    def staged(self, task: Task) -> None:
        """Runs a task that compiles: the first lane's before the others', one by one.

        Two threads that compile the same graph at once get two executables, which wait for each other: a hang, and an
        abort of the process after 10 s. After the first they find its program in memory.
        """
        task(0)
        for lane in self._others:
            lane.tasks.put(task)
            self.settle([lane])

    def settle(self, lanes: Sequence[_Lane] | None = None) -> None:
        """Returns when lanes have done their tasks, which does not mean that the devices have.

        Raises:
          RuntimeError: A task failed; with the rank, from torch_xla's own error.
        """
        chosen = self._others if lanes is None else lanes
        for lane in chosen:
            lane.tasks.put(None)
        for _ in chosen:
            self._done.get()
        for lane in chosen:
            if lane.failure is not None:
                failure, lane.failure = lane.failure, None
                raise RuntimeError(f"{lane.name}: {failure}") from failure

    def wait(self) -> None:
        """Returns when lanes and devices are through.

        In this order: `wait_device_ops` holds the devices' locks, and a lane that has not launched yet waits for one.
        """
        self.settle()
        xla_model.wait_device_ops()

    def close(self) -> None:
        """Ends the threads; safe to call twice."""
        for lane in self._others:
            lane.tasks.put(lambda _, lane=lane: setattr(lane, "open", False))
            lane.join(timeout=5)
        self._others = []


class PerLane:
    """A collective whose ranks are lanes, each with a buffer of its own.

    Args:
      lanes: The lanes of this process.
      request: The collective.
      inputs: Native tensor by global rank, in the order of the lanes.
    """

    def __init__(self, lanes: Lanes, request: requests.Request, inputs: Mapping[int, torch.Tensor]) -> None:
        self._lanes, self._ranks = lanes, tuple(inputs)
        self._inputs = list(inputs.values())
        self._calls = [operations.TABLE[request.collective](request, rank) for rank in inputs]
        self._blocking = request.collective == "barrier"
        self._buffers: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, torch.Tensor] = {}

    def put(self) -> None:
        """Uploads into the same tensors: a copy on the device would be a program of its own."""
        self._lanes.each(self._put)
        self._lanes.wait()

    def _put(self, lane: int) -> None:
        if lane in self._buffers:
            self._buffers[lane].copy_(self._inputs[lane])
        else:
            self._buffers[lane] = self._inputs[lane].to(self._lanes.devices[lane])
        torch_xla.sync()

    def launch(self) -> None:
        """Each lane traces and launches, and forgets the output before."""
        self._lanes.each(self._launch)
        if self._blocking:
            self._lanes.wait()

    def first(self) -> None:
        """One lane after the other, so none may wait for its result."""
        self._lanes.staged(self._launch)

    def _launch(self, lane: int) -> None:
        self._outputs[lane] = self._calls[lane](self._buffers[lane])
        torch_xla.sync()

    def wait(self) -> None:
        """Waits for lanes and devices."""
        self._lanes.wait()

    def trace(self) -> torch.Tensor:
        """The first lane's lazy output. In place it leaves the buffer traced: `put` comes next."""
        return self._calls[0](self._buffers[0])

    def read(self) -> dict[int, np.ndarray]:
        """Outputs of the last launch by global rank."""
        return {rank: operations.download(self._outputs[lane]) for lane, rank in enumerate(self._ranks)}

    def free(self) -> None:
        """Drops the buffers."""
        self._buffers.clear()
        self._outputs.clear()
