"""What the ranks of `jax_ranks` do with training steps: gate, programs, faults. Imported in their processes only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.frameworks import cases
from xlacompare.core import census
from xlacompare.frameworks import gate, ranks
from xlacompare.frameworks.on_jax import communicate, framework, fully_sharded, parallel, tensor_parallel
from xlacompare.graph import hlo_census, reading
from xlacompare.parallel import arms, request

FINITE_STEPS = 20
SPARE = ("instructions", "moves", "custom_calls", "converts")


def answer(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Every case by name; those of arms without compute take the schedule of their strategy's `real` case before."""
    schedules: dict[str, Any] = {}
    return {"cases": {name: _case(world, fields, schedules) for name, fields in work["cases"].items()}}


def _case(world: ranks.Ranks, fields: dict[str, Any], schedules: dict[str, Any]) -> dict[str, Any]:
    strategy, variant, dtype = fields["strategy"], fields["variant"], fields.get("dtype", "float32")
    arm, compiler = fields.get("communication", "real"), fields.get("compiler", "compiled")
    schedule = schedules.get(strategy, ()) if arm in arms.WITHOUT_COMPUTE else ()
    asked = request.Request(strategy, arm, compiler, dtype, len(world.devices), schedule=tuple(schedule))
    workload, made = cases.inputs(variant)
    before = world.compile_count()
    with FAULTS[fields.get("fault", "")]():
        step = parallel.build(world, workload, made.parameters, made.buffers, made.batches, asked)
        found = {} if arm in arms.WITHOUT_COMPUTE else _trained(step, variant, dtype, arm)
    if arm in arms.WITHOUT_COMPUTE:
        for index in range(FINITE_STEPS):
            step.run(index)
        step.synchronize()
    elif (counted := step.work()) is not None:
        found["work"] = counted.census.to_dict()
    found["compiles"] = world.compile_count() - before
    said = step.communications()
    if "text" in said:
        collectives = hlo_census.collectives(said["text"])
        counted = reading.count_hlo(said["text"])
        found["program"] = {key: value for key, value in counted.items() if key not in SPARE}
    else:
        collectives = [census.LoweredCollective.from_dict(item) for item in said["ops"]]
        found["program"] = found.get("work", {"flops": 0, "heavy": []})
        if arm in arms.WITHOUT_COMPUTE:
            texts = [one.communications()["text"] for one in step._steps]
            found["parsed"] = [item.to_dict() for text in texts for item in hlo_census.collectives(text)]
    if arm == "real":
        schedules[strategy] = collectives
    found["collectives"] = [item.to_dict() for item in collectives]
    step.close()
    return found


def _trained(step: parallel.Step, variant: str, dtype: str, arm: str) -> dict[str, Any]:
    workload, made = cases.inputs(variant)
    if arm in arms.EXACT:
        initial, gradients = step.state(), step.gradients()
        kept = step.state()
        given = (workload, made.parameters, made.buffers, cases.reference(variant, dtype), dtype, cases.STEPS)
        result = gate.arm_gate(step, *given, gradients)
        step.reset()
        return {
            "passed": result.passed,
            "message": "" if result.passed else result.message(),
            "kept": _same(initial, kept) and _same(step.state(), kept) and _same(kept, (made.parameters, made.buffers)),
        }
    for index in range(FINITE_STEPS):
        step.run(index)
    state = step.state()
    finite = all(np.isfinite(array).all() for side in state for array in side.values())
    moved = all((state[0][name] != made.parameters[name]).any() for name in made.parameters)
    return {"finite": bool(finite and np.isfinite(step.loss())), "moved": moved}


def _same(one: Any, other: Any) -> bool:
    """Both have the same parameters and buffers, bit by bit."""
    pairs = [(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    return all(
        list(mine) == list(theirs) and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in pairs
    )


Fault = Callable[[], contextlib.AbstractContextManager[Any]]


def _sum_for_mean() -> Any:
    return mock.patch.object(communicate.Communication, "all_reduce_mean", communicate.Communication.all_reduce_sum)


def _leaf_forgotten() -> Any:
    right = communicate.Communication.all_reduce_mean

    def wrong(self: communicate.Communication, leaves: Any) -> Any:
        return [*right(self, leaves[:-1]), leaves[-1]]

    return mock.patch.object(communicate.Communication, "all_reduce_mean", wrong)


def _shard_twice() -> Any:
    right = framework.host_batch

    def wrong(batch: Any, precision: Any) -> Any:
        return {name: _first_half_twice(array) for name, array in right(batch, precision).items()}

    return mock.patch.object(framework, "host_batch", wrong)


def _first_half_twice(array: np.ndarray) -> np.ndarray:
    half = array[: len(array) // 2]
    return np.concatenate([half, half])


def _scatter_reversed() -> Any:
    """Each rank of two updates its part with the other's gradients."""
    right = communicate.Communication.reduce_scatter

    def wrong(self: communicate.Communication, leaves: Any) -> Any:
        return right(self, [jax.numpy.roll(leaf, len(leaf) // self.num_ranks) for leaf in leaves])

    return mock.patch.object(communicate.Communication, "reduce_scatter", wrong)


def _padding_in_front() -> Any:
    """Parts that begin with the padding are read back as if they ended with it."""

    def wrong(self: Any, name: str, whole: np.ndarray) -> np.ndarray:
        n = self._communication.num_ranks
        return np.pad(whole.reshape(-1), (-whole.size % n, 0)).reshape(n, -1)

    return mock.patch.object(fully_sharded.FullySharded, "parts", wrong)


def _bias_on_every_rank() -> Any:
    def wrong(self: Any, first: Any, second: Any, x: Any, constant: bool) -> Any:
        def partial(weights: Any, x: Any) -> Any:
            own, other = weights
            return tensor_parallel.dense(jax.nn.relu(tensor_parallel.dense(x, *own)), *other)

        weights = (tensor_parallel.weights_of(first), tensor_parallel.weights_of(second))
        return tensor_parallel.half_block(self.communication, partial, weights, x, constant)

    return mock.patch.object(tensor_parallel.SplitMlp, "_pair", wrong)


def _norm_of_one_rank() -> Any:
    return mock.patch.object(communicate.Communication, "mean_across", lambda self, x: x)


def _columns_for_heads() -> Any:
    wrong = {name: cut.replace("heads", "columns") for name, cut in tensor_parallel._TRANSFORMER.items()}
    return mock.patch.object(tensor_parallel, "_TRANSFORMER", wrong)


def _no_sum_backward() -> Any:
    def wrong(communication: Any, partial: Any, weights: Any, x: Any, constant: bool = False) -> Any:
        whole = partial(weights, x)
        other = communication.all_reduce_sum([whole])[0] - whole
        return whole + jax.lax.stop_gradient(other)

    return mock.patch.object(tensor_parallel, "half_block", wrong)


FAULTS: dict[str, Fault] = {
    "": contextlib.nullcontext,
    "sum for mean": _sum_for_mean,
    "leaf forgotten": _leaf_forgotten,
    "shard twice": _shard_twice,
    "norm of one rank": _norm_of_one_rank,
    "scatter reversed": _scatter_reversed,
    "padding in front": _padding_in_front,
    "bias on every rank": _bias_on_every_rank,
    "columns for heads": _columns_for_heads,
    "no sum backward": _no_sum_backward,
}
