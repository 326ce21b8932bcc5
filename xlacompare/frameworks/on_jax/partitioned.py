"""`dp_auto`: one program over global arrays; XLA's partitioner cuts it among the ranks and puts the collectives in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from xlacompare.frameworks.on_jax import communicate, compiler, layers, mesh_step, plans
from xlacompare.workloads import spec


class Plan(plans.DataParallel):
    """As `dp`, but nobody asks for a collective: losses, gradients and batch norm are those of the whole batch."""

    def __init__(
        self, workload: spec.Workload, precision: layers.Precision, communication: communicate.Communication
    ) -> None:
        super().__init__(workload, precision, communication)
        self.network = compiler.Network(workload, precision)

    def gradients(self, parameters: compiler.Leaves, buffers: compiler.Leaves, batch: Any) -> plans.Losses:
        """Autodiff of the mean loss of all examples."""
        (loss, buffers), gradients = jax.value_and_grad(self.network.loss, has_aux=True)(parameters, buffers, batch)
        return loss, buffers, gradients


class Step(mesh_step.Step):
    """See `mesh_step.Step`."""

    def work(self) -> None:
        """None: before the partitioner there is no program of one rank."""

    def _jitted(self, one_rank: Any, given: Any, made: Any, **options: Any) -> Any:
        inner, outer = (jax.tree.map(self._where.sharding, specs) for specs in (given, made))
        return jax.jit(one_rank, in_shardings=inner, out_shardings=outer, **options)

    def _train(self, state: compiler.State, batch: Any) -> tuple[compiler.State, jax.Array]:
        """The step of all ranks; its loss once for each."""
        state, loss = self._train_own(state, batch)
        return state, jnp.broadcast_to(loss, (self._where.num_ranks,))
