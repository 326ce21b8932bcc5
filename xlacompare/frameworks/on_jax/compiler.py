"""The training step as a pure function, and one builder per arm that makes it runnable."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from xlacompare.core import errors, xla_options
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import counters, layers, models, staging
from xlacompare.workloads import spec

Leaves = tuple[jax.Array, ...]
State = tuple[Leaves, Leaves, Any]  # parameters and buffers in program order, optax state
StepFunction = Callable[[State, models.Batch], tuple[State, jax.Array]]

# Options of one compilation, so that these arms share a process with `compiled` (XLA_FLAGS would not allow it).
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "nofusion": {"xla_disable_hlo_passes": "fusion"},
    "opt0": {"xla_backend_optimization_level": 0},
}


@dataclasses.dataclass(frozen=True)
class Scope:
    """Thread-local configuration under which a cell is traced, run or put on the device.

    Attributes:
      x64: Whether 64-bit types are kept; float64 and float32 cells live in one process.
      matmul_precision: "highest" or "default".
    """

    x64: bool
    matmul_precision: str = "highest"

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Enters the scope on this thread."""
        with jax.enable_x64(self.x64), jax.default_matmul_precision(self.matmul_precision):
            yield


class Network:
    """A model taken apart once, outside the hot loop: the graph, and where each leaf belongs.

    Attributes:
      parameter_names, buffer_names: Neutral names in program order.
    """

    def __init__(
        self,
        workload: spec.Workload,
        precision: layers.Precision,
        adapt: Callable[[Any], Any] = models.as_defined,
    ) -> None:
        """Call it inside the cell's `Scope`. `adapt` is that of `models.abstract`.

        Raises:
          MismatchError: The model's tensors are not those of the workload.
        """
        parts: Any = nnx.split(models.abstract(workload, precision, adapt), nnx.Param, nnx.BatchStat)
        self._graph, parameters, buffers = parts
        self.parameter_names = tuple(tensor.name for tensor in workload.parameters())
        self.buffer_names = tuple(tensor.name for tensor in workload.buffers())
        self._parameters = _Tree(parameters, self.parameter_names)
        self._buffers = _Tree(buffers, self.buffer_names)

    def loss(
        self, parameters: Leaves, buffers: Leaves, batch: models.Batch, tap: models.Tap = models.no_tap
    ) -> tuple[jax.Array, Leaves]:
        """Mean cross entropy over all labels, and the updated buffers."""
        model = nnx.merge(self._graph, self._parameters.state(parameters), self._buffers.state(buffers))
        logits = model(batch, tap)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        return loss, self._buffers.leaves(nnx.state(model, nnx.BatchStat))


class _Tree:
    """Program order <-> the order in which JAX flattens an nnx.State."""

    def __init__(self, state: nnx.State, names: tuple[str, ...]) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(state)
        # The last key of a path is the `value` of an nnx.Variable.
        flat = [".".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path[:-1]) for path, _ in paths]
        if sorted(flat) != sorted(names):
            unlike = sorted(set(flat) ^ set(names))
            raise errors.MismatchError(f"tensors of the Flax model and of the workload differ: {', '.join(unlike)}")
        self._from_program = [names.index(name) for name in flat]
        self._to_program = [flat.index(name) for name in names]

    def state(self, leaves: Leaves) -> nnx.State:
        return jax.tree.unflatten(self._structure, [leaves[i] for i in self._from_program])

    def leaves(self, state: nnx.State) -> Leaves:
        flat = jax.tree.leaves(state)
        return tuple(flat[i] for i in self._to_program)


def step_function(network: Network, optimizer: optax.GradientTransformation) -> StepFunction:
    """Forward, loss, backward, optimizer update and buffers as `(state, batch) -> (state, loss)`."""
    value_and_grad = jax.value_and_grad(network.loss, has_aux=True)

    def train_step(state: State, batch: models.Batch) -> tuple[State, jax.Array]:
        parameters, buffers, optimizer_state = state
        (loss, buffers), gradients = value_and_grad(parameters, buffers, batch)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), buffers, optimizer_state), loss

    return train_step


@dataclasses.dataclass
class Program:
    """A step that can be called, and what it cost to build.

    Attributes:
      call: `(state, batch) -> (state, loss)`; dispatches.
      times: Compile times; of the eager arm they grow with the first steps.
      executable: The compiled program; None for eager.
      lowered: What was given to the compiler; None for eager.
      function: The step that Python runs, of the eager arm; None for the others.
      options: Of this compilation.
    """

    call: StepFunction
    times: interface.CompileTimes
    executable: jax.stages.Compiled | None = None
    lowered: jax.stages.Lowered | None = None
    function: StepFunction | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def ahead_of_time(
    step: StepFunction, state: State, batch: models.Batch, donate: bool, options: Mapping[str, Any]
) -> Program:
    """One program for the whole step; trace, lower and compile are timed apart. Call it inside the cell's `Scope`."""
    jitted = jax.jit(step, donate_argnums=(0,) if donate else (), compiler_options=dict(options))
    lowered, executable, times = staging.ahead_of_time(jitted, state, batch)
    return Program(executable, times, executable, lowered, options=options)


def op_by_op(step: StepFunction, scope: Scope) -> Program:
    """No jit around the step: Python dispatches every primitive; each compiles at its first use, in the first step."""
    counts = counters.install()
    times = interface.CompileTimes(
        note="no program of the step: sums over the one-op programs that the steps so far needed"
    )
    total = counters.Counts()

    def call(state: State, batch: models.Batch) -> tuple[State, jax.Array]:
        nonlocal total
        before = counts.snapshot()
        with scope():
            result = step(state, batch)
        if counts.requests != before.requests:
            total += counts.snapshot() - before
            _fill(times, total)
        return result

    return Program(call, times, function=step)


def _fill(times: interface.CompileTimes, spent: counters.Counts) -> None:
    times.trace_s, times.lower_s, times.compile_s = spent.trace_s, spent.lower_s, spent.compile_s
    times.disk_cache_hits, times.disk_cache_misses = spent.disk_hits, spent.disk_misses


def build(
    arm: str,
    step: StepFunction,
    state: State,
    batch: models.Batch,
    donate: bool,
    scope: Scope,
    changed: str | None = None,
) -> Program:
    """The program of an arm.

    Args:
      arm: "eager" or a key of COMPILER_OPTIONS.
      step: From `step_function`.
      state: Arrays on the device, for shapes and dtypes only (not donated here).
      batch: Likewise.
      donate: Whether a call consumes its state.
      scope: The cell's scope.
      changed: An XLA option for this compilation, "name=value".

    Raises:
      UnsupportedError: JAX has no such arm, or XLA does not take the option.
    """
    if arm == "eager":
        return op_by_op(step, scope)
    if arm not in COMPILER_OPTIONS:
        raise errors.UnsupportedError(f"arm {arm!r} does not exist in JAX")
    with scope():
        if changed is None:
            return ahead_of_time(step, state, batch, donate, COMPILER_OPTIONS[arm])
        try:
            return ahead_of_time(step, state, batch, donate, COMPILER_OPTIONS[arm] | option(changed))
        except jax.errors.JaxRuntimeError as error:
            raise _refusal(error) from error


def option(text: str) -> dict[str, Any]:
    """An option "name=value" for one compilation: jaxlib takes bool for bool, text for all else (0.10.2)."""
    name, value = xla_options.split(text)
    return {name: {"true": True, "false": False}.get(value, value)}


def _refusal(error: jax.errors.JaxRuntimeError) -> Exception:
    """Why XLA did not compile a step with an option that it compiles without; by jaxlib's words (0.10.2)."""
    said = str(error).splitlines()[0]
    if "RESOURCE_EXHAUSTED" in said:
        return error
    if "No such compile option" in said:
        return errors.UnsupportedError(xla_options.UNKNOWN)
    if "While setting option" in said:
        return errors.UnsupportedError(f"{xla_options.REFUSED} ({said.partition(': ')[2]})")
    return errors.UnsupportedError(f"this XLA does not compile the step with it: {said}")
