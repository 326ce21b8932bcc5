"""Every planted fault makes the gate fail, at the name and with the cause that the table expects."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

from tests import faults, tape_framework
from xlacompare import workloads
from xlacompare.core import causes, parity
from xlacompare.frameworks import gate
from xlacompare.workloads import archive, oracle

STEPS = 3


@functools.cache
def inputs(name, optimizer=None):
    workload = workloads.load_workload(name, "tiny", faults.BATCH_SIZES[name], optimizer)
    made = archive.build(workload, 0, STEPS)
    exact = oracle.evaluate(workload, made.parameters, made.buffers, made.batches, STEPS, "float64")
    return workload, made, exact


def run_gate(name, optimizer=None, **planted):
    workload, made, exact = inputs(name, optimizer)
    framework = tape_framework.TapeFramework(**planted)
    return gate.exact_gate(framework, workload, made.parameters, made.buffers, made.batches, exact, steps=STEPS)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("mlp", None), ("mlp", "adamw"), ("convnet", None), ("convnet", "adamw"), ("transformer", None)],
)
def test_without_a_fault_the_gate_passes(name, optimizer):
    result = run_gate(name, optimizer)
    workload, _, exact = inputs(name, optimizer)
    assert result.passed, result.message()
    assert result.checks == {
        "activation": len(workload.activation_names()),
        "loss": 1,
        "gradient": len(workload.parameters()),
        "count": 1,
        "trace": STEPS,
        "update": len(workload.parameters()),
        **({"buffer": len(workload.buffers())} if workload.buffers() else {}),
    }
    assert result.exceptions == {"erf": "composed"}
    assert result.facts["flops_per_step"] == workload.flops_per_step()
    assert result.facts["parameters"] == sum(gradient.size for gradient in exact.gradients.values())
    assert result.message() == f"gate passed: {sum(result.checks.values())} checks"


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_fault_fails_at_the_expected_name(fault):
    name, optimizer, planted, where, cause = faults.FAULTS[fault]
    result = run_gate(name, optimizer, **planted)
    assert not result.passed
    assert f"{result.first.kind} {result.first.name}" == where
    assert any(cause in text for text in result.causes[:2]), result.causes
    assert result.message().startswith(f"gate failed at {where}: ")
    assert f"likely: {result.causes[0]}" in result.message()
    assert parity.GateResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_coarse_faults_are_seen_by_the_arm_gate(name, dtype):
    """In the cell's own dtype, on the step that is timed: the optimizer, the statistics and the data."""
    workload, made, exact = inputs(name)
    arguments = workload, made.parameters, made.buffers
    reference = oracle.with_dtype(*arguments, made.batches, dtype, exact)

    def result_of(**planted):
        step = tape_framework.TapeFramework(**planted).build(*arguments, made.batches, dtype, "eager", {})
        step.run(2)  # the gate resets
        return gate.arm_gate(step, *arguments, reference, dtype, STEPS)

    assert result_of().passed
    wrong = faults.coupled_decay if workload.optimizer.name == "adamw" else faults.ema_momentum
    failed = result_of(update=wrong)
    assert (failed.first.kind, failed.passed) == ("update", False)
    labels = result_of(batch=lambda batch: {**batch, "labels": np.roll(batch["labels"], 1)})
    assert (labels.first.kind, labels.first.name) == ("trace", "step0")
    if workload.buffers():
        assert result_of(**faults.config(bn_momentum=0.1)).first.kind == "buffer"


def test_float32_sees_epsilon_and_gelu():
    """bfloat16 cannot; that is why the exact gate exists."""
    workload, made, exact = inputs("transformer")
    arguments = workload, made.parameters, made.buffers, made.batches
    reference = oracle.with_dtype(*arguments, "float32", exact)
    for fault in ("layer-norm epsilon", "gelu tanh"):
        _, _, planted, where, _ = faults.FAULTS[fault]
        result = gate.dtype_gate(tape_framework.TapeFramework(**planted), *arguments, reference)
        assert f"{result.first.kind} {result.first.name}" == where


def test_the_step_is_closed_even_when_it_fails():
    built = []

    class Breaking(tape_framework.TapeFramework):
        def build(self, *arguments):
            built.append(super().build(*arguments))
            built[0].state = lambda: 1 / 0
            return built[0]

    workload, made, exact = inputs("mlp")
    with pytest.raises(ZeroDivisionError):
        gate.exact_gate(Breaking(), workload, made.parameters, made.buffers, made.batches, exact)
    assert built[0].closed


def test_arm_gate_wants_the_dtype_of_its_reference():
    workload, made, exact = inputs("mlp")
    reference = oracle.Reference("float64", exact, {})
    with pytest.raises(ValueError, match="float64"):
        gate.arm_gate(None, workload, made.parameters, made.buffers, reference, "float32", 1)


# Comparison.


def one(got, expected, limit=1e-3):
    return parity.compare("activation", {"x": got}, {"x": expected}, ["x"], limit)[0]


def test_the_error_is_relative_to_the_largest_element():
    found = one(np.array([[1.0, 0.002]]), np.array([[1.0, 0.001]]))
    assert (found.error, found.index, found.passed) == (pytest.approx(1e-3), (0, 1), True)
    assert not one(np.array([1.0, 0.003]), np.array([1.0, 0.001])).passed


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (np.array([np.nan, 1.0]), np.array([1.0, 1.0])),
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.0])),
        (np.ones(2), np.array([np.nan, 1.0])),
        (np.ones(3), np.ones(2)),
        (np.full(2, 1e-300), np.zeros(2)),
    ],
)
def test_what_never_passes(got, expected):
    assert not one(got, expected, limit=1e9).passed


def test_two_zeros_are_equal():
    assert one(np.zeros(2), np.zeros(2), 0.0).passed
    assert one(np.zeros(0), np.zeros(0), 0.0).passed


def test_another_shape_is_shown_on_both_sides():
    result = parity.verdict([one(np.ones((2, 3)), np.ones((3, 2)))], {}, lambda first: [])
    assert result.message() == "gate failed at activation x: got shape (2, 3), expected shape (3, 2)"


def test_missing_and_extra_names_fail_in_program_order():
    got, expected = {"c": np.ones(1), "a": np.ones(1), "extra": np.ones(1)}, dict.fromkeys("abc", np.ones(1))
    found = parity.compare("update", got, expected, list("abc"), 0.0)
    assert [(item.name, item.passed) for item in found] == [("a", True), ("b", False), ("c", True), ("extra", False)]


def test_the_first_in_program_order_is_the_answer_not_the_largest():
    found = [one(np.array([1.01]), np.ones(1)), one(np.array([9.0]), np.ones(1))]
    result = parity.verdict(found, {}, lambda first: [])
    assert result.first == found[0]
    assert result.failures == 2
    assert result.worst == {"activation": 8.0}
    assert "; 1 more differ" in result.message()


def test_nothing_checked_is_not_a_pass():
    result = parity.verdict([], {}, lambda first: [])
    assert not result.passed
    assert "nothing was checked" in result.message()


def test_a_nan_error_survives_json():
    result = parity.verdict([one(np.array([np.nan]), np.ones(1))], {}, lambda first: ["why"])
    text = json.dumps(result.to_dict(), allow_nan=False)
    back = parity.GateResult.from_dict({**json.loads(text), "added_later": 1})
    assert back.first.error == math.inf
    assert back == result


def test_causes_of_a_transposed_array():
    value = np.random.default_rng(0).standard_normal((4, 4))
    assert causes.likely_causes("update", "w", value.T, value)[0] == "kernel transposed"
    assert "axes are permuted" in causes.likely_causes("update", "w", value[:, :2].T, value[:, :2])[0]
    assert "padding" in causes.likely_causes("activation", "x", np.ones((1, 4, 4, 2)), np.ones((1, 3, 3, 2)))[0]
