"""The native PyTorch adapter: CPU, or one CUDA device."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from typing import Any

import torch

from xlacompare.core import errors
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch import arms, arrays, compiler, counters, models
from xlacompare.workloads import spec

_DEVICES = {"cpu": "cpu", "gpu": "cuda"}


class Adapter:
    """Sets the threads of this process; one device, the one of XLACOMPARE_PLATFORM (default cpu)."""

    name = "torch"
    convention = "torch"

    def __init__(self) -> None:
        wanted = os.environ.get("XLACOMPARE_PLATFORM", "cpu")
        if wanted not in _DEVICES:
            raise errors.UnsupportedError(f"native torch runs on {', '.join(_DEVICES)}, not on {wanted!r}")
        if wanted == "gpu" and not torch.cuda.is_available():
            raise errors.UnsupportedError("torch sees no CUDA device (torch.cuda.is_available() is False)")
        self._device = torch.device(_DEVICES[wanted])
        _set_threads(os.environ.get("OMP_NUM_THREADS"))
        counters.watch_compilations()

    def describe(self) -> dict[str, Any]:
        """The environment keys."""
        keys: dict[str, Any] = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": "gpu" if self._device.type == "cuda" else "cpu",
            "device_kind": _device_kind(self._device),
            "asynchronous": self._device.type == "cuda",  # on the CPU a call returns when its work is done
            "device_count": torch.cuda.device_count() if self._device.type == "cuda" else 1,
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
            "blas": _blas(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "openmp": torch.backends.openmp.is_available(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        if self._device.type == "cuda":
            keys |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        return keys

    def compile_count(self) -> int:
        """Compilations begun anywhere in this process, by any arm or other code."""
        return counters.compile_count()

    def memory_bytes(self) -> int | None:
        """Peak bytes that the CUDA allocator had in use; None on the CPU."""
        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        """One eager forward and backward pass."""
        apply({})
        model = models.make(workload, dtype)
        arrays.load(model, workload, parameters, buffers)
        model.to(self._device)
        loss, activations, _ = arrays.forward_backward(
            model, to_device(arrays.batch_to_torch(batch, dtype), self._device)
        )
        return interface.Evaluation(
            loss=loss.item(),
            activations=arrays.activations_to_neutral(activations),
            gradients=arrays.export_gradients(model, workload),
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
    ) -> interface.TrainStep:
        """Builds the step and runs it for the first time, since torch.compile compiles when it first runs; then resets.

        Raises:
          BadInputError: A setting that torch does not have, or that only the environment sets.
          UnsupportedError: torch lacks the arm.
        """
        unknown = set(settings) - {name for name, setting in arms.SETTINGS.items() if setting.where == "build"}
        if unknown:
            raise errors.BadInputError(f"torch has no build setting {', '.join(sorted(unknown))}")
        return Step(self._device, workload, (parameters, buffers), batches, dtype, arm, settings)


class Step:
    """A training step whose state and batches lie on the device."""

    def __init__(
        self,
        device: torch.device,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        settings: Mapping[str, Any],
    ) -> None:
        self._device, self._workload, self._initial, self._settings = device, workload, initial, dict(settings)
        self.arm = arm
        self.model = models.make(workload, dtype)
        arrays.load(self.model, workload, *initial)
        self.model.to(device)
        self._batches = [to_device(arrays.batch_to_torch(batch, dtype), device) for batch in batches]
        options = compiler.inductor_options(device.type == "cpu" and bool(value_of(settings, "cpp_wrapper")))
        self._program = compiler.build(arm, self.model, workload.optimizer, options)
        self._loss = torch.zeros(())
        self.compile_times = first_runs(self)

    def run(self, index: int) -> None:
        """Dispatches one step; on the CPU torch is synchronous and the step is done on return."""
        apply(self._settings)
        self._loss = self._program.step(self._batches[index % len(self._batches)])

    def synchronize(self) -> None:
        """Waits for the CUDA device; on the CPU every kernel is done when its call returns."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def loss(self) -> float:
        """Loss of the last step."""
        return self._loss.item()

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers in the neutral layout and their own dtype."""
        return arrays.export(self.model, self._workload)

    def reset(self) -> None:
        """Back to the initial state, in place: the same tensors, so nothing is compiled again."""
        arrays.load(self.model, self._workload, *self._initial)
        self._program.clear()

    def close(self) -> None:
        """Drops the tensors and the program."""
        del self.model, self._program, self._batches, self._loss
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def first_runs(step: interface.TrainStep, count: int = 1) -> interface.CompileTimes:
    """Compiles, by the first steps; the state is the initial one afterwards."""
    graphs, phases, cache = counters.graph_counts(), counters.phase_seconds(), counters.cache_counts()
    for _ in range(count):
        step.run(0)
    step.synchronize()
    step.reset()
    graphs = {name: number - graphs[name] for name, number in counters.graph_counts().items()}
    if not graphs["graphs"]:
        return interface.CompileTimes(trace_s=0.0, lower_s=0.0, compile_s=0.0, note="no compiler")
    hits, misses = (after - before for after, before in zip(counters.cache_counts(), cache, strict=True))
    times = interface.CompileTimes(
        **{name: seconds - phases[name] for name, seconds in counters.phase_seconds().items()},
        note=f"{graphs['graphs']} graph(s), {graphs['breaks']} graph break(s)",
    )
    if hits + misses:
        times.disk_cache_hits, times.disk_cache_misses = hits, misses
    else:
        times.note += "; no artefact on disk"
    return times


def _set_threads(num_threads: str | None) -> None:
    """As many threads as OMP_NUM_THREADS says; torch's own defaults where it is not set."""
    if num_threads is None:
        return
    torch.set_num_threads(int(num_threads))
    # Raises when called again after the first parallel work.
    if torch.get_num_interop_threads() != int(num_threads):
        torch.set_num_interop_threads(int(num_threads))


def value_of(settings: Mapping[str, Any], name: str) -> Any:
    """A setting's value: the matched one unless it was changed."""
    return settings.get(name, arms.SETTINGS[name].matched)


_IN_FORCE: list[Mapping[str, Any]] = []  # the settings that were applied last


def apply(settings: Mapping[str, Any]) -> None:
    """Sets what torch keeps per process, where it is not so already: steps with other settings may run between.

    The identity check keeps it out of the steps of a block: asking torch cost 25 us a step, 1% of the tiny mlp's.
    """
    if _IN_FORCE and _IN_FORCE[0] is settings:
        return
    precision, tf32 = value_of(settings, "matmul_precision"), bool(value_of(settings, "convolution_tf32"))
    if torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)
    if torch.backends.cudnn.allow_tf32 != tf32:
        torch.backends.cudnn.allow_tf32 = tf32
    _IN_FORCE[:] = [settings]


def to_device(batch: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """A batch on the device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _device_kind(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()


def _blas() -> str:
    """The BLAS that torch was built with, e.g. "mkl"."""
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found.group(1) if found else "unknown"
