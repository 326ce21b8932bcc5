"""The PyTorch/XLA adapter: fence, compile counters, state, arms. Small models, so that compiles are short."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla.debug import metrics

from xlacompare import frameworks, workloads
from xlacompare.frameworks.on_torch import arrays
from xlacompare.frameworks.on_torch import models as torch_models
from xlacompare.frameworks.on_torch import optimizers as torch_optimizers
from xlacompare.frameworks.on_torch_xla import compiler, counters, models
from xlacompare.workloads import spec

SHARED_ARMS = ("eager", "compiled", "openxla")  # those that need no process of their own


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("torch_xla")


def mlp(optimizer: str = "sgd") -> spec.Workload:
    workload = workloads.load_workload("mlp", "tiny", batch_size=16, optimizer=optimizer)
    return dataclasses.replace(workload, config=dataclasses.replace(workload.config, hidden=(32,)))


def transformer() -> spec.Workload:
    workload = workloads.load_workload("transformer", "tiny", batch_size=2)
    config = dataclasses.replace(workload.config, length=8, width=16, layers=1, heads=2, mlp_width=32)
    return dataclasses.replace(workload, config=config)


def build(adapter, workload: spec.Workload, arm: str, dtype: str = "float32", batches=None):
    batches = batches or workload.batches(0, 2)
    return adapter.build(workload, workload.initial_parameters(0), workload.initial_buffers(), batches, dtype, arm, {})


def losses(step, count: int) -> list[float]:
    found = []
    for index in range(count):
        step.run(index)
        step.synchronize()
        found.append(step.loss())
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("arm", SHARED_ARMS)
def test_nothing_is_compiled_after_the_build(adapter, arm, optimizer):
    """Neither a first momentum nor a growing step count may make a new graph; reset compiles nothing either."""
    step = build(adapter, mlp(optimizer), arm)
    before = adapter.compile_count()
    first = losses(step, 10)
    assert adapter.compile_count() == before
    step.reset()
    again = losses(step, 10)
    assert adapter.compile_count() == before
    assert again == first
    assert first[-1] < first[0]
    step.close()


@pytest.mark.parametrize("arm", SHARED_ARMS)
def test_recompile_is_noticed(adapter, arm):
    """A batch of another size, planted behind the two that the build runs."""
    workload = mlp()
    batches = workload.batches(0, 3)
    size = {"eager": 5, "compiled": 6, "openxla": 7}[arm]  # of its own, so that no arm finds the other's programs
    batches[2] = {name: array[:size] for name, array in batches[2].items()}
    step = build(adapter, workload, arm, batches=batches)
    before = adapter.compile_count()
    step.run(2)
    step.synchronize()
    assert adapter.compile_count() > before
    step.close()


def test_state_that_appears_late_compiles_again(adapter, monkeypatch):
    """Why optimizers.make uploads zeros: stock SGD without them is the graph of the first step, then another one."""
    workload = mlp()
    step = build(adapter, workload, "compiled")
    training = step._training
    bare = torch.optim.SGD(training.parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
    launch = compiler.lazy(dataclasses.replace(training, optimizer=bare))
    compiled = []
    for _ in range(3):
        before = adapter.compile_count()
        launch(step._batches[0])
        compiler.fence()
        compiled.append(adapter.compile_count() > before)
    assert compiled[0]
    assert not compiled[2]


@pytest.mark.parametrize("arm", SHARED_ARMS)
def test_state_round_trip(adapter, arm):
    workload = mlp()
    initial = workload.initial_parameters(0)
    step = build(adapter, workload, arm)
    before, buffers = step.state()
    assert buffers == {}
    assert {k: v.tolist() for k, v in before.items()} == {k: v.tolist() for k, v in initial.items()}
    step.run(0)
    changed, _ = step.state()
    assert all((changed[name] != initial[name]).any() for name in initial)
    step.reset()
    after, _ = step.state()
    assert {k: v.tolist() for k, v in after.items()} == {k: v.tolist() for k, v in initial.items()}
    step.close()


def test_arms_agree(adapter):
    """Same losses whatever the arm, in float64 to rounding."""
    found = []
    for arm in SHARED_ARMS:
        step = build(adapter, mlp(), arm, dtype="float64")
        assert "fell back" not in step.compile_times.note
        found.append(losses(step, 3))
        step.close()
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-12)


def test_transformer_against_native_torch(adapter):
    """Float64 with composed operations against torch's own kernels on the CPU, after the device was touched."""
    workload = transformer()
    parameters, batch = workload.initial_parameters(0), workload.batches(0, 1)[0]
    got = adapter.evaluate(workload, parameters, {}, batch, "float64")
    native = torch_models.make(workload, "float64")
    arrays.load(native, workload, parameters, {})
    loss, activations, _ = arrays.forward_backward(native, arrays.batch_to_torch(batch, "float64"))
    assert got.loss == pytest.approx(loss.item(), rel=1e-13)
    assert list(got.activations) == list(workload.activation_names())
    assert_near(got.activations, arrays.activations_to_neutral(activations))
    assert_near(got.gradients, arrays.export_gradients(native, workload))
    assert set(got.exceptions) == {"gelu", "layer_norm"}


def assert_near(got: spec.Arrays, expected: spec.Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-12 * np.abs(value).max(), rtol=0, err_msg=name)


def test_openxla_runs_the_transformer(adapter):
    """Its causal mask made torch_xla's Dynamo bridge fail; the whole step, against native torch on the CPU."""
    workload = transformer()
    step = build(adapter, workload, "openxla")
    assert "fell back" not in step.compile_times.note
    native = torch_models.make(workload, "float32")
    arrays.load(native, workload, workload.initial_parameters(0), {})
    optimizer = torch_optimizers.make(workload.optimizer, native.parameters())
    expected = []
    for batch in (*workload.batches(0, 2), workload.batches(0, 1)[0]):
        expected.append(arrays.forward_backward(native, arrays.batch_to_torch(batch, "float32"))[0].item())
        optimizer.step()
    np.testing.assert_allclose(losses(step, 3), expected, rtol=1e-5)
    step.close()


@pytest.mark.parametrize("operation", ["gelu", "layer_norm"])
def test_exceptions_are_still_needed(adapter, operation):
    """When torch_xla mends its lowering this fails, and the exception can go."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 16, generator=generator, dtype=torch.float64) * 0.01
    functions = {
        "gelu": lambda x: torch.nn.functional.gelu(x * 100.0),
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (16,), None, None, 1e-5),
    }
    expected = functions[operation](inputs)
    got = functions[operation](inputs.to(torch_xla.device()))
    compiler.fence()
    assert (got.cpu() - expected).abs().max() > 1e-10 * expected.abs().max()


def test_float32_uses_the_stock_operations():
    kinds = {type(module) for module in models.make(transformer(), "float32").modules()}
    assert torch_models.LayerNorm in kinds
    assert models.ComposedLayerNorm not in kinds
    assert models.exceptions(transformer(), "float32") == {}


def test_a_step_that_falls_back_says_so(adapter, monkeypatch):
    """XLA has no eigenvalues."""
    original = compiler.Training.forward

    def forward(training, batch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.linalg.eigvals(batch["inputs"][:4, :4].detach())
        return original(training, batch)

    monkeypatch.setattr(compiler.Training, "forward", forward)
    step = build(adapter, mlp(), "eager")
    assert "fell back to native torch on the CPU: aten::linalg_eig" in step.compile_times.note
    step.close()


def test_compile_times(adapter):
    """The lazy arm tells trace and compile apart, eager mode cannot; both say why there is no disk cache."""
    workload = workloads.load_workload("mlp", "tiny", batch_size=11)
    times = {arm: build(adapter, workload, arm).compile_times for arm in ("compiled", "eager")}
    assert times["compiled"].compile_s > times["compiled"].trace_s > 0
    assert times["eager"].trace_s is None
    assert times["eager"].compile_s > 0
    assert all(t.disk_cache_hits is None and "PersistentCacheDeserializeFailure" in t.note for t in times.values())


def test_eager_runs_operation_by_operation(adapter):
    """Eager mode compiles many small programs where the lazy arm compiles one, and is off outside its step."""
    workload = workloads.load_workload("mlp", "tiny", batch_size=13)
    programs = {}
    for arm in ("compiled", "eager"):
        before = counters.snapshot()
        build(adapter, workload, arm).close()
        programs[arm] = (counters.snapshot() - before).programs
    assert programs["compiled"] == 1
    assert programs["eager"] > 10
    assert not torch_xla._XLAC._get_use_eager_mode()


def test_lazy_program_returns_state_and_loss_only(adapter):
    """Whatever is alive at the launch becomes an output: no gradient and no activation may be."""
    workload = mlp()
    step = build(adapter, workload, "compiled")
    before = metrics.counter_value("CreateDataHandles")
    step.run(0)
    step.synchronize()
    assert metrics.counter_value("CreateDataHandles") - before == 2 * len(workload.parameters()) + 1  # momentum, loss
    step.close()
