"""The JAX adapter."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from xlacompare.core import errors, plugin, xla_options
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import arms, compiler, counters, layers, models, optimizers, private
from xlacompare.workloads import spec


def _host(array: np.ndarray, precision: layers.Precision) -> np.ndarray:
    """Floating arrays in the parameters' dtype, integers as they are. Flax's layout is the neutral one."""
    return array.astype(precision.parameter, copy=False) if np.issubdtype(array.dtype, np.floating) else array


def _place(tree: Any) -> Any:
    """Copies host arrays to the device.

    The CPU client borrows NumPy's memory where it happens to be aligned to 64 bytes, even with may_alias=False (jax
    0.10.2): the step would run on memory of another kind from launch to launch, and donation would copy. The second
    device_put, from device to device, does copy, and compiles nothing.
    """
    device = jax.devices()[0]
    return jax.block_until_ready(jax.device_put(jax.device_put(tree, device), device, may_alias=False))


def _numpy(names: tuple[str, ...], leaves: compiler.Leaves) -> spec.Arrays:
    return {name: np.array(leaf) for name, leaf in zip(names, leaves, strict=True)}


class Step:
    """A built training step; see `interface.TrainStep`."""

    def __init__(
        self,
        program: compiler.Program,
        network: compiler.Network,
        scope: compiler.Scope,
        make_state: Callable[[], compiler.State],
        batches: list[models.Batch],
    ) -> None:
        """`make_state` places the initial state: with donation each copy on the device dies with the next step."""
        self.program: Any = program
        self.compile_times = program.times
        self._call: Any = program.call
        self._network = network
        self._scope = scope
        self._make_state: Any = make_state
        self._state: Any = None
        self._batches = batches
        self._loss: jax.Array | None = None
        self.reset()

    def run(self, index: int) -> None:
        """Dispatches one step."""
        self._state, self._loss = self._call(self._state, self._batches[index % len(self._batches)])

    def synchronize(self) -> None:
        """Waits for every output of the last step; all earlier ones feed it."""
        jax.block_until_ready((self._state, self._loss))

    def loss(self) -> float:
        """Loss of the last step (waits).

        Raises:
          ValueError: No step has run since the build or the last reset.
        """
        if self._loss is None:
            raise ValueError("no step has run since the build or the last reset")
        return float(self._loss)

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers (waits)."""
        parameters, buffers, _ = self._state
        return _numpy(self._network.parameter_names, parameters), _numpy(self._network.buffer_names, buffers)

    def reset(self) -> None:
        """Back to the initial state; compiles nothing that the build has not compiled."""
        with self._scope():
            self._state = self._make_state()
        self._loss = None

    def close(self) -> None:
        """Drops the arrays and the program."""
        self._state = self._loss = self._call = self._make_state = self.program = None
        self._batches = []


class Adapter:
    """JAX on the default device of this process; see `interface.Framework`."""

    name = "jax"
    convention = "flax"

    def __init__(self) -> None:
        self._counters = counters.install()
        if (chosen := plugin.from_environment()) is not None:
            private.register_plugin(plugin.NAME, *chosen)
        self._device = jax.devices()[0]

    def describe(self) -> dict[str, Any]:
        """The environment keys."""
        return {
            **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")},
            "platform": self._device.platform,
            "device_kind": self._device.device_kind,
            "device_count": jax.device_count(),
            "runtime": getattr(self._device.client, "platform_version", ""),
            "threads": int(os.environ.get("NPROC") or len(os.sched_getaffinity(0))),
            "matmul_precision": str(jax.config.values["jax_default_matmul_precision"] or "default"),
            "x64": bool(jax.config.values["jax_enable_x64"]),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "compile_cache": jax.config.values["jax_compilation_cache_dir"] or "",
        }

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        """Loss, activations and gradients of one batch, under jit at the highest matmul precision."""
        precision = layers.PRECISIONS[dtype]
        with compiler.Scope(x64=dtype == "float64")():
            network = compiler.Network(workload, precision)
            state = _place(host_state(network, parameters, buffers, precision))
            function, order = _tapped(network)
            (loss, taps), gradients = function(*state, _place(host_batch(batch, precision)))
            return interface.Evaluation(
                loss=float(loss),
                activations={name: np.asarray(taps[name]).astype(np.float64) for name in order},
                gradients={
                    name: gradient.astype(np.float64)
                    for name, gradient in _numpy(network.parameter_names, gradients).items()
                },
                exceptions={
                    **models.COMPOSED.get(workload.name, {}),
                    **optimizers.COMPOSED.get(workload.optimizer.name, {}),
                },
            )

    def build(
        self,
        workload: spec.Workload,
        parameters: spec.Arrays,
        buffers: spec.Arrays,
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> Step:
        """Places everything and builds the arm's program.

        Raises:
          UnsupportedError: JAX lacks the arm, a setting is unknown, or XLA does not take the option.
        """
        if arm not in arms.ARMS:
            raise errors.UnsupportedError(f"jax has no arm {arm!r}: {arms.LACKS.get(arm, 'unknown arm')}")
        chosen = build_settings(settings)
        precision = layers.PRECISIONS[dtype]
        scope = compiler.Scope(x64=dtype == "float64", matmul_precision=chosen["matmul_precision"])
        with scope():
            network = compiler.Network(workload, precision)
            optimizer = optimizers.build(workload.optimizer)
            host = host_state(network, parameters, buffers, precision)

            def make_state() -> compiler.State:
                leaves = _place(host)
                return (*leaves, jax.block_until_ready(optimizer.init(leaves[0])))

            placed = [_place(host_batch(batch, precision)) for batch in batches]
            step = compiler.step_function(network, optimizer)
            changed = chosen.get(xla_options.CHANGED)
            program = compiler.build(arm, step, make_state(), placed[0], chosen["donation"], scope, changed)
        return Step(program, network, scope, make_state, placed)

    def compile_count(self) -> int:
        """Programs that the backend was asked for: compiled, or loaded from disk (which delays a step as well)."""
        return self._counters.snapshot().requests

    def memory_bytes(self) -> int | None:
        """Peak bytes of the device's allocator; None on the CPU, whose client keeps no statistics (jax 0.10.2)."""
        statistics = self._device.memory_stats()
        return statistics["peak_bytes_in_use"] if statistics else None


def build_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Matched values, overridden by `settings`.

    Raises:
      UnsupportedError: Not a "build" setting of JAX.
    """
    chosen = {name: setting.matched for name, setting in arms.SETTINGS.items() if setting.where == "build"}
    for name in settings:
        if name not in chosen and name != xla_options.CHANGED:
            raise errors.UnsupportedError(f"jax has no build setting {name!r}; known: {', '.join(chosen)}")
    return chosen | dict(settings)


def host_state(
    network: compiler.Network, parameters: spec.Arrays, buffers: spec.Arrays, precision: layers.Precision
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Parameters and buffers on the host, in program order and in the parameters' dtype."""
    return (
        tuple(_host(parameters[name], precision) for name in network.parameter_names),
        tuple(_host(buffers[name], precision) for name in network.buffer_names),
    )


def host_batch(batch: spec.Arrays, precision: layers.Precision) -> spec.Arrays:
    """A batch on the host; floats in the parameters' dtype."""
    return {name: _host(array, precision) for name, array in batch.items()}


def _tapped(network: compiler.Network) -> tuple[Any, list[str]]:
    """Jitted `(parameters, buffers, batch) -> ((loss, activations), gradients)`, and a list that receives the names of
    the activations in program order at its first call (jit returns a dict sorted by key).
    """
    order: list[str] = []

    def loss(parameters: compiler.Leaves, buffers: compiler.Leaves, batch: models.Batch) -> tuple[jax.Array, Any]:
        taps: dict[str, jax.Array] = {}
        value, _ = network.loss(parameters, buffers, batch, taps.__setitem__)
        order[:] = taps
        return value, taps

    return jax.jit(jax.value_and_grad(loss, has_aux=True)), order
