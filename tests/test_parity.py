"""Every planted fault makes the gate fail, at the name and with the cause that the table expects."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pytest

from tests import tape_framework
from xlacompare import workloads
from xlacompare.core import causes, parity
from xlacompare.frameworks import gate
from xlacompare.workloads import archive, optimizers, oracle, tape

STEPS = 3
BATCH_SIZES = {"mlp": 32, "convnet": 16, "transformer": 2}


@functools.cache
def inputs(name, optimizer=None):
    workload = workloads.load_workload(name, "tiny", BATCH_SIZES[name], optimizer)
    made = archive.build(workload, 0, STEPS)
    exact = oracle.evaluate(workload, made.parameters, made.buffers, made.batches, STEPS, "float64")
    return workload, made, exact


def run_gate(name, optimizer=None, **faults):
    workload, made, exact = inputs(name, optimizer)
    framework = tape_framework.TapeFramework(**faults)
    return gate.exact_gate(framework, workload, made.parameters, made.buffers, made.batches, exact, steps=STEPS)


# Faults.


def config(**changes):
    return {"workload": lambda w: dataclasses.replace(w, config=dataclasses.replace(w.config, **changes))}


def optimizer(**changes):
    return {"workload": lambda w: dataclasses.replace(w, optimizer=dataclasses.replace(w.optimizer, **changes))}


def transposed(name):
    return {"parameters": lambda p: {**p, name: p[name].T}}


class Tanh(tape.Tape):
    def gelu(self, x):
        """Hendrycks and Gimpel's approximation; only the value matters here, so the tape keeps erf's derivative."""
        right = tape.Tape.gelu(self, x)
        v = x.value
        wrong = 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))
        return self.add(right, self.constant(wrong - right.value))


class RoughErf(tape.Tape):
    def erf(self, x):
        out = tape.Tape.erf(self, x)
        return self.add(out, self.constant(1.2e-9 * np.cos(40 * x.value)))


class Same(tape.Tape):
    """At stride 2, "SAME" on an even size pads one row and column at the end only."""

    def conv2d(self, x, kernel, stride, padding):
        if stride == 1 or padding == 0:
            return tape.Tape.conv2d(self, x, kernel, stride, padding)
        padded = np.pad(x.value, ((0, 0), (0, 1), (0, 1), (0, 0)))
        return tape.Tape.conv2d(self, self._record((x,), padded, lambda g: (g[:, :-1, :-1],)), kernel, stride, 0)


class DoubleGradient(tape.Tape):
    """Does not stop the gradient of a bias at 1."""

    def dense(self, x, kernel, bias):
        out = tape.Tape.dense(self, x, kernel, bias)
        return self.add(out, self.add(self.narrow(bias), self.constant(-bias.value)))


class Float32(tape.Tape):
    def relu(self, x):
        out = tape.Tape.relu(self, x)
        return self.add(out, self.constant(out.value.astype(np.float32) - out.value))


class NotCausal(tape.Tape):
    def causal(self, x):
        return x


class SumLoss(tape.Tape):
    def cross_entropy(self, logits, labels):
        return self.scale(tape.Tape.cross_entropy(self, logits, labels), float(labels.size))


class HiddenName(dict):
    """Does not show a name; whoever asks for it (the optimizer) still gets it."""

    def __init__(self, values, hidden):
        super().__init__({name: value for name, value in values.items() if name != hidden})
        self.values_of = values

    def __missing__(self, name):
        return self.values_of[name]


def shifted_mask(name):
    return {"batch": lambda batch: {**batch, name: np.roll(batch[name], 1, -1)}}


def ema_momentum(chosen, step, p, g, state):
    v = {
        n: chosen.momentum * state["velocity"][n] + (1 - chosen.momentum) * (g[n] + chosen.weight_decay * p[n])
        for n in p
    }
    return {n: p[n] - chosen.learning_rate * v[n] for n in p}, {"velocity": v}


def nesterov(chosen, step, p, g, state):
    decayed = {n: g[n] + chosen.weight_decay * p[n] for n in p}
    v = {n: chosen.momentum * state["velocity"][n] + decayed[n] for n in p}
    return {n: p[n] - chosen.learning_rate * (decayed[n] + chosen.momentum * v[n]) for n in p}, {"velocity": v}


def coupled_decay(chosen, step, p, g, state):
    plain = dataclasses.replace(chosen, weight_decay=0.0)
    return optimizers.update(plain, step, p, {n: g[n] + chosen.weight_decay * p[n] for n in p}, state)


def first_steps_forever(chosen, step, p, g, state):
    """A step counter that never moves: every update corrects its bias as the first."""
    return optimizers.update(chosen, 0, p, g, state)


def adamw_with(direction):
    def update(chosen, step, p, g, state):
        _, state = optimizers.update(chosen, step, p, g, state)
        rate, decay = chosen.learning_rate, chosen.weight_decay
        corrections = 1 - chosen.b1 ** (step + 1), 1 - chosen.b2 ** (step + 1)
        steps = {n: direction(state["first"][n], state["second"][n], *corrections, chosen.eps) for n in p}
        return {n: p[n] - rate * (steps[n] + decay * p[n]) for n in p}, state

    return update


uncorrected = adamw_with(lambda m, v, c1, c2, eps: m / (v**0.5 + eps))
eps_inside = adamw_with(lambda m, v, c1, c2, eps: m / c1 / (v / c2 + eps) ** 0.5)
eps_before = adamw_with(lambda m, v, c1, c2, eps: m / c1 / ((v**0.5 + eps) / c2**0.5))


def unbiased(new, old):
    count = {name: BATCH_SIZES["convnet"] * (8 if name.startswith(("stem", "stage0")) else 4) ** 2 for name in new}
    count |= {name: n // 4 for name, n in count.items() if name.startswith("stage2")}
    return {
        name: value + (0 if name.endswith("mean") else (value - 0.9 * old[name]) / (count[name] - 1))
        for name, value in new.items()
    }


# fault -> (workload, optimizer or None, what is planted, first kind and name that fail, word of the likely cause)
FAULTS = {
    "layer-norm epsilon": ("transformer", None, config(layer_norm_eps=1e-6), "activation block0.attention", "epsilon"),
    "batch-norm epsilon": ("convnet", None, config(bn_eps=1e-6), "activation stem", "epsilon"),
    "transposed kernel": ("mlp", None, transposed("layer1.kernel"), "activation layer1", "transposed"),
    "transposed kernel in attention": (
        "transformer",
        None,
        transposed("block1.attention.out.kernel"),
        "activation block1.attention",
        "transposed",
    ),
    "gelu tanh": ("transformer", None, {"make_tape": Tanh}, "activation block0.mlp", "GELU tanh instead of erf"),
    "inexact erf": ("transformer", None, {"make_tape": RoughErf}, "activation block0.mlp", "inexact erf"),
    "padding SAME": ("convnet", None, {"make_tape": Same}, "activation stage1.block0", "SAME instead of explicit"),
    "mask of the embedding": (
        "transformer",
        None,
        shifted_mask("mask.embedding"),
        "activation embedding",
        "dropout mask: shifted",
    ),
    "mask of a branch": ("transformer", None, shifted_mask("mask.block0.mlp"), "activation block0", "dropout mask"),
    "mask of attention": (
        "transformer",
        None,
        shifted_mask("mask.block1.attention"),
        "activation block1.attention",
        "dropout mask",
    ),
    "no causal mask": ("transformer", None, {"make_tape": NotCausal}, "activation block0.attention", "causal mask"),
    "float32 inside": ("mlp", None, {"make_tape": Float32}, "activation layer0", "computed in float32"),
    "sum for mean": ("mlp", None, {"make_tape": SumLoss}, "loss loss", "reduction"),
    "bias counted twice": ("mlp", None, {"make_tape": DoubleGradient}, "gradient head.bias", "scaled by 2"),
    "no gradient": (
        "mlp",
        None,
        {"gradients": lambda g: {**g, "layer0.kernel": 0 * g["layer0.kernel"]}},
        "gradient layer0.kernel",
        "no gradient flows",
    ),
    "momentum sense": ("mlp", None, {"update": ema_momentum}, "update layer0.kernel", "momentum sense"),
    "Nesterov": ("convnet", None, {"update": nesterov}, "update stem.conv.kernel", "Nesterov"),
    "momentum coefficient": ("mlp", None, optimizer(momentum=0.8), "trace step2", "after the first step"),
    "sgd without decay": ("mlp", None, optimizer(weight_decay=0.0), "update layer0.kernel", "weight decay left out"),
    "coupled decay": (
        "transformer",
        None,
        {"update": coupled_decay},
        "update token_embedding.embedding",
        "weight decay coupled",
    ),
    "coupled decay on mlp": ("mlp", "adamw", {"update": coupled_decay}, "update layer0.kernel", "weight decay coupled"),
    "no bias correction": ("mlp", "adamw", {"update": uncorrected}, "update layer0.kernel", "bias correction left out"),
    "eps inside": ("mlp", "adamw", {"update": eps_inside}, "update layer0.kernel", "eps inside"),
    "eps before": ("mlp", "adamw", {"update": eps_before}, "update layer0.kernel", "eps added before"),
    "stuck counter": ("mlp", "adamw", {"update": first_steps_forever}, "trace step2", "step counter"),
    "batch-norm momentum": ("convnet", None, config(bn_momentum=0.1), "buffer stem.bn.mean", "momentum inverted"),
    "unbiased variance": ("convnet", None, {"buffers": unbiased}, "buffer stem.bn.var", "unbiased"),
    "evaluation mode": ("convnet", None, {"buffers": lambda new, old: old}, "buffer stem.bn.mean", "not updated"),
    "NaN": (
        "mlp",
        None,
        {"gradients": lambda g: {**g, "head.bias": g["head.bias"] * np.nan}},
        "gradient head.bias",
        "overflow",
    ),
    "missing gradient": (
        "mlp",
        None,
        {"gradients": lambda g: HiddenName(g, "layer0.bias")},
        "gradient layer0.bias",
        "renamed, missing",
    ),
}


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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_at_the_expected_name(fault):
    name, optimizer, planted, where, cause = FAULTS[fault]
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

    def result_of(**faults):
        step = tape_framework.TapeFramework(**faults).build(*arguments, made.batches, dtype, "eager", {})
        step.run(2)  # the gate resets
        return gate.arm_gate(step, *arguments, reference, dtype, STEPS)

    assert result_of().passed
    wrong = coupled_decay if workload.optimizer.name == "adamw" else ema_momentum
    failed = result_of(update=wrong)
    assert (failed.first.kind, failed.passed) == ("update", False)
    labels = result_of(batch=lambda batch: {**batch, "labels": np.roll(batch["labels"], 1)})
    assert (labels.first.kind, labels.first.name) == ("trace", "step0")
    if workload.buffers():
        assert result_of(**config(bn_momentum=0.1)).first.kind == "buffer"


def test_float32_sees_epsilon_and_gelu():
    """bfloat16 cannot; that is why the exact gate exists."""
    workload, made, exact = inputs("transformer")
    arguments = workload, made.parameters, made.buffers, made.batches
    reference = oracle.with_dtype(*arguments, "float32", exact)
    for fault in ("layer-norm epsilon", "gelu tanh"):
        _, _, planted, where, _ = FAULTS[fault]
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
