"""Training steps over the ranks of torch.distributed, by strategy and communication arm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from xlacompare.core import census, errors
from xlacompare.frameworks import ranks as ranks_seam
from xlacompare.frameworks.on_torch import (
    alone,
    arm_group,
    arms,
    arrays,
    c10d_log,
    collectives,
    compiler,
    counters,
    ddp,
    framework,
    fsdp,
    program,
    strategies,
    tensor_parallel,
)
from xlacompare.parallel import arms as communication_arms
from xlacompare.parallel import request, shards
from xlacompare.workloads import spec

PLANS: dict[str, type[ddp.DataParallel] | type[fsdp.FullySharded] | type[tensor_parallel.TensorParallel]] = {
    "dp": ddp.DataParallel,
    "fsdp": fsdp.FullySharded,
    "tp": tensor_parallel.TensorParallel,
}
# Steps before the first that is like all others: DDP orders its buckets anew after its first backward pass.
_WARM_UP = 2


def build(
    ranks: ranks_seam.Ranks,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    asked: request.Request,
) -> Step | alone.Step:
    """Builds the step, runs it, and resets it; see `frameworks.strategy`.

    Raises:
      BadInputError: The batch does not divide, or a setting is unknown.
      UnsupportedError: torch cannot do it; the reason is that of `strategies.unsupported`.
    """
    assert isinstance(ranks, collectives.TorchRanks)
    reason = strategies.unsupported(asked, ranks.transport, "process", workload.name)
    if reason:
        raise errors.UnsupportedError(f"torch: {reason}")
    counters.watch_compilations()
    ranks.count_compiles = counters.compile_count
    if asked.communication in communication_arms.WITHOUT_COMPUTE:
        return alone.Step(asked, arm_group.group_of("real"), ranks.device)
    if PLANS[asked.strategy].splits_batch:
        shards.check(workload, asked.num_ranks)
    return Step(ranks, workload, (parameters, buffers), batches, asked)


def _settings(asked: request.Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the framework as given, and of the strategy with their matched values filled in."""
    given, own = dict(asked.settings), strategies.STRATEGIES[asked.strategy].settings
    known = set(own) | {name for name, setting in arms.SETTINGS.items() if setting.where == "build"}
    if unknown := set(given) - known:
        raise errors.BadInputError(f"torch's {asked.strategy} has no setting {', '.join(sorted(unknown))}")
    return {name: given[name] for name in given if name not in own}, {**own, **given}


class Step:
    """A training step over all ranks; see `strategy.ParallelStep`."""

    def __init__(
        self,
        ranks: collectives.TorchRanks,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        """See `build`."""
        self._device, self._initial, self._size = ranks.device, initial, asked.num_ranks
        self._settings, own = _settings(asked)
        self.arm = asked.compiler
        compiled = None
        if asked.compiler != "eager":
            in_cpp = self._device.type == "cpu" and bool(framework.value_of(self._settings, "cpp_wrapper"))
            compiled = compiler.inductor_options(in_cpp)
        self._group = arm_group.group_of(asked.communication)
        self._plan = PLANS[asked.strategy](workload, asked.dtype, self._group, compiled)
        self._plan.place(self._device, initial, own)
        self._batches = [
            framework.to_device(arrays.batch_to_torch(self._plan.shard(batch), asked.dtype), self._device)
            for batch in batches
        ]
        self._loss = torch.zeros(())
        with counters.small_buckets(int(own.get("bucket_mb", ddp.SHIPPED_BUCKET_MB) * 2**20)):
            self.compile_times = framework.first_runs(self, _WARM_UP)

    @property
    def model(self) -> nn.Module:
        """This rank's, for the census of its products."""
        return self._plan.model

    def run(self, index: int) -> None:
        """Dispatches one step; on the CPU it is done on return."""
        framework.apply(self._settings)
        self._loss = self._plan.train(self._batches[index % len(self._batches)])

    def synchronize(self) -> None:
        """Waits for the CUDA device; on the CPU every kernel and every collective has been waited for."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def loss(self) -> float:
        """Mean over ranks of the losses of the last step (communicates: the step itself does not need it)."""
        total = self._loss.detach().double().clone()
        dist.all_reduce(total)
        return total.item() / self._size

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole."""
        return self._plan.export()

    def gradients(self) -> spec.Arrays:
        """Gradients of batch 0 at the initial state, through the arm's collectives; the state stays."""
        framework.apply(self._settings)
        state = self._plan.export()
        self._plan.load(*self._initial)
        self._plan.backward(self._batches[0])
        found = self._plan.take_gradients()
        self._plan.load(*state)
        return found

    def reset(self) -> None:
        """Back to the initial state, in place: nothing is compiled again."""
        self._plan.load(*self._initial)
        self._plan.clear()

    def communications(self) -> dict[str, Any]:
        """What one step made the library do, by its own record; the step is reset before and after."""
        self.reset()
        found = c10d_log.of_step(self, arm_group.group_of("real"))
        self.reset()
        return found

    def work(self) -> census.Counted:
        """The aten operations of one step of this rank; the step is reset before and after."""
        return program.count(self)

    def close(self) -> None:
        """Drops the tensors, the program and the arm's group."""
        del self._plan, self._batches, self._loss
        arm_group.close(self._group)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
