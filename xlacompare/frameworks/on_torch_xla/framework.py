"""The PyTorch/XLA adapter."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch_xla
from torch_xla import backends, runtime
from torch_xla.core import xla_model

from xlacompare.core import errors, plugin, xla_dump
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch import arrays
from xlacompare.frameworks.on_torch_xla import arms, compiler, counters, dumps, models, optimizers, plugins
from xlacompare.workloads import spec


class Adapter:
    """Starts the runtime of the process; one device."""

    name = "torch_xla"
    convention = "torch"

    def __init__(self) -> None:
        folder = os.environ.get(arms.DUMP_VARIABLE)
        self._dumps = dumps.Dumps(parent=folder) if folder else None
        self._plugin = plugin.from_environment()
        if self._plugin is not None:
            plugins.register(self._plugin[1])
        precision = os.environ.get(arms.MATMUL_PRECISION_VARIABLE)
        if precision is not None:
            backends.set_mat_mul_precision(precision)
        # A backward pass on CPU tensors before the device's first use breaks XLA's own (device_ready_queues_ assert).
        self._device = torch_xla.device()
        torch.zeros(1).to(self._device)
        compiler.fence()

    def describe(self) -> dict[str, Any]:
        """The environment keys; flags are those in force, torch_xla adds some of its own at import."""
        return {
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
            "python": platform.python_version(),
            "platform": str(runtime.device_type()).lower(),
            "device_kind": xla_model.xla_device_kind(self._device),
            "device_count": runtime.addressable_device_count(),
            "threads": int(os.environ["NPROC"]) if "NPROC" in os.environ else len(os.sched_getaffinity(0)),
            "torch_threads": torch.get_num_threads(),
            "matmul_precision": backends.get_mat_mul_precision(),
            "parameter_aliasing": os.environ.get("XLA_ENABLE_PARAM_ALIASING", "1") != "0",
            "xla_flags": os.environ.get("XLA_FLAGS", "").strip(),
            "libtpu_flags": os.environ.get("LIBTPU_INIT_ARGS", "").strip(),
        }

    def compile_count(self) -> int:
        """Moves whenever a program is compiled or captured, in any arm."""
        return counters.compile_count()

    def memory_bytes(self) -> int | None:
        """Peak bytes in use of the allocator; None where that is not implemented: on the CPU, and on a plugin."""
        if runtime.device_type() == "CPU" or self._plugin is not None:
            return None
        return int(xla_model.get_memory_info(self._device)["peak_bytes_used"])

    def evaluate(
        self, workload: spec.Workload, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays, dtype: str
    ) -> interface.Evaluation:
        """One lazy forward and backward pass, launched as a whole before anything is read."""
        model = models.make(workload, dtype)
        arrays.load(model, workload, parameters, buffers)
        model.to(self._device)
        loss, activations, _ = arrays.forward_backward(
            model, _to_device(arrays.batch_to_torch(batch, dtype), self._device)
        )
        # Reading a gradient with .cpu() before this launches one graph per tensor: minutes.
        compiler.fence()
        return interface.Evaluation(
            loss=loss.item(),
            activations=arrays.activations_to_neutral({name: value.cpu() for name, value in activations.items()}),
            gradients=arrays.export_gradients(model, workload),
            exceptions=models.exceptions(workload, dtype),
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
        """Builds the step and runs it for the first time, since lazy programs are compiled by running them.

        Raises:
          BadInputError: A setting that torch_xla does not have.
          UnsupportedError: The arm is lacking, or its flags are not in force in this process.
        """
        unknown = set(settings) - {name for name, setting in arms.SETTINGS.items() if setting.where == "build"}
        if unknown:
            raise errors.BadInputError(f"torch_xla has no setting {', '.join(sorted(unknown))}")
        return Step(self._device, workload, (parameters, buffers), batches, dtype, arm, self._dumps)


def _to_device(batch: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


class Step:
    """A training step whose state and batches lie on the device.

    Attributes:
      evidence: Of all that the first steps compiled; empty where XLA dumps nothing, or they were compiled before.
    """

    def __init__(
        self,
        device: torch.device,
        workload: spec.Workload,
        initial: tuple[spec.Arrays, spec.Arrays],
        batches: list[spec.Arrays],
        dtype: str,
        arm: str,
        kept: dumps.Dumps | None = None,
    ) -> None:
        self._workload, self.arm, self._dumps = workload, arm, kept
        self.evidence = xla_dump.Evidence()
        # A process has one set of flags: it compiles the same step once, whatever settings differ.
        self._dumped_as = repr((workload, dtype)).encode()
        model = models.make(workload, dtype)
        arrays.load(model, workload, *initial)
        self._initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.to(device)
        parameters = list(model.parameters())
        optimizer = optimizers.make(workload.optimizer, parameters)
        self._training = compiler.Training(model, parameters, optimizer, workload.optimizer)
        self._launch = compiler.build(arm, self._training)
        self._batches = [_to_device(arrays.batch_to_torch(batch, dtype), device) for batch in batches]
        # State that is not yet on the device would be a constant of the first program, and make the second a new one.
        compiler.fence()
        self._loss = torch.zeros(())
        self.compile_times = self._first_run()

    def _first_run(self) -> interface.CompileTimes:
        """Runs two steps, which leaves nothing to compile, and resets."""
        if self._dumps is not None:
            self._dumps.clear()
        before = counters.snapshot()
        cold_s = self._fenced_s(0)
        compiled = counters.snapshot() - before
        fallen = (
            counters.fallbacks()
        )  # read between the two steps: Dynamo's bridge clears the counters while it compiles
        warm_s = self._fenced_s(1)
        if self._dumps is not None:
            self.evidence = self._dumps.evidence()
            self._dumps.keep(self._dumped_as)
        times = _compile_times(compiled, cold_s, warm_s)
        risen = [name for name, count in counters.fallbacks().items() if count > fallen.get(name, 0)]
        if risen:
            times.note += f"; operations fell back to native torch on the CPU: {', '.join(risen)}"
        self.reset()
        return times

    def _fenced_s(self, index: int) -> float:
        start = time.perf_counter()
        self.run(index)
        self.synchronize()
        return time.perf_counter() - start

    def run(self, index: int) -> None:
        """Traces (or dispatches, or calls) one step and returns while it is running."""
        self._loss = self._launch(self._batches[index % len(self._batches)])

    def synchronize(self) -> None:
        """Waits until the device is idle; `run` has launched all that it traced."""
        compiler.wait()

    def loss(self) -> float:
        """Loss of the last step."""
        return self._loss.item()

    def state(self) -> tuple[spec.Arrays, spec.Arrays]:
        """Parameters and buffers as NumPy in the neutral layout."""
        compiler.fence()
        return arrays.export(self._training.model, self._workload)

    def optimised(self) -> str | None:
        """HLO of the step after XLA's compiler; None where XLA was not told to write it, or wrote several programs."""
        return None if self._dumps is None else self._dumps.text(self._dumped_as)

    def reset(self) -> None:
        """Uploads the initial state into the same tensors: a copy on the device would be a program of its own.

        It would also leave two tensors on one buffer, which the next step donates to its output: reading the other one
        then fails ("async operation is in flight", torch_xla 2.9.0).
        """
        compiler.fence()
        with torch.no_grad():
            for name, tensor in self._training.model.state_dict().items():
                tensor.copy_(self._initial[name])
            optimizers.zero_state(self._training.optimizer)
        compiler.fence()

    def close(self) -> None:
        """Frees the device's tensors; torch_xla keeps compiled programs in its cache."""
        compiler.fence()
        self._training.optimizer.state.clear()
        del self._training, self._launch, self._batches, self._loss


def _compile_times(compiled: counters.Snapshot, cold_s: float, warm_s: float) -> interface.CompileTimes:
    """Splits what a first step costs more than the second; torch_xla times compilations, but not in eager mode."""
    cache = "no disk cache: torch_xla 2.9 cannot read its own files back on the CPU (PersistentCacheDeserializeFailure)"
    extra_s = max(0.0, cold_s - warm_s)
    if not compiled.compile_s:
        note = (
            f"{compiled.programs} programs, all found in memory"
            if not compiled.programs
            else (f"{compiled.programs} programs, timed as first step minus second step")
        )
        return interface.CompileTimes(compile_s=extra_s, note=f"{note}; {cache}")
    note = f"{compiled.programs} programs; trace_s is the rest of the first step's extra time, with lowering; {cache}"
    return interface.CompileTimes(
        trace_s=max(0.0, extra_s - compiled.compile_s), compile_s=compiled.compile_s, note=note
    )
