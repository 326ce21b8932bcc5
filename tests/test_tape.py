"""Every operation of the tape against a plain definition, and every gradient against central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlacompare.workloads import tape, tape_kernels

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape)


def away_from_zero(*shape):
    """No element within the step of a central difference of the kink of relu."""
    value = normal(*shape)
    return np.sign(value) * (np.abs(value) + 0.1)


# name -> (inputs, operation on a tape and its nodes)
OPERATIONS = {
    "add": ([normal(3, 4), normal(3, 4)], lambda t, a, b: t.add(a, b)),
    "add broadcast": ([normal(2, 3, 4), normal(4)], lambda t, a, b: t.add(a, b)),
    "add broadcast inside": ([normal(2, 3, 4), normal(1, 3, 1)], lambda t, a, b: t.add(a, b)),
    "multiply": ([normal(3, 4), normal(3, 4)], lambda t, a, b: t.multiply(a, b)),
    "multiply broadcast": ([normal(2, 3), normal(3)], lambda t, a, b: t.multiply(a, b)),
    "multiply by itself": ([normal(3, 4)], lambda t, a: t.multiply(a, a)),
    "scale": ([normal(5)], lambda t, a: t.scale(a, 0.3)),
    "shift": ([normal(5)], lambda t, a: t.shift(a, 0.3)),
    "relu": ([away_from_zero(4, 5)], lambda t, a: t.relu(a)),
    "erf": ([normal(4, 5)], lambda t, a: t.erf(a)),
    "gelu": ([normal(4, 5)], lambda t, a: t.gelu(a)),
    "reshape": ([normal(2, 6)], lambda t, a: t.reshape(a, (3, 4))),
    "transpose": ([normal(2, 3, 4)], lambda t, a: t.transpose(a, (2, 0, 1))),
    "take": ([normal(3, 4)], lambda t, a: t.take(a, 1)),
    "embedding": ([normal(5, 3)], lambda t, a: t.embedding(a, np.array([[0, 2, 2], [4, 2, 0]]))),
    "matmul": ([normal(2, 3, 4), normal(4, 5)], lambda t, a, b: t.matmul(a, b)),
    "matmul batched": ([normal(2, 3, 4), normal(2, 4, 5)], lambda t, a, b: t.matmul(a, b)),
    "dense": ([normal(2, 3), normal(3, 4), normal(4)], lambda t, x, k, b: t.dense(x, k, b)),
    "conv2d": ([normal(2, 5, 5, 3), normal(3, 3, 3, 2)], lambda t, x, k: t.conv2d(x, k, 1, 1)),
    "conv2d stride": ([normal(2, 6, 6, 2), normal(3, 3, 2, 3)], lambda t, x, k: t.conv2d(x, k, 2, 1)),
    "conv2d point": ([normal(1, 5, 5, 2), normal(1, 1, 2, 3)], lambda t, x, k: t.conv2d(x, k, 2, 0)),
    "conv2d oblong": ([normal(1, 5, 7, 2), normal(5, 5, 2, 1)], lambda t, x, k: t.conv2d(x, k, 2, 2)),
    "layer_norm": ([normal(2, 3, 5), normal(5), normal(5)], lambda t, x, s, b: t.layer_norm(x, s, b, 1e-2)),
    "batch_norm": ([normal(3, 2, 2, 4), normal(4), normal(4)], lambda t, x, s, b: t.batch_norm(x, s, b, 1e-2)[0]),
    "softmax": ([normal(3, 5)], lambda t, a: t.softmax(a)),
    "causal softmax": ([normal(2, 4, 4)], lambda t, a: t.softmax(t.causal(a))),
    "max_pool": ([normal(2, 7, 7, 3)], lambda t, a: t.max_pool(a, 3, 2, 1)),
    "mean_pool": ([normal(2, 3, 4, 5)], lambda t, a: t.mean_pool(a)),
    "cross_entropy": ([normal(3, 2, 4)], lambda t, a: t.cross_entropy(a, np.array([[0, 3], [1, 1], [2, 0]]))),
    "narrow": ([normal(3)], lambda t, a: t.widen(t.narrow(a))),
}


def weighted(operation, inputs, weights=None):
    """Sum of weights * operation(inputs) as a tape scalar; also the leaves, and the weights."""
    recorder = tape.Tape()
    leaves = [recorder.parameter(value) for value in inputs]
    out = operation(recorder, *leaves)
    weights = np.random.default_rng(1).standard_normal(out.shape) if weights is None else weights
    product = recorder.multiply(out, recorder.constant(weights))
    flat = recorder.reshape(product, (1, product.value.size))
    total = recorder.matmul(flat, recorder.constant(np.ones((product.value.size, 1))))
    return recorder, recorder.reshape(total, ()), leaves, weights


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradient_is_the_central_difference(name):
    inputs, operation = OPERATIONS[name]
    recorder, root, leaves, weights = weighted(operation, inputs)
    recorder.backward(root)
    step = 1e-5
    for i, leaf in enumerate(leaves):
        numeric = np.zeros_like(inputs[i])
        for place in np.ndindex(inputs[i].shape):
            sides = []
            for sign in (1, -1):
                moved = [value.copy() for value in inputs]
                moved[i][place] += sign * step
                sides.append(float(weighted(operation, moved, weights)[1].value))
            numeric[place] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(leaf.gradient, numeric, rtol=1e-6, atol=1e-8)


def test_a_wrong_gradient_would_be_seen():
    inputs, operation = OPERATIONS["gelu"]
    recorder, root, leaves, _ = weighted(lambda t, a: t.scale(operation(t, a), 1.001), inputs)
    recorder.backward(root)
    right, root, right_leaves, _ = weighted(operation, inputs)
    right.backward(root)
    assert abs(leaves[0].gradient - right_leaves[0].gradient).max() > 1e-4


def run(operation, *inputs):
    recorder = tape.Tape()
    return operation(recorder, *(recorder.constant(value) for value in inputs)).value


def plain_conv2d(x, kernel, stride, padding):
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = ((padded.shape[i] - kernel.shape[i - 1]) // stride + 1 for i in (1, 2))
    out = np.zeros((len(x), height, width, kernel.shape[3]))
    for n, i, j, c in np.ndindex(out.shape):
        rows, columns = stride * i, stride * j
        window = padded[n, rows : rows + kernel.shape[0], columns : columns + kernel.shape[1]]
        out[n, i, j, c] = (window * kernel[..., c]).sum()
    return out


@pytest.mark.parametrize(("size", "kernel", "stride"), [(5, 3, 1), (8, 3, 2), (7, 3, 2), (6, 1, 2), (9, 7, 2)])
def test_conv2d_is_its_definition(size, kernel, stride):
    x, weights = normal(2, size, size, 3), normal(kernel, kernel, 3, 4)
    got = run(lambda t, a, b: t.conv2d(a, b, stride, kernel // 2), x, weights)
    np.testing.assert_allclose(got, plain_conv2d(x, weights, stride, kernel // 2), rtol=1e-12, atol=1e-12)


def test_max_pool_is_its_definition_and_a_tie_goes_to_the_first():
    x = normal(2, 6, 6, 3)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    plain = [[padded[:, i : i + 3, j : j + 3].max((1, 2)) for j in (0, 2, 4)] for i in (0, 2, 4)]
    np.testing.assert_array_equal(run(lambda t, a: t.max_pool(a, 3, 2, 1), x), np.array(plain).transpose(2, 0, 1, 3))
    gradient = tape_kernels.max_pool_to_input(
        np.ones((1, 1, 1, 1)), tape_kernels.max_pool(np.ones((1, 2, 2, 1)), 2, 2, 0)[1], (1, 2, 2, 1), 2, 2, 0
    )
    np.testing.assert_array_equal(gradient[0, ..., 0], [[1, 0], [0, 0]])


def test_gelu_is_erf_not_tanh():
    x = 1.5
    assert run(lambda t, a: t.gelu(a), np.array(x)) == pytest.approx(
        x * 0.5 * (1 + math.erf(x / math.sqrt(2))), rel=1e-15
    )
    tanh = 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert abs(run(lambda t, a: t.gelu(a), np.array(x)) - tanh) > 1e-5


def test_batch_norm_variance_is_biased():
    recorder = tape.Tape()
    x = recorder.constant(np.array([1.0, 2.0, 4.0, 9.0]).reshape(4, 1))
    one, zero = recorder.constant(np.ones(1)), recorder.constant(np.zeros(1))
    _, mean, var = recorder.batch_norm(x, one, zero, 1e-5)
    assert (mean[0], var[0]) == (4.0, 9.5)


def test_cross_entropy_is_the_mean_negative_log_probability():
    logits, labels = normal(4, 3), np.array([0, 2, 1, 1])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(probabilities[np.arange(4), labels]).mean()
    assert run(lambda t, a: t.cross_entropy(a, labels), logits) == pytest.approx(expected, rel=1e-14)


def test_cross_entropy_does_not_overflow():
    logits = np.array([[1e4, 0.0]])
    assert run(lambda t, a: t.cross_entropy(a, np.array([1])), logits) == 1e4


def test_causal_scores_see_no_later_key():
    out = run(lambda t, a: t.softmax(t.causal(a)), normal(1, 4, 4))[0]
    assert (np.triu(out, 1) == 0).all()
    np.testing.assert_allclose(out.sum(-1), 1)


# Precision.


def nearest_bfloat16(value):
    """By search among the neighbours, ties to the even mantissa."""
    exponent = math.floor(math.log2(abs(value)))
    unit = 2.0 ** (exponent - 7)
    low = math.floor(value / unit)
    choices = sorted((abs(value - k * unit), k % 2, k * unit) for k in (low, low + 1))
    return choices[0][2]


def test_bfloat16_rounds_to_nearest_even():
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 255.5 * 2**-8], np.float32)
    values = np.concatenate([RNG.standard_normal(500).astype(np.float32) * 10, ties])
    got = tape_kernels.to_bfloat16(values)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [nearest_bfloat16(float(value)) for value in values])
    assert tape_kernels.to_bfloat16(np.float32(1 + 2**-8)) == 1.0


def test_bfloat16_keeps_what_is_not_finite():
    values = np.array([np.inf, -np.inf, np.nan, 0.0, 3.4e38], np.float32)
    got = tape_kernels.to_bfloat16(values)
    assert got[0] == np.inf
    assert got[1] == -np.inf
    assert np.isnan(got[2])
    assert (got[3], got[4]) == (0.0, np.inf)  # the largest float32 lie nearer to 2^128 than to a bfloat16


def recorded_nodes(precision, name):
    recorder = tape.Tape(precision)
    inputs, operation = OPERATIONS[name]
    leaves = [recorder.narrow(recorder.parameter(value)) for value in inputs]
    out = operation(recorder, *leaves)
    squared = recorder.multiply(out, out)
    flat = recorder.reshape(squared, (1, squared.value.size))
    root = recorder.reshape(recorder.matmul(flat, recorder.constant(np.ones((squared.value.size, 1)))), ())
    recorder.backward(root)
    return out, recorder._nodes


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_values_and_gradients_are_in_the_precision(precision, name):
    _, nodes = recorded_nodes(precision, name)
    for node in nodes:
        for array in (node.value, node.gradient):
            assert array.dtype == np.float32
            if node.narrow:
                np.testing.assert_array_equal(array, tape_kernels.to_bfloat16(array))


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"cross_entropy", "narrow"}))
def test_operations_on_bfloat16_give_bfloat16(name):
    out, _ = recorded_nodes("bfloat16", name)
    assert out.narrow


def test_the_loss_is_wide():
    out, _ = recorded_nodes("bfloat16", "cross_entropy")
    assert not out.narrow


@pytest.mark.parametrize(("precision", "low", "high"), [("float32", 1e-9, 1e-6), ("bfloat16", 1e-4, 3e-2)])
def test_precision_costs_what_its_dtype_costs(precision, low, high):
    x, kernel = normal(32, 64), normal(64, 16)

    def product(kind):
        recorder = tape.Tape(kind)
        narrow = [recorder.narrow(recorder.parameter(value)) for value in (x, kernel)]
        return recorder.gelu(recorder.matmul(*narrow)).value

    exact = product("float64")
    assert low < abs(product(precision) - exact).max() / abs(exact).max() < high


def test_scatter_rounds_after_every_addition():
    """256 + 1 is 256 in bfloat16: rows added one by one are lost, their sum is not."""
    ids, rows = np.zeros(9, int), np.array([[256.0]] + [[1.0]] * 8, np.float32)
    table = np.zeros((2, 1), np.float32)
    assert tape_kernels.scatter_rows(table, ids, rows, tape_kernels.to_bfloat16)[0, 0] == 256
    assert tape_kernels.scatter_rows(table, ids, rows, lambda value: value)[0, 0] == 264


def test_the_gradient_of_a_bias_is_summed_in_its_own_dtype():
    """Weighted such that the sum is 256 + 8, of which bfloat16 keeps 256 when it adds row by row."""
    weights = np.array([[256.0]] + [[1.0]] * 8)
    for precision, expected in (("float32", 264), ("bfloat16", 256)):
        recorder = tape.Tape(precision)
        bias = recorder.parameter(np.zeros(1))
        zeros = recorder.narrow(recorder.constant(np.zeros((9, 1))))
        product = recorder.multiply(recorder.add(zeros, recorder.narrow(bias)), recorder.constant(weights))
        total = recorder.matmul(recorder.constant(np.ones((1, 9))), product)
        recorder.backward(recorder.reshape(total, ()))
        assert bias.gradient == expected


def test_flops_are_counted():
    recorder = tape.Tape()
    x, kernel = recorder.parameter(normal(2, 3, 4)), recorder.parameter(normal(4, 5))
    out = recorder.matmul(x, kernel)
    assert recorder.forward_flops == 2 * 2 * 3 * 4 * 5
    root = recorder.cross_entropy(out, np.zeros((2, 3), int))
    recorder.backward(root)
    assert recorder.backward_flops == 2 * recorder.forward_flops


def test_unknown_precision():
    with pytest.raises(ValueError, match="float16"):
        tape.Tape("float16")
