"""Data parallel over lanes: every lane has a replica, traces its own step and launches it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from xlacompare.core import errors
from xlacompare.frameworks.on_torch_xla import communicate, lanes, replica
from xlacompare.parallel import arms, request, shards
from xlacompare.workloads import spec


class Replicas:
    """The replicas of all ranks; all of them do the same things.

    Args:
      ranks: The lanes.
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Of the whole mesh.
      asked: The step.
    """

    def __init__(
        self,
        ranks: lanes.Lanes,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        self._lanes, self._asked = ranks, asked
        self._replicas: dict[int, replica.Replica] = {}
        self._communications: dict[int, communicate.Communication] = {}
        self._losses: dict[int, torch.Tensor] = {}

        def make(lane: int) -> None:
            rows = [shards.rows(batch, lane, asked.num_ranks) for batch in batches]
            made = replica.Replica(ranks.devices[lane], workload, initial, rows, asked.dtype)
            like = made.training.parameters[0]
            self._communications[lane] = communicate.Communication(asked.communication, asked.num_ranks, like)
            self._replicas[lane] = made
            lanes.launch()

        self._uploaded(make)

    def launch(self, index: int) -> None:
        """Traces and launches one step on every lane."""
        self._lanes.each(lambda lane: self._step(lane, index))

    def first(self, index: int) -> None:
        """The same, compiled once."""
        self._lanes.led(lambda lane: self._step(lane, index))

    def _step(self, lane: int, index: int) -> None:
        self._losses[lane] = self._trace(lane, index)
        lanes.launch()

    def _trace(self, lane: int, index: int) -> torch.Tensor:
        training = self._replicas[lane].training
        loss, statistics = self._backward(lane, index)
        training.update(statistics)
        training.drop_gradients()
        return loss.detach()

    def _backward(self, lane: int, index: int) -> tuple[torch.Tensor, dict]:
        made = self._replicas[lane]
        loss, statistics = made.training.forward(made.batch(index))
        loss.backward()
        self._communications[lane].mean([parameter.grad for parameter in made.training.parameters])
        return loss, statistics

    def wait(self) -> None:
        """Waits for lanes and devices."""
        self._lanes.wait()

    def losses(self) -> list[float]:
        """Of the last step, by rank."""
        return [self._losses[lane].item() for lane in range(self._asked.num_ranks)]

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers of rank 0, which every rank has.

        Raises:
          MismatchError: They have drifted apart under an arm that does not let them.
        """
        found = [made.export() for _, made in sorted(self._replicas.items())]
        for parameters, buffers in found[1:]:
            self._require_equal("parameter", found[0][0], parameters)
            self._require_equal("buffer", found[0][1], buffers)
        return found[0]

    def gradients(self) -> spec.Arrays:
        """Of batch 0 at the initial state, as the optimizers would get them.

        Raises:
          MismatchError: As of `state`.
        """

        def launch(lane: int) -> None:
            self._backward(lane, 0)
            lanes.launch()

        self.wait()
        saved = {lane: made.save() for lane, made in self._replicas.items()}
        self.reset()
        self._lanes.led(launch)
        self.wait()
        found = [made.export_gradients() for _, made in sorted(self._replicas.items())]
        for made in self._replicas.values():
            made.training.drop_gradients()
        for gradients in found[1:]:
            self._require_equal("gradient", found[0], gradients)
        self._uploaded(lambda lane: self._restore(lane, saved[lane]))
        return found[0]

    def _restore(self, lane: int, saved: replica.Saved) -> None:
        self._replicas[lane].restore(saved)
        lanes.launch()

    def _require_equal(self, kind: str, first: spec.Arrays, other: spec.Arrays) -> None:
        if self._asked.communication not in arms.EXACT:
            return
        for name, value in first.items():
            if not np.array_equal(value, other[name], equal_nan=True):
                raise errors.MismatchError(f"{kind} {name} is not the same on all ranks")

    def reset(self) -> None:
        """Uploads the initial state."""

        def put(lane: int) -> None:
            self._replicas[lane].reset()
            lanes.launch()

        self._uploaded(put)

    def _uploaded(self, task: lanes.Task) -> None:
        self._lanes.each(task)
        self._lanes.wait()

    def traced(self, read: Callable[[list[torch.Tensor]], None]) -> None:
        """Runs one step from the initial state, and gives the first lane's results to `read` before it is launched."""

        def task(lane: int) -> None:
            self._losses[lane] = self._trace(lane, 0)
            if lane == 0:
                read([self._losses[0], *(tensor for _, tensor in self._replicas[0].named())])
            lanes.launch()

        self.reset()
        self._lanes.led(task)
        self.wait()
        self.reset()

    def names(self) -> dict[int, tuple[str, str]]:
        """Of the first lane: tensor of torch_xla -> name and role of what a step reads."""
        return self._replicas[0].names()

    def free(self) -> None:
        """Drops what lies on the devices."""
        self._replicas.clear()
        self._communications.clear()
        self._losses.clear()
