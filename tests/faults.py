"""Faults to plant into the tape framework, with the first name that must fail and a word of the likely cause."""

from __future__ import annotations

import dataclasses

import numpy as np

from xlacompare.workloads import optimizers, tape

BATCH_SIZES = {"mlp": 32, "convnet": 16, "transformer": 2}


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
