"""Training over lanes: every lane has what its rank has of the state, traces its own step and launches it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xlacompare.frameworks.on_torch_xla import communicate, lanes, replica, shard
from xlacompare.parallel import request, shards
from xlacompare.workloads import spec

KINDS: dict[str, type[replica.Replica]] = {"dp": replica.Replica, "fsdp": shard.Shard}


class Replicas:
    """The replicas, or shards, of all ranks; all of them do the same things.

    Args:
      ranks: The lanes.
      workload: What to train.
      initial: Parameters and buffers, neutral.
      batches: Of the whole mesh.
      asked: The step.
    """

    per_rank = True

    def __init__(
        self,
        ranks: lanes.Lanes,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        self._lanes, self._asked, self._kind = ranks, asked, KINDS[asked.strategy]
        self._replicas: dict[int, replica.Replica] = {}
        self._communications: dict[int, communicate.Communication] = {}
        self._losses: dict[int, torch.Tensor] = {}

        def make(lane: int) -> None:
            rows = [shards.rows(batch, lane, asked.num_ranks) for batch in batches]
            made = self._kind(ranks.devices[lane], workload, initial, rows, asked.dtype, lane, asked.num_ranks)
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
        lanes.launch(self._results(lane))

    def _results(self, lane: int) -> list[torch.Tensor]:
        return [self._losses[lane], *(tensor for _, tensor in self._replicas[lane].named())]

    def _trace(self, lane: int, index: int) -> torch.Tensor:
        made = self._replicas[lane]
        loss, statistics = made.backward(index, self._communications[lane])
        made.training.update(statistics)
        made.training.drop_gradients()
        return loss.detach()

    def wait(self) -> None:
        """Waits for lanes and devices."""
        self._lanes.wait()

    def losses(self) -> list[float]:
        """Of the last step, by rank."""
        return [self._losses[lane].item() for lane in range(self._asked.num_ranks)]

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, put together from what the ranks have."""
        return self._kind.state_of(self._in_order())

    def _in_order(self) -> list[replica.Replica]:
        return [made for _, made in sorted(self._replicas.items())]

    def gradients(self) -> spec.Arrays:
        """Of batch 0 at the initial state, as the optimizers would get them."""

        def launch(lane: int) -> None:
            made = self._replicas[lane]
            made.backward(0, self._communications[lane])
            lanes.launch([parameter.grad for parameter in made.training.parameters])

        self.wait()
        saved = {lane: made.save() for lane, made in self._replicas.items()}
        self.reset()
        self._lanes.led(launch)
        self.wait()
        found = self._kind.gradients_of(self._in_order())
        for made in self._replicas.values():
            made.training.drop_gradients()
        self._uploaded(lambda lane: self._restore(lane, saved[lane]))
        return found

    def _restore(self, lane: int, saved: replica.Saved) -> None:
        self._replicas[lane].restore(saved)
        lanes.launch()

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
                read(self._results(0))
            lanes.launch(self._results(lane))

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
