"""A training step over the ranks' mesh as one program, and what all training steps over ranks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import lax

from xlacompare.core import census, xla_options
from xlacompare.frameworks.on_jax import (
    communicate,
    compiler,
    framework,
    layers,
    optimizers,
    placement,
    plans,
    primitives,
    staging,
    steps,
)
from xlacompare.parallel import request
from xlacompare.workloads import spec


class Step:
    """A training step over all ranks of the mesh; see `strategy.ParallelStep`."""

    def __init__(
        self,
        where: placement.Placement,
        plan: Callable[[spec.Workload, layers.Precision, communicate.Communication], plans.Plan],
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        asked: request.Request,
    ) -> None:
        """See `parallel.build`; `plan` is the strategy's."""
        chosen = framework.build_settings(dict(asked.settings))
        self._where, self._precision = where, layers.PRECISIONS[asked.dtype]
        self._scope = compiler.Scope(x64=asked.dtype == "float64", matmul_precision=chosen["matmul_precision"])
        self._communication = self._communicate(asked.communication)
        self._optimizer = optimizers.build(workload.optimizer)
        with self._scope():
            self._plan = plan(workload, self._precision, self._communication)
            self._shapes = {tensor.name: tensor.shape for tensor in workload.parameters()}
            self._host = framework.host_state(self._plan.network, parameters, buffers, self._precision)
            self._specs = self._layout()
            self._batches = [self._place_batch(batch) for batch in batches]
            self._batch_specs = {name: self._plan.batch_spec(name) for name in self._batches[0]}
            self._init: Any = self._initialiser()
            self._programs: dict[str, Any] = {}
            self.reset()
            self._build(asked.compiler, chosen)
        own = sum(leaf.addressable_data(0).nbytes for leaf in jax.tree.leaves(self._state))
        self._most = steps.most_pending(own * len(self._state[0][0].addressable_shards))

    def run(self, index: int) -> None:
        """Dispatches one step; waits when too many are in flight."""
        self._state, self._loss = self._call(self._state, self._batches[index % len(self._batches)])
        self._pending += 1
        if self._pending >= self._most:
            self.synchronize()

    def synchronize(self) -> None:
        """Waits for every output of the last step; all earlier ones feed it."""
        self._pending = 0
        jax.block_until_ready((self._state, self._loss))

    def loss(self) -> float:
        """Mean over ranks of the losses of the last step (waits, and communicates: the step itself does not need it).

        Raises:
          ValueError: No step has run since the build or the last reset.
        """
        if self._loss is None:
            raise ValueError("no step has run since the build or the last reset")
        (losses,) = self._read("loss", (self._loss,), (placement.PARTS,))
        return float(np.mean(losses.astype(np.float64)))

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers, whole (waits; gathers what is split)."""
        parameters, buffers, _ = self._state
        network = self._plan.network
        return self._whole("state", parameters), _named(network.buffer_names, [placement.first(b) for b in buffers])

    def gradients(self) -> spec.Arrays:
        """Gradients of batch 0 at the initial parameters, whole, float64."""
        with self._scope():
            found = self._first_gradients(*self._place_state())
        return {name: array.astype(np.float64) for name, array in self._whole("gathered gradients", found).items()}

    def reset(self) -> None:
        """Back to the initial state; compiles nothing that the build has not compiled."""
        with self._scope():
            parameters, buffers = self._place_state()
            self._state: Any = (parameters, buffers, jax.block_until_ready(self._init(parameters)))
        self._loss: jax.Array | None = None
        self._pending = 0

    def communications(self) -> dict[str, Any]:
        """Optimised HLO of the step."""
        return {"source": "hlo", "text": self._executable.as_text(), "optimised": True}

    def work(self) -> census.Counted | None:
        """Primitives of one rank's program, by a trace that runs nothing: shapes are those of the rank's parts."""
        with self._scope():
            one_rank = self._mapped(self._train, (self._specs, self._batch_specs), (self._specs, placement.PARTS))
            traced = jax.make_jaxpr(one_rank)(self._state, self._batches[0])
        return census.Counted("primitives of one rank's step, before the compiler", primitives.of_jaxpr(traced))

    def close(self) -> None:
        """Drops the arrays and the programs."""
        self._state = self._loss = self._call = self._executable = self._init = None
        self._batches, self._programs, self._host = [], {}, ((), ())

    def _build(self, arm: str, chosen: dict[str, Any]) -> None:
        changed = chosen.get(xla_options.CHANGED)
        options = compiler.COMPILER_OPTIONS[arm] | (compiler.option(changed) if changed else {})
        given, made = (self._specs, self._batch_specs), (self._specs, placement.PARTS)
        donated = (0,) if chosen["donation"] else ()
        jitted = self._jitted(self._train, given, made, donate_argnums=donated, compiler_options=options)
        _, self._executable, self.compile_times = staging.ahead_of_time(jitted, self._state, self._batches[0])
        self._call: Any = self._executable

    def _communicate(self, arm: str) -> communicate.Communication:
        return communicate.Communication(arm, self._where.num_ranks)

    def _initialiser(self) -> Any:
        """Parameters -> optimizer state before the first step."""
        return self._jitted(self._empty, (self._specs[0],), self._specs[2])

    def _first_gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves) -> compiler.Leaves:
        if "gradients" not in self._programs:
            given = (self._specs[0], self._specs[1], self._batch_specs)
            self._programs["gradients"] = self._jitted(self._gradients, given, self._specs[0])
        found: compiler.Leaves = self._programs["gradients"](parameters, buffers, self._batches[0])
        return found

    def _jitted(self, one_rank: Any, given: Any, made: Any, **options: Any) -> Any:
        """`one_rank` over the mesh, with PartitionSpecs of its arguments and results."""
        return jax.jit(self._mapped(one_rank, given, made), **options)

    def _mapped(self, one_rank: Any, given: Any, made: Any) -> Any:
        """Without the check of varying types: with it autodiff adds collectives of its own."""
        return jax.shard_map(one_rank, mesh=self._where.mesh, in_specs=given, out_specs=made, check_vma=False)

    def _train(self, state: compiler.State, batch: Any) -> tuple[compiler.State, jax.Array]:
        """One rank's step on its parts of global arrays."""
        state, loss = self._train_own(placement.own(state, self._specs), batch)
        return placement.shared(state, self._specs), loss[None]

    def _train_own(self, state: compiler.State, batch: Any) -> tuple[compiler.State, jax.Array]:
        """One rank's step on what it has."""
        parameters, buffers, optimizer_state = state
        loss, buffers, gradients = self._plan.gradients(parameters, buffers, batch)
        updates, optimizer_state = self._optimizer.update(gradients, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), buffers, optimizer_state), loss

    def _gradients(self, parameters: Any, buffers: Any, batch: Any) -> Any:
        """One rank's gradients."""
        own = placement.own(parameters, self._specs[0])
        return placement.shared(self._plan.gradients(own, buffers, batch)[2], self._specs[0])

    def _empty(self, parameters: Any) -> Any:
        """One rank's optimizer state before the first step."""
        return placement.shared(self._optimizer.init(placement.own(parameters, self._specs[0])), self._specs[2])

    def _layout(self) -> Any:
        """PartitionSpecs of (parameters, buffers, optimizer state)."""
        names = self._plan.network.parameter_names
        split = [self._plan.parts(name, host) is not None for name, host in zip(names, self._host[0], strict=True)]
        parameters = tuple(placement.PARTS if cut else placement.WHOLE for cut in split)
        empty = jax.eval_shape(self._optimizer.init, tuple(self._host[0]))
        state = optax.tree.map_params(
            self._optimizer, lambda _, own: own, empty, parameters, transform_non_params=lambda _: placement.WHOLE
        )
        return parameters, tuple(placement.WHOLE for _ in self._host[1]), state

    def _place_state(self) -> tuple[compiler.Leaves, compiler.Leaves]:
        """Initial parameters and buffers on the devices."""
        names = self._plan.network.parameter_names
        parameters = []
        for name, host in zip(names, self._host[0], strict=True):
            parts = self._plan.parts(name, host)
            parameters.append(self._put(host, placement.WHOLE) if parts is None else self._put(parts, placement.PARTS))
        return tuple(parameters), tuple(self._put(host, placement.WHOLE) for host in self._host[1])

    def _put(self, host: np.ndarray, where: jax.sharding.PartitionSpec) -> jax.Array:
        return self._where.put(host, where)

    def _place_batch(self, batch: spec.Arrays) -> dict[str, jax.Array]:
        host = framework.host_batch(batch, self._precision)
        return {name: self._put(array, self._plan.batch_spec(name)) for name, array in host.items()}

    def _whole(self, program: str, leaves: compiler.Leaves) -> spec.Arrays:
        """Parameters, or arrays like them, on the host."""
        names = self._plan.network.parameter_names
        read = self._read(program, leaves, self._specs[0])
        return {
            name: self._plan.whole(name, array, self._shapes[name]) if where == placement.PARTS else array
            for name, array, where in zip(names, read, self._specs[0], strict=True)
        }

    def _read(self, program: str, leaves: compiler.Leaves, specs: Any) -> list[np.ndarray]:
        """Arrays on the host; of what is split all parts, gathered by a program of its own (other processes have them).

        Not `communicate`: whatever the arm, what is read is what each rank has.
        """
        split = [i for i, where in enumerate(specs) if where == placement.PARTS]
        if split:
            leaves = self._on_mesh(leaves, split)
            if program not in self._programs:
                gather = self._mapped(_gathered, (placement.PARTS,), placement.WHOLE)
                self._programs[program] = jax.jit(gather)
            with self._scope():
                found = self._programs[program](tuple(leaves[i] for i in split))
            leaves = tuple({**dict(enumerate(leaves)), **dict(zip(split, found, strict=True))}.values())
        return [placement.first(leaf) for leaf in leaves]

    def _on_mesh(self, leaves: compiler.Leaves, split: list[int]) -> compiler.Leaves:
        """The leaves; those of `split` as parts of global arrays."""
        return leaves


def _gathered(parts: Any) -> Any:
    return jax.tree.map(lambda part: lax.all_gather(part, communicate.AXIS, tiled=True), parts)


def _named(names: tuple[str, ...], arrays: list[np.ndarray]) -> spec.Arrays:
    return dict(zip(names, arrays, strict=True))
