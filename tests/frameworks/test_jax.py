"""The JAX adapter: what it computes, its state, its settings. Its arms and counters are in test_jax_arms.py."""

from __future__ import annotations

import dataclasses
import types

import jax
import numpy as np
import optax
import pytest

from xlacompare import frameworks, workloads
from xlacompare.core import errors
from xlacompare.frameworks import gate
from xlacompare.frameworks.on_jax import arms, compiler, layers, optimizers
from xlacompare.workloads import optimizers as reference_optimizers
from xlacompare.workloads import oracle


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("jax")


def inputs(name, count=2, **changes):
    workload = workloads.load_workload(name, "tiny", **changes)
    return workload, workload.initial_parameters(0), workload.initial_buffers(), workload.batches(0, count)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_float64_is_the_oracle(adapter, name):
    given = inputs(name)
    exact = oracle.evaluate(*given, 3, "float64")
    result = gate.exact_gate(adapter, *given, exact, arm="compiled", steps=3)
    assert result.passed, result.first
    assert not jax.config.values["jax_enable_x64"]


def test_activations_come_in_program_order(adapter):
    workload, parameters, buffers, batches = inputs("convnet")
    evaluation = adapter.evaluate(workload, parameters, buffers, batches[0], "float32")
    assert list(evaluation.activations) == list(workload.activation_names())
    assert evaluation.exceptions  # batch norm is our own


@pytest.mark.parametrize(  # eager on the mlp only: the transformer has 200 one-op programs to compile
    ("name", "dtype", "arm"),
    [("mlp", "float32", "eager"), ("transformer", "float32", "compiled"), ("convnet", "bfloat16", "compiled")],
)
def test_arms_stay_within_the_derived_tolerance(adapter, name, dtype, arm):
    given = inputs(name)
    reference = oracle.references(*given, dtype, 3)
    step = adapter.build(*given, dtype, arm, {})
    result = gate.arm_gate(step, *given[:3], reference, dtype, 3)
    assert result.passed, result.first


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_optimizers_mean_their_spec_in_float32(name):
    spec = dataclasses.replace(workloads.OPTIMIZERS[name], weight_decay=0.3)
    assert update_error(spec, optimizers.build(spec)) < 2e-6


def test_the_stock_bias_correction_would_be_seen():
    spec = workloads.OPTIMIZERS["adamw"]
    stock = optax.adamw(spec.learning_rate, spec.b1, spec.b2, spec.eps, weight_decay=spec.weight_decay)
    assert update_error(spec, stock) > 2e-6


def update_error(spec, optimizer, steps=3):
    """Largest relative error of the sum of float32 updates against the float64 reference."""
    random = np.random.default_rng(0)
    initial = {"w": random.normal(size=64)}
    exact, state = dict(initial), reference_optimizers.initial_state(spec, initial)
    got = {"w": jax.numpy.zeros(64)}  # from zero, so that the parameters' rounding does not hide the updates'
    exact["w"] = np.zeros(64)
    optax_state = optimizer.init(got)
    for step in range(steps):
        gradient = {"w": random.normal(size=64)}
        exact, state = reference_optimizers.update(spec, step, exact, gradient, state)
        updates, optax_state = optimizer.update({"w": jax.numpy.asarray(gradient["w"], "float32")}, optax_state, got)
        got = optax.apply_updates(got, updates)
    return float(np.abs(np.asarray(got["w"]) - exact["w"]).max() / np.abs(exact["w"]).max())


@pytest.mark.parametrize(("name", "donation"), [("mlp", False), ("convnet", True)])
def test_state_and_reset_go_round(adapter, name, donation):
    given = inputs(name)
    step = adapter.build(*given, "float32", "compiled", {"donation": donation})
    assert_same(step.state(), given[1:3])
    first = run(step, 3)
    moved = step.state()
    assert all(np.abs(moved[0][key] - given[1][key]).max() > 0 for key in moved[0])
    compiles = adapter.compile_count()
    step.reset()
    assert_same(step.state(), given[1:3])
    assert run(step, 3) == first
    assert_same(step.state(), moved)
    assert adapter.compile_count() == compiles


def run(step, count):
    losses = []
    for i in range(count):
        step.run(i)
        losses.append(step.loss())
    return losses


def assert_same(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        assert list(mine) == list(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_loss_before_a_step_is_an_error(adapter):
    step = adapter.build(*inputs("mlp"), "float32", "compiled", {})
    with pytest.raises(ValueError, match="no step"):
        step.loss()


def test_float64_lives_beside_float32(adapter):
    given = inputs("mlp")
    wide, narrow = (adapter.build(*given, dtype, "compiled", {}) for dtype in ("float64", "float32"))
    for i in range(2):
        wide.run(i)
        narrow.run(i)
    assert {array.dtype.name for array in wide.state()[0].values()} == {"float64"}
    assert {array.dtype.name for array in narrow.state()[0].values()} == {"float32"}
    assert 0 < abs(wide.loss() - narrow.loss()) < 1e-5
    wide.reset()
    assert {array.dtype.name for array in wide.state()[0].values()} == {"float64"}


@pytest.mark.parametrize("donation", [True, False])
def test_donation_is_what_the_setting_says(adapter, donation):
    step = adapter.build(*inputs("mlp"), "float32", "compiled", {"donation": donation})
    before = jax.tree.leaves(step._state)
    step.run(0)
    step.synchronize()
    assert {array.is_deleted() for array in before} == {donation}
    assert ("input_output_alias" in step.program.executable.as_text()) == donation


@pytest.mark.parametrize(("precision", "attribute"), [("highest", "HIGHEST"), ("default", "DEFAULT")])
def test_matmul_precision_reaches_the_program(precision, attribute):
    workload, parameters, _, batches = inputs("mlp")
    with compiler.Scope(x64=False, matmul_precision=precision)():
        network = compiler.Network(workload, layers.PRECISIONS["float32"])
        leaves = tuple(parameters[name] for name in network.parameter_names)
        text = jax.jit(network.loss).lower(leaves, (), batches[0]).as_text()
    assert text.count(f"precision = [{attribute}, {attribute}]") == text.count("stablehlo.dot_general") > 0


def test_host_arrays_are_copied(adapter):
    """A device that borrows NumPy's memory would see this change, and donation would write into it."""
    workload, parameters, buffers, batches = inputs("mlp")
    for batch in batches:
        batch["inputs"] = aligned(batch["inputs"])
    step = adapter.build(workload, parameters, buffers, batches, "float32", "compiled", {})
    for batch in batches:
        batch["inputs"][:] = np.nan
    step.run(0)
    assert np.isfinite(step.loss())


def aligned(array):
    """A copy at a multiple of 64 bytes, where the CPU client would borrow it."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


@pytest.mark.parametrize(
    ("arm", "settings", "message"),
    [("captured", {}, "captured"), ("lazy", {}, "lazy"), ("compiled", {"autocast": True}, "autocast")],
)
def test_what_jax_lacks_is_refused(adapter, arm, settings, message):
    with pytest.raises(errors.UnsupportedError, match=message):
        adapter.build(*inputs("mlp"), "float32", arm, settings)


def test_unknown_models_and_optimizers_are_refused(adapter):
    workload, *rest = inputs("mlp")
    with pytest.raises(errors.UnsupportedError, match="rnn"):
        adapter.build(dataclasses.replace(workload, name="rnn"), *rest, "float32", "compiled", {})
    odd = dataclasses.replace(workload, optimizer=dataclasses.replace(workload.optimizer, name="lion"))
    with pytest.raises(errors.UnsupportedError, match="lion"):
        adapter.build(odd, *rest, "float32", "compiled", {})


def test_a_tensor_that_the_workload_does_not_know_is_named(adapter):
    workload, *rest = inputs("mlp")
    short = types.SimpleNamespace(
        **{field.name: getattr(workload, field.name) for field in dataclasses.fields(workload)} | {"name": "mlp"},
        parameters=lambda: workload.parameters()[:-1],
        buffers=workload.buffers,
    )
    with pytest.raises(errors.MismatchError, match=r"head\.bias"):
        adapter.build(short, *rest, "float32", "compiled", {})


def test_close_drops_the_arrays(adapter):
    step = adapter.build(*inputs("mlp"), "float32", "compiled", {})
    leaf = step._state[0][0]
    step.close()
    assert not any(leaf is array for array in jax.tree.leaves(vars(step)))


def test_describe_names_what_is_in_force(adapter):
    described = adapter.describe()
    assert described["jax"] == jax.__version__
    assert (described["platform"], described["device_count"], described["x64"]) == ("cpu", 1, False)
    assert described["threads"] >= 1


@pytest.mark.parametrize("threads", [1, 2])
def test_environment_sets_the_thread_pool(run_python, threads):
    code = (
        "import os, jax; jax.numpy.ones(2).block_until_ready();"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')];"
        "print(sum('XLAEigen' in name for name in names))"
    )
    done = run_python(code, env=arms.environment("cpu", threads))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == threads
