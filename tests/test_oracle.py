"""The oracle against independent code, and its derived tolerances against other ways to round."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import scipy.special

from tests import tape_framework
from xlacompare import workloads
from xlacompare.core import errors, parity
from xlacompare.frameworks import gate
from xlacompare.workloads import archive, oracle, reference_file, spec, tape

STEPS = 4


def inputs(name, **options):
    workload = workloads.load_workload(name, "tiny", **options)
    return workload, archive.build(workload, 0, STEPS)


def evaluate(workload, made, steps=1, precision="float64"):
    return oracle.evaluate(workload, made.parameters, made.buffers, made.batches, steps, precision)


def log_loss(logits, labels):
    return -np.take_along_axis(scipy.special.log_softmax(logits, -1), labels[..., None], -1).mean()


def test_mlp_is_its_definition():
    workload, made = inputs("mlp")
    p, x = made.parameters, made.batches[0]["inputs"].astype(np.float64)
    for name in ("layer0", "layer1"):
        x = np.maximum(x @ p[f"{name}.kernel"] + p[f"{name}.bias"], 0)
    logits = x @ p["head.kernel"] + p["head.bias"]
    exact = evaluate(workload, made)
    np.testing.assert_allclose(exact.activations["logits"], logits, rtol=1e-12)
    assert exact.losses[0] == pytest.approx(log_loss(logits, made.batches[0]["labels"]), rel=1e-14)
    assert exact.example_losses[0].mean() == pytest.approx(exact.losses[0], rel=1e-14)


def plain_norm(x, scale, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def plain_attention(x, kernel, bias, mask, heads=4):
    """One example at a time, one head at a time."""
    q, k, v = np.split(x @ kernel + bias, 3, -1)
    out = np.zeros_like(x)
    size = x.shape[-1] // heads
    for b in range(len(x)):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[b, :, part] @ k[b, :, part].T / np.sqrt(size)
            scores[np.triu_indices(len(scores), 1)] = -np.inf
            out[b, :, part] = (scipy.special.softmax(scores, -1) * mask[b, h]) @ v[b, :, part]
    return out


def test_transformer_is_its_definition():
    workload, made = inputs("transformer", batch_size=2)
    p, batch = {k: v.astype(np.float64) for k, v in made.parameters.items()}, made.batches[0]
    table = p["token_embedding.embedding"]
    x = (table[batch["inputs"]] + p["position_embedding.embedding"]) * batch["mask.embedding"]
    for i in range(2):
        b = {k.removeprefix(f"block{i}."): v for k, v in p.items()}
        y = plain_norm(x, b["norm1.scale"], b["norm1.bias"])
        y = plain_attention(y, b["attention.qkv.kernel"], b["attention.qkv.bias"], batch[f"mask.block{i}.attention"])
        x = x + (y @ b["attention.out.kernel"] + b["attention.out.bias"]) * batch[f"mask.block{i}.attention_out"]
        y = plain_norm(x, b["norm2.scale"], b["norm2.bias"]) @ b["mlp.up.kernel"] + b["mlp.up.bias"]
        y = y * scipy.special.ndtr(y)
        x = x + (y @ b["mlp.down.kernel"] + b["mlp.down.bias"]) * batch[f"mask.block{i}.mlp"]
    logits = plain_norm(x, p["norm.scale"], p["norm.bias"]) @ table.T
    exact = evaluate(workload, made)
    np.testing.assert_allclose(exact.activations["logits"], logits, rtol=1e-9, atol=1e-12)
    assert exact.losses[0] == pytest.approx(log_loss(logits, batch["labels"]), rel=1e-13)


def test_convnet_stem_and_running_statistics_are_their_definition():
    workload, made = inputs("convnet", batch_size=4)
    p, x = made.parameters, made.batches[0]["inputs"].astype(np.float64)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = sum(
        padded[:, i : i + 8, j : j + 8] @ p["stem.conv.kernel"][i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
    stem = np.maximum((y - mean) / np.sqrt(var + 1e-5) * p["stem.bn.scale"] + p["stem.bn.bias"], 0)
    exact = evaluate(workload, made)
    np.testing.assert_allclose(exact.activations["stem"], stem, rtol=1e-10, atol=1e-12)
    for name, value in (("mean", mean), ("var", var)):
        expected = 0.9 * made.buffers[f"stem.bn.{name}"].astype(np.float64) + 0.1 * value
        np.testing.assert_allclose(exact.updated_buffers[f"stem.bn.{name}"], expected, rtol=1e-12)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_gradients_are_the_slope_along_a_random_direction(name):
    workload, made = inputs(name, batch_size=2)
    generator = np.random.default_rng(1)
    gradients = evaluate(workload, made).gradients
    for tensor in gradients:
        direction = generator.standard_normal(gradients[tensor].shape)
        sides = []
        for sign in (1, -1):
            moved = dict(made.parameters)
            moved[tensor] = moved[tensor].astype(np.float64) + sign * 1e-6 * direction
            sides.append(evaluate(workload, dataclasses.replace(made, parameters=moved)).losses[0])
        slope = (sides[0] - sides[1]) / 2e-6
        # Kinks of relu that lie within the step bend the slope a little.
        assert (gradients[tensor] * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_the_second_step_starts_where_the_first_ended():
    workload, made = inputs("convnet")
    exact = evaluate(workload, made, steps=2)
    later = archive.Archive(exact.updated_parameters, exact.updated_buffers, made.batches[1:])
    assert exact.losses[1] == pytest.approx(evaluate(workload, later).losses[0], rel=1e-14)


def test_the_loss_falls():
    for name in workloads.WORKLOADS:
        workload, made = inputs(name)
        repeated = dataclasses.replace(made, batches=made.batches[:1])
        losses = evaluate(workload, repeated, steps=6).losses
        assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_running_statistics_and_state_are_not_changed_in_place(name):
    workload, made = inputs(name)
    before = made.sha256()
    evaluate(workload, made, steps=2)
    assert made.sha256() == before


# Derived tolerances.


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_own_errors_have_the_size_of_the_dtype(name):
    workload, made = inputs(name)
    exact = evaluate(workload, made, STEPS)
    arguments = workload, made.parameters, made.buffers, made.batches
    for dtype, high in (("float32", 1e-5), ("bfloat16", 5e-2)):
        own = oracle.with_dtype(*arguments, dtype, exact).own_errors
        assert all(oracle.EPSILON[dtype] / 64 < error < high for error in own["activation"].values())
        assert set(own["gradient"]) == set(own["update"]) == set(made.parameters)
        assert set(own["buffer"]) == set(made.buffers)
        trace = list(own["trace"].values())
        assert len(trace) == STEPS
        assert trace == sorted(trace)


class Fused(tape.Tape):
    """Rounds gelu once instead of after each of its operations, as a fused kernel does."""

    def gelu(self, x):
        out = tape.Tape.gelu(self, self.widen(x))
        return self.narrow(out) if x.narrow else out


class Unfused(tape.Tape):
    """Rounds once more in each product: bias and product as separate halves of the sum."""

    def matmul(self, a, b):
        if b.value.ndim != 2 or a.shape[-1] % 2:
            return super().matmul(a, b)
        half = a.shape[-1] // 2
        last = tuple(range(a.value.ndim))
        swapped = self.transpose(a, (last[-1], *last[:-1]))
        parts = []
        for i in range(2):
            left = self.transpose(self.take(self.reshape(swapped, (2, half, *a.shape[:-1])), i), (*last[1:], 0))
            parts.append(super().matmul(left, self.take(self.reshape(b, (2, half, b.shape[1])), i)))
        return self.add(*parts)


def reversed_batch(batch):
    """Sums over the batch run in the other order."""
    return {name: value[::-1].copy() for name, value in batch.items()}


@pytest.mark.parametrize("name", workloads.WORKLOADS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["fused", "unfused", "reversed"])
def test_another_way_to_round_passes(name, dtype, variant):
    workload, made = inputs(name)
    reference = oracle.references(workload, made.parameters, made.buffers, made.batches, dtype, STEPS)
    faults = {
        "fused": {"make_tape": Fused},
        "unfused": {"make_tape": Unfused},
        "reversed": {"batch": reversed_batch},
    }[variant]
    framework = tape_framework.TapeFramework(**faults)
    step = framework.build(workload, made.parameters, made.buffers, made.batches, dtype, "eager", {})
    result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, dtype, STEPS)
    assert result.passed, result.message()
    if variant != "reversed":  # there the activations lie in another order
        result = gate.dtype_gate(framework, workload, made.parameters, made.buffers, made.batches, reference)
        assert result.passed, result.message()


def test_sgd_updates_have_no_slack_and_adamw_little():
    for name, optimizer, most in (("transformer", "sgd", 0), ("transformer", "adamw", 0.05), ("mlp", "adamw", 0.5)):
        workload, made = inputs(name, optimizer=optimizer)
        reference = oracle.Reference("float64", evaluate(workload, made), {})
        slack = oracle.update_slack(workload, made.parameters, reference)
        eased = sum((value > 0).sum() for value in slack.values())
        assert eased <= most * sum(value.size for value in slack.values())


def test_the_key_bias_has_slack_and_its_neighbours_have_not():
    """Its gradient is zero in exact arithmetic: a shift of all keys moves all scores of a query alike."""
    workload, made = inputs("transformer")
    reference = oracle.Reference("float64", evaluate(workload, made), {})
    slack = oracle.update_slack(workload, made.parameters, reference)["block0.attention.qkv.bias"]
    query, key, value = np.split(slack, 3)
    assert (key > 0).all()
    assert (query == 0).mean() > 0.9
    assert (value == 0).all()


def test_a_gradient_of_noise_is_measured_against_the_model():
    gradients = {"a": np.array([1.0, -2.0]), "noise": np.array([1e-17, 0.0]), "small": np.array([1e-9])}
    assert oracle.gradient_scale(gradients, "noise") == 2
    assert oracle.gradient_scale(gradients, "small") == 1e-9
    assert oracle.gradient_error(np.array([-3e-17, 0.0]), gradients, "noise") == pytest.approx(2e-17)
    assert oracle.gradient_error(np.zeros(1), {"a": np.zeros(1)}, "a") == 0
    assert oracle.gradient_error(np.ones(1), {"a": np.zeros(1)}, "a") == np.inf


def test_eased_moves_towards_and_never_past():
    got, expected = np.array([1.5, -1.5, 1.1, np.nan]), np.ones(4)
    out = oracle.eased(got, expected, np.array([0.2, 0.5, 0.3, 1.0]))
    np.testing.assert_allclose(out, [1.3, -1.0, 1.0, np.nan])


@pytest.mark.parametrize("dtype", spec.DTYPES)
def test_a_reference_comes_back(dtype, tmp_path):
    workload, made = inputs("convnet")
    reference = oracle.references(workload, made.parameters, made.buffers, made.batches, dtype, 2)
    reference_file.save(tmp_path / "r.npz", reference)
    loaded = reference_file.load(tmp_path / "r.npz")
    assert loaded.dtype == dtype
    assert loaded.own_errors == reference.own_errors
    for field in dataclasses.fields(oracle.Oracle):
        one, two = getattr(reference.oracle, field.name), getattr(loaded.oracle, field.name)
        if isinstance(one, dict):
            assert archive.sha256(one) == archive.sha256(two)
        else:
            np.testing.assert_array_equal(one, two)


def test_an_archive_is_not_a_reference(tmp_path):
    archive.save(tmp_path / "a.npz", inputs("mlp")[1])
    with pytest.raises(errors.RecordError, match="not a reference"):
        reference_file.load(tmp_path / "a.npz")


def test_nothing_to_evaluate():
    workload, made = inputs("mlp")
    for steps, batches in ((0, made.batches), (1, [])):
        with pytest.raises(errors.BadInputError):
            oracle.evaluate(workload, made.parameters, made.buffers, batches, steps, "float64")


def test_all_tiny_references_are_quick():
    """Processor time, so that a busy machine does not matter: about 1 s here."""
    begin = time.process_time()
    for name in workloads.WORKLOADS:
        workload, made = inputs(name)
        oracle.references(workload, made.parameters, made.buffers, made.batches, "float32", STEPS)
    assert time.process_time() - begin < 6


def test_relative_error_is_what_it_says():
    assert parity.relative_error(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
