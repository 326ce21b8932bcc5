"""What every adapter promises, tried on all registered frameworks; see xlacompare/frameworks/interface.py."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pytest

from tests.frameworks import cases, native
from xlacompare import frameworks, workloads
from xlacompare.core import config, errors, timing
from xlacompare.frameworks import gate, interface


def every(arms_of):
    """Parametrises over (framework, arm)."""
    found = [(name, arm) for name in frameworks.FRAMEWORKS for arm in arms_of(name)]
    return pytest.mark.parametrize(("framework_name", "arm"), found)


def arms_in_own_process(name):
    return [arm for arm in frameworks.arms(name).ARMS if arm not in cases.shared_arms(name)]


def gated():
    """(framework, arm, variant of the workload, dtype): float32 wherever it is quick, bfloat16 in `compiled`."""
    for name in frameworks.FRAMEWORKS:
        for arm in cases.shared_arms(name):
            for variant in cases.quick(name, arm):
                yield name, arm, variant, "float32"
        for variant in cases.quick(name, "compiled"):
            yield name, "compiled", variant, "bfloat16"


# What is computed.


@pytest.mark.parametrize("variant", [*workloads.WORKLOADS, "transformer without dropout", "bottlenecks"])
def test_float64_is_the_oracle(framework, variant):
    workload, made = cases.inputs(variant)
    given = workload, made.parameters, made.buffers, made.batches
    arm = native.load(framework.name).GATE_ARM
    result = gate.exact_gate(framework, *given, cases.exact(variant), arm, cases.STEPS)
    assert result.passed, result.message()
    assert result.checks["gradient"] == len(workload.parameters())


@pytest.mark.parametrize(("framework_name", "arm", "variant", "dtype"), list(gated()))
def test_arms_stay_within_the_derived_tolerance(framework, arm, variant, dtype):
    shared = (variant, dtype) == ("mlp", "float32")
    step = cases.shared_step(framework, arm) if shared else cases.build(framework, variant, arm, dtype)
    workload, made = cases.inputs(variant)
    reference = cases.reference(variant, dtype)
    result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, dtype, cases.STEPS)
    assert result.passed, result.message()
    if not shared:
        step.close()


@every(arms_in_own_process)
def test_arms_with_an_environment_stay_within_the_derived_tolerance(framework_name, arm):
    result, _ = cases.in_own_process(framework_name, arm)
    assert result.passed, result.message()


# State.


@every(cases.shared_arms)
def test_state_and_reset_go_round(framework, arm):
    """Ten steps compile nothing, reset neither; the same steps give the same losses again."""
    _, made = cases.inputs("mlp")
    step = cases.shared_step(framework, arm)
    assert isinstance(step.compile_times, interface.CompileTimes)
    step.reset()
    assert_same(step.state(), (made.parameters, made.buffers))
    timing.warm_up(step, 0, framework.compile_count)
    step.reset()
    compiles = framework.compile_count()
    first = losses(step, 10)
    assert all(math.isfinite(loss) for loss in first)
    assert len(set(first)) == len(first)
    moved, _ = step.state()
    assert all((moved[name] != made.parameters[name]).any() for name in moved)
    step.reset()
    assert_same(step.state(), (made.parameters, made.buffers))
    assert losses(step, 10) == first
    assert framework.compile_count() == compiles


def test_a_built_step_is_at_the_start(framework):
    _, made = cases.inputs("convnet of 2 stages")
    step = cases.build(framework, "convnet of 2 stages", native.load(framework.name).GATE_ARM)
    assert_same(step.state(), (made.parameters, made.buffers))
    step.close()


def losses(step, count):
    """Loss of each step; the fence is called and must not change a thing."""
    found = []
    for index in range(count):
        step.run(index)
        step.synchronize()
        found.append(step.loss())
    return found


def assert_same(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        assert sorted(mine) == sorted(theirs)
        for name in theirs:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_batches_go_round(framework):
    """Step i uses batch i modulo their number: with a learning rate of 0 only the batch decides the loss."""
    workload, made = cases.inputs("mlp of 8")
    still = dataclasses.replace(workload, optimizer=dataclasses.replace(workload.optimizer, learning_rate=0.0))
    given = still, made.parameters, made.buffers, made.batches[:2]
    step = framework.build(*given, "float32", native.load(framework.name).GATE_ARM, {})
    found = losses(step, 4)
    assert found[0] != found[1]
    assert found[2:] == found[:2]
    step.close()


def test_compile_count_counts_up(framework):
    before = framework.compile_count()
    native.load(framework.name).compile_something(native.load(framework.name).GATE_ARM)
    assert framework.compile_count() > before


# Arms, settings and environment.


def test_every_arm_is_there_or_has_a_reason(framework_name):
    arms = frameworks.arms(framework_name)
    assert not set(arms.ARMS) & set(arms.LACKS)
    assert set(arms.ARMS) | set(arms.LACKS) == set(config.COMPILERS)
    assert {"eager", "compiled"} <= set(arms.ARMS)
    assert all(len(reason.split()) > 3 for reason in arms.LACKS.values())
    for name, arm in arms.ARMS.items():
        assert (arm.name, bool(arm.definition), bool(arm.scope)) == (name, True, True)


@every(lambda name: [*frameworks.arms(name).LACKS, "warp"])
def test_lacking_arms_are_refused(framework, arm):
    with pytest.raises(errors.UnsupportedError, match=arm):
        cases.build(framework, "mlp of 8", arm)


@every(arms_in_own_process)
def test_arms_refuse_a_process_without_their_environment(framework, arm):
    with pytest.raises(
        errors.UnsupportedError, match=next(iter(frameworks.arms(framework.name).ARMS[arm].environment))
    ):
        cases.build(framework, "mlp of 8", arm)


def test_settings_are_complete(framework_name):
    settings = frameworks.arms(framework_name).SETTINGS
    assert {"threads", "matmul_precision"} <= set(settings)
    matched = frameworks.arms(framework_name).environment("cpu", 1)
    for name, setting in settings.items():
        assert setting.name == name and setting.note
        assert setting.where in ("build", "environment")
        assert bool(setting.environment) == (setting.where == "environment")
        differs = any(matched.get(key) != value for key, value in setting.environment.items())
        assert differs == (setting.where == "environment"), f"{name}: shipped is not different from matched"


def test_build_settings_are_accepted(framework):
    chosen = {s.name: s.shipped for s in frameworks.arms(framework.name).SETTINGS.values() if s.where == "build"}
    for changed in [{name: value} for name, value in chosen.items()]:
        step = cases.build(framework, "mlp of 8", native.load(framework.name).GATE_ARM, settings=changed)
        assert math.isfinite(losses(step, 1)[0])
        step.close()


def test_other_settings_are_refused(framework):
    """A setting of the environment comes too late in a build: to accept it would be to ignore it."""
    workload, made = cases.inputs("mlp of 8")
    given = workload, made.parameters, made.buffers, made.batches, "float32", native.load(framework.name).GATE_ARM
    for name in ("autocast", "threads"):
        with pytest.raises(errors.XlacompareError, match=name):
            framework.build(*given, {name: True})


@pytest.mark.parametrize("threads", [1, 3])
def test_environment_sets_the_threads(framework_name, threads):
    variables = frameworks.arms(framework_name).environment("cpu", threads)
    assert variables["OMP_NUM_THREADS"] == str(threads)
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"
    assert all(isinstance(value, str | None) for value in variables.values())


def test_cache_variables_are_names(framework_name):
    variables = frameworks.arms(framework_name).CACHE_VARIABLES
    assert isinstance(variables, tuple)
    assert all(name.isupper() for name in variables)


def test_describe_has_the_environment_keys(framework):
    described = framework.describe()
    assert {"platform", "device_kind", "device_count", "threads", "matmul_precision"} <= set(described)
    requires = frameworks.entry(framework.name).requires
    assert all(described[package] for package in requires), "a version of each package"
    assert described["platform"] == "cpu"
    assert described["threads"] == int(os.environ.get("OMP_NUM_THREADS", described["threads"]))
    assert all(isinstance(value, str | int | float | bool | None) for value in described.values())


def test_names(framework):
    assert framework.name in frameworks.FRAMEWORKS
    assert framework.convention in ("flax", "torch")
    memory = framework.memory_bytes()
    assert memory is None or memory > 0
