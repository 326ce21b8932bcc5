"""The arms of native torch are what their names say; its optimizers, statistics, settings and disk cache."""

from __future__ import annotations

import collections
import functools
import json
import re
import subprocess

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests import conftest
from tests.frameworks import cases
from xlacompare import workloads
from xlacompare.core import errors
from xlacompare.frameworks import gate, load_framework
from xlacompare.frameworks.on_torch import arms, arrays, compiler, counters, models, operations, optimizers
from xlacompare.workloads import oracle, spec

# Views and wrappers that run no kernel of their own: autograd and the graphs of AOTAutograd use different ones.
NO_KERNEL = frozenset(
    re.findall(
        r"\w+",
        "_reshape_alias _unsafe_view alias as_strided batch_norm conv2d convolution cross_entropy_loss detach detach_ "
        "embedding_backward empty empty_like empty_strided expand flatten item layer_norm linear log_softmax matmul "
        "max_pool2d narrow nll_loss nll_loss_nd permute relu reshape resize_ resolve_conj resolve_neg result_type "
        "select slice softmax square squeeze t to transpose unbind unsqueeze view",
    )
)


# The engine of autograd sums gradients in place where it can, a graph of AOTAutograd never does.
SAME_KERNEL = {"_native_batch_norm_legit": "native_batch_norm", "add_": "add"}


@functools.cache
def adapter():
    return load_framework("torch")


def kernels(step):
    """Kernels of one step by name: aten operations, without those that only pass the call on or make a view."""
    for index in range(3):
        step.run(index)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step.run(3)
    found = collections.Counter()
    for event in profiled.key_averages():
        name = event.key.removeprefix("aten::")
        if name != event.key and name not in NO_KERNEL:
            found[SAME_KERNEL.get(name, name)] += event.count
    return found


# Arms.


@pytest.mark.parametrize("variant", ["mlp of 8", "convnet of 2 stages", "transformer of 2", "mlp with adamw"])
def test_captured_runs_the_kernels_of_eager(variant):
    eager, captured = (kernels(cases.build(adapter(), variant, arm)) for arm in ("eager", "captured"))
    assert sum(eager.values()) > 20
    assert captured == eager


def test_compiled_runs_other_kernels():
    """Its own; what it calls of torch's (matrix products) goes past the dispatcher."""
    eager, compiled = (kernels(cases.shared_step(adapter(), arm)) for arm in ("eager", "compiled"))
    assert {"addmm", "mm", "clamp_min", "threshold_backward", "mul_", "add"} <= set(eager)
    assert not set(eager) & set(compiled) - {"copy_"}


@pytest.mark.parametrize("arm", ["captured", "compiled", "inductor_model"])
def test_one_graph_without_a_break(arm):
    assert "1 graph(s), 0 graph break(s)" in cases.shared_step(adapter(), arm).compile_times.note


@pytest.mark.parametrize("arm", list(arms.ARMS))
def test_phases_are_seconds(arm):
    times = cases.shared_step(adapter(), arm).compile_times
    phases = times.trace_s, times.lower_s, times.compile_s
    assert all(seconds >= 0 for seconds in phases), phases
    assert (sum(phases) > 0) == (arm != "eager")
    assert (times.disk_cache_hits is None) == (arm in ("eager", "captured"))


def test_builds_do_not_share_compiled_code():
    """More builds than Dynamo's limit of versions per function (8), none of which tries the guards of another."""
    limit = torch._dynamo.config.recompile_limit
    for _ in range(limit + 2):
        before = adapter().compile_count()
        step = cases.build(adapter(), "mlp of 8", "captured")
        assert adapter().compile_count() - before == 2, "the forward and the backward pass"
        step.close()


@pytest.mark.parametrize("variant", ["mlp with adamw", "convnet of 2 stages", "transformer of 2"])
def test_the_whole_step_as_one_graph_is_the_step(variant, monkeypatch):
    """What `compiled` traces, run by aot_eager: Inductor's C++ takes 20 s for each of these."""
    compile_ = torch.compile

    def without_inductor(function, backend, options, **rest):
        return compile_(function, backend="aot_eager", **rest)

    monkeypatch.setattr(compiler.torch, "compile", without_inductor)
    workload, made = cases.inputs(variant)
    step = cases.build(adapter(), variant, "compiled", "float64")
    before = adapter().compile_count()
    reference = oracle.Reference("float64", cases.exact(variant), {})
    result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, "float64", cases.STEPS)
    assert result.passed, result.message()
    assert adapter().compile_count() == before
    assert "1 graph(s), 0 graph break(s)" in step.compile_times.note
    step.close()


# Optimizers.

SGD, ADAMW = workloads.OPTIMIZERS["sgd"], workloads.OPTIMIZERS["adamw"]


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_the_traced_update_is_the_stock_optimizer(optimizer):
    gradients = [[torch.randn(size, dtype=torch.float64) for size in (3, 5)] for _ in range(12)]
    stock = [torch.nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in (3, 5)]
    traced = [p.detach().clone() for p in stock]
    updater = optimizers.make(optimizer, stock)
    state = optimizers.initial_state(optimizer, traced)

    def update(parameters, given, state):
        optimizers.update(optimizer, parameters, given, state)

    counters.watch_compilations()
    compiled = torch.compile(update, backend="aot_eager", fullgraph=True, dynamic=False)
    for i, given in enumerate(gradients):
        for parameter, gradient in zip(stock, given, strict=True):
            parameter.grad = gradient
        updater.step()
        compiled(traced, given, state)
        if i == 0:
            compiles = counters.compile_count()
    assert counters.compile_count() == compiles, "the step count must be data"
    for mine, theirs in zip(traced, stock, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-13, atol=0)


def test_no_other_optimizer():
    with pytest.raises(errors.UnsupportedError, match="lion"):
        optimizers.make(spec.OptimizerSpec("lion", 0.1), [torch.nn.Parameter(torch.zeros(1))])


# Batch norm.


@pytest.mark.parametrize("operation", [operations.stock_batch_norm, operations.composed_batch_norm])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_batch_norm_gives_the_biased_variance(operation, dtype, tolerance):
    """At a mean of 100, where mean(x^2) - mean(x)^2 is off by 2e-2 in float32; a constant channel has no variance."""
    generator = np.random.default_rng(0)
    x = (100 + generator.normal(size=(4, 3, 2, 2))).astype(dtype)
    x[:, 2] = 7
    weight, bias = generator.normal(size=(2, 3)).astype(dtype)
    outputs, mean, var = operation(*map(torch.from_numpy, (x, weight, bias)), 1e-5)
    wide = x.astype(np.float64)
    expected = wide.var((0, 2, 3))
    np.testing.assert_allclose(mean.numpy(), wide.mean((0, 2, 3)), rtol=tolerance)
    np.testing.assert_allclose(var.numpy(), expected, rtol=20 * tolerance, atol=1e-10)
    assert var.min() >= 0
    column = (slice(None), None, None)
    normal = (wide - wide.mean((0, 2, 3))[column]) / np.sqrt(expected + 1e-5)[column]
    np.testing.assert_allclose(outputs.numpy(), normal * weight[column] + bias[column], rtol=0, atol=100 * tolerance)


def test_running_statistics_take_the_biased_variance():
    """0.9 * old + 0.1 * biased; torch's own layer would take 4 / 3 of it for 4 values."""
    norm = models.BatchNorm(1, 1e-5, 0.9, operations.stock_batch_norm).double()
    model = torch.nn.Module()
    model.add_module("bn", norm)
    values = torch.tensor([0.0, 2.0, 4.0, 10.0], dtype=torch.float64).reshape(4, 1, 1, 1)
    with torch.no_grad():
        for tensor, value in ((norm.weight, 1.0), (norm.bias, 0.0), (norm.running_mean, 3.0), (norm.running_var, 2.0)):
            tensor.fill_(value)
    statistics = {}
    norm(values, "bn", statistics)
    models.update_statistics(model, statistics)
    assert norm.running_mean.item() == pytest.approx(0.9 * 3 + 0.1 * 4, rel=1e-12)
    assert norm.running_var.item() == pytest.approx(0.9 * 2 + 0.1 * 14, rel=1e-12)


# Arrays.


def test_names():
    assert arrays.torch_name("stem.bn.mean") == "stem.bn.running_mean"
    assert arrays.torch_name("block0.attention.qkv.kernel") == "block0.attention.qkv.weight"


def test_arrays_that_do_not_fit_are_refused():
    workload, made = cases.inputs("mlp of 8")
    model = models.make(workload, "float32")
    wrong = {**made.parameters, "head.bias": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match=r"head\.bias"):
        arrays.load(model, workload, wrong, made.buffers)
    model.add_module("extra", models.Dense(1, 1))
    with pytest.raises(ValueError, match=r"extra\.weight"):
        arrays.load(model, workload, made.parameters, made.buffers)


# Settings: torch keeps them per process, a step has its own.


def test_settings_hold_while_the_step_runs():
    matched = cases.build(adapter(), "mlp of 8", "eager")
    other = cases.build(
        adapter(), "mlp of 8", "eager", settings={"matmul_precision": "medium", "convolution_tf32": True}
    )
    for step, expected in ((matched, ("highest", False)), (other, ("medium", True)), (matched, ("highest", False))):
        step.run(0)
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == expected


def test_only_the_shipped_compiler_has_pythons_wrapper():
    assert compiler.inductor_options(cpp_wrapper=False) == {}
    assert compiler.inductor_options(cpp_wrapper=True)["cpp_wrapper"]
    known = torch._inductor.config.get_config_copy()
    assert set(compiler.inductor_options(cpp_wrapper=True)) <= set(known)


@pytest.mark.parametrize(("variable", "match"), [("tpu", "tpu"), ("gpu", "CUDA")])
def test_platforms_that_are_not_here_are_refused(variable, match, monkeypatch):
    monkeypatch.setenv("XLACOMPARE_PLATFORM", variable)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(errors.UnsupportedError, match=match):
        type(adapter())()
    with pytest.raises(errors.UnsupportedError, match="tpu"):
        arms.environment("tpu", 1)


# Caches and the machine's instructions.

BUILD = """
import dataclasses, json
from tests.frameworks import cases
from xlacompare import frameworks
step = cases.build(frameworks.load_framework("torch"), "mlp of 8", "compiled")
print(json.dumps(dataclasses.asdict(step.compile_times)))
"""


def test_a_second_process_hits_the_disk_cache(tmp_path):
    """Of the folder that the launcher names; all that the compiler leaves lies in it."""
    environment = {**arms.environment("cpu", 1), arms.CACHE_VARIABLES[0]: str(tmp_path / "cache")}
    environment["TMPDIR"] = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir()
    cold, warm = (run_build(environment) for _ in range(2))
    assert (cold["disk_cache_hits"], cold["disk_cache_misses"]) == (0, 1)
    assert (warm["disk_cache_hits"], warm["disk_cache_misses"]) == (1, 0)
    assert warm["compile_s"] < cold["compile_s"] / 5
    assert not list((tmp_path / "temporary").rglob("*.gch")) + list((tmp_path / "temporary").rglob("*.pch"))


def run_build(environment):
    child = conftest.run_child(BUILD, env=environment, timeout=240)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_instructions_are_tried_in_this_process(tmp_path):
    """The command is the one that Inductor of this version would start a child with."""
    counters.load_inductor()
    from torch._inductor import cpu_vec_isa

    command = cpu_vec_isa.VecISA._avx_py_load.replace("__lib_path__", str(tmp_path / "absent.so"))
    with pytest.raises(OSError, match=r"absent\.so"):
        counters._load_library(["python", "-c", command])
    with pytest.raises(subprocess.CalledProcessError):
        counters._load_library(["python", "-c", "import torch"])
    assert cpu_vec_isa.subprocess is subprocess, "put back"
