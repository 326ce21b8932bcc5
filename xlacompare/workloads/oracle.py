"""The float64 reference of a workload, and what each dtype loses against it.

The tolerance of a cell is derived, not chosen: the tape runs the same step in the cell's dtype, and its error against
float64 says how much that dtype costs on this workload, tensor by tensor. A framework may err `FACTOR` times as much,
plus a floor of a few roundings. FACTOR is 8: where the tape rounds once, a framework may round after each of up to
eight elementwise operations, or sum in another order; its error is then a few times ours, and at worst eight times in
one chain of roundings. The floor covers tensors that the tape happened to hit: each side stores its value, which costs
one unit in the last place at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import threadpoolctl

from xlacompare.core import errors, parity
from xlacompare.workloads import kinks, optimizers, spec, tape

FACTOR = 8.0
# Below this many operations a step, BLAS gets one thread: on busy cores two threads waiting for each other took 12 s
# where one takes 0.4 s (OpenBLAS, many small products).
ONE_THREAD_FLOPS = 10**11
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}  # distance from 1 to the next number

# Of float64, by kind: sums of up to 1e6 terms at 1e-16 leave room of a decade or more.
EXACT_LIMITS = {"activation": 1e-10, "loss": 1e-10, "gradient": 1e-9, "update": 1e-9, "buffer": 1e-10, "trace": 1e-9}


@dataclasses.dataclass(frozen=True)
class Oracle:
    """One run of the tape. Everything is float64, whatever precision it was computed in.

    Attributes:
      losses: Mean loss of each step [steps].
      example_losses: Loss of each example or token [steps, examples].
      activations: By tap, on batch 0 with the initial parameters.
      gradients: By parameter, on batch 0 with the initial parameters.
      updated_parameters: After one update.
      updated_buffers: After one step.
    """

    losses: np.ndarray
    example_losses: np.ndarray
    activations: spec.Arrays
    gradients: spec.Arrays
    updated_parameters: spec.Arrays
    updated_buffers: spec.Arrays


@dataclasses.dataclass(frozen=True)
class Reference:
    """The float64 oracle, and the dtype's own error by kind and name (empty for float64).

    `kink_errors` are those of the float64 run in which every undecided ReLU unit fell on the other side (`kinks`).

    Errors are relative to the largest element, as in `parity.relative_error`. Of `trace` it is the mean absolute error
    of the examples' losses over the mean loss: unlike the error of the mean, it does not vanish by luck.
    """

    dtype: str
    oracle: Oracle
    own_errors: dict[str, dict[str, float]]
    kink_errors: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def limit(self, kind: str, name: str) -> float:
        """Largest relative error that a framework may show."""
        if self.dtype == "float64":
            return EXACT_LIMITS[kind]
        return self.rounding(kind, name, FACTOR) + self.kink_errors.get(kind, {}).get(name, 0.0)

    def rounding(self, kind: str, name: str, factor: float) -> float:
        """`factor` times what the dtype's rounding did to the tape, and the floor. Not of float64.

        A unit whose rounding decided it, and that fell on the other side, is in the tape's own error; that all of them
        did is not (`kink_errors`).
        """
        stored = "float32" if kind in ("loss", "trace", "update", "buffer") else self.dtype
        limit = factor * self.own_errors[kind][name] + 2 * EPSILON[stored]
        if kind in ("loss", "trace"):
            # Adding up n losses one by one errs by about sqrt(n) roundings (Higham and Mary 2019); the examples' own
            # errors do not hold this one.
            limit += np.sqrt(self.oracle.example_losses.shape[1]) * EPSILON[stored] / 2
        return float(limit)


def evaluate(
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    steps: int,
    precision: str,
    make_tape: Callable[[str], tape.Tape] = tape.Tape,
) -> Oracle:
    """Runs `steps` training steps on the tape; step i uses batch i % len(batches).

    Raises:
      BadInputError: No step, or no batch.
    """
    if steps < 1 or not batches:
        raise errors.BadInputError(f"the oracle needs at least one step and one batch, not {steps} and {len(batches)}")
    threads = 1 if workload.flops_per_step() < ONE_THREAD_FLOPS else None
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        return _evaluate(workload, parameters, buffers, batches, steps, precision, make_tape)


def _evaluate(
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    steps: int,
    precision: str,
    make_tape: type[tape.Tape],
) -> Oracle:
    wide = tape.Tape(precision).wide
    values = {name: np.asarray(value, wide) for name, value in parameters.items()}
    running = {name: np.asarray(value, wide) for name, value in buffers.items()}
    state = optimizers.initial_state(workload.optimizer, values)
    losses, example_losses, first = [], [], {}
    for step in range(steps):
        batch = batches[step % len(batches)]
        loss, running, taps, gradients = run_step(workload, make_tape(precision), values, running, batch)
        values, state = optimizers.update(workload.optimizer, step, values, gradients, state)
        losses.append(loss)
        example_losses.append(_example_losses(taps["logits"], batch["labels"]))
        if step == 0:
            first = {"activations": taps, "gradients": gradients}
            first |= {"updated_parameters": values, "updated_buffers": running}
    wide_first = {
        kind: {name: np.asarray(a, np.float64) for name, a in arrays.items()} for kind, arrays in first.items()
    }
    return Oracle(np.array(losses, np.float64), np.array(example_losses), **wide_first)


def run_step(
    workload: spec.Workload, recorder: tape.Tape, parameters: spec.Arrays, buffers: spec.Arrays, batch: spec.Arrays
) -> tuple[float, spec.Arrays, spec.Arrays, spec.Arrays]:
    """Forward and backward on one tape.

    Returns:
      Loss, updated buffers, activations and gradients by name, in the precision of the tape.
    """
    leaves = {name: recorder.parameter(value) for name, value in parameters.items()}
    loss, updated, taps = workload.forward(recorder, leaves, buffers, batch)
    activations = {name: node.value for name, node in taps.items()}
    recorder.backward(loss)
    gradients = {
        name: np.zeros_like(leaf.value) if leaf.gradient is None else leaf.gradient for name, leaf in leaves.items()
    }
    return float(loss.value), updated, activations, gradients


def references(
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    dtype: str,
    steps: int,
) -> Reference:
    """The float64 oracle of a workload, with the own error of `dtype`."""
    exact = evaluate(workload, parameters, buffers, batches, steps, "float64")
    return with_dtype(workload, parameters, buffers, batches, dtype, exact)


def with_dtype(
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    dtype: str,
    exact: Oracle,
) -> Reference:
    """The same from an oracle that is there already (several dtypes share one)."""
    if dtype == "float64":
        return Reference(dtype, exact, {})
    steps = len(exact.losses)
    rough = evaluate(workload, parameters, buffers, batches, steps, dtype)
    near = kinks.reach(rough.activations, exact.activations)
    flipped = evaluate(workload, parameters, buffers, batches, steps, "float64", lambda _: kinks.KinkTape(near))
    reference = Reference(dtype, exact, _own_errors(rough, exact), _own_errors(flipped, exact))
    slack = update_slack(workload, parameters, reference)
    expected = deltas(exact.updated_parameters, parameters)
    for run, kept in ((rough, reference.own_errors), (flipped, reference.kink_errors)):
        got = deltas(run.updated_parameters, parameters)
        kept["update"] = {n: parity.relative_error(eased(got[n], expected[n], slack[n]), expected[n]) for n in expected}
    return reference


def _own_errors(run: Oracle, exact: Oracle) -> dict[str, dict[str, float]]:
    """Errors of a run against the float64 one, by kind and name; without updates, whose slack follows from these."""
    own = {
        "activation": _errors(run.activations, exact.activations),
        "gradient": {n: gradient_error(g, exact.gradients, n) for n, g in run.gradients.items()},
        "buffer": _errors(run.updated_buffers, exact.updated_buffers),
        "trace": _trace_errors(run, exact),
    }
    return {**own, "loss": {"loss": own["trace"]["step0"]}}


def _errors(got: spec.Arrays, expected: spec.Arrays) -> dict[str, float]:
    return {name: parity.relative_error(got[name], expected[name]) for name in expected}


def gradient_scale(gradients: spec.Arrays, name: str) -> float:
    """What an error of a gradient is measured against: its largest element.

    A gradient that is zero in exact arithmetic (a key bias, a bias before a normalisation) comes out as noise, and has
    the largest gradient of the whole model as its scale.
    """
    own = float(np.abs(gradients[name]).max(initial=0.0))
    largest = max(float(np.abs(g).max(initial=0.0)) for g in gradients.values())
    return own if own > 1e4 * EPSILON["float64"] * largest else largest


def gradient_error(got: np.ndarray, exact: spec.Arrays, name: str) -> float:
    """Largest error of a gradient, relative to `gradient_scale`; infinite for NaN, and where only the scale is 0."""
    if not np.isfinite(got).all():
        return float("inf")
    error = float(np.abs(got - exact[name]).max(initial=0.0))
    scale = gradient_scale(exact, name)
    return error / scale if scale > 0 else (0.0 if error == 0 else float("inf"))


def deltas(updated: spec.Arrays, initial: spec.Arrays) -> spec.Arrays:
    """What an update added, float64."""
    return {name: np.asarray(updated[name], np.float64) - initial[name] for name in initial}


def update_slack(workload: spec.Workload, parameters: spec.Arrays, reference: Reference) -> spec.Arrays:
    """By how much each element of the first update may be off beyond its limit, because its gradient may be off.

    adamw divides a gradient by its own size, so that near zero an error far within the gradient's limit turns the whole
    update round. Let `movement` be what a gradient that is off by its limit does to an element's update. Where this
    is, relative to the largest update of the tensor, at most twice the gradient's limit, the optimizer amplifies
    nothing and the slack is 0. Elsewhere the slack is `movement`. Under sgd it is 0 everywhere; under adamw it is not
    where |g| < sqrt(eps * scale / 2), about, and where the sign of the gradient is unsure.
    """
    exact = {name: np.asarray(parameters[name], np.float64) for name in parameters}
    state = optimizers.initial_state(workload.optimizer, exact)
    gradients = reference.oracle.gradients
    moved = {}
    for sign in (0, 1, -1):
        shifted = {
            name: g + sign * reference.limit("gradient", name) * gradient_scale(gradients, name)
            for name, g in gradients.items()
        }
        moved[sign] = optimizers.update(workload.optimizer, 0, exact, shifted, state)[0]
    slack = {}
    for name in exact:
        movement = np.maximum(abs(moved[1][name] - moved[0][name]), abs(moved[-1][name] - moved[0][name]))
        largest = np.abs(moved[0][name] - exact[name]).max(initial=0.0)
        slack[name] = np.where(movement <= 2 * reference.limit("gradient", name) * largest, 0.0, movement)
    return slack


def stored_rounding(reference: Reference, parameters: spec.Arrays, name: str) -> float:
    """Rounding of a parameter, relative to the largest element of the update that is added to it."""
    value = reference.oracle.updated_parameters[name]
    largest = float(np.abs(value - parameters[name]).max(initial=0.0))
    stored = EPSILON["float64" if reference.dtype == "float64" else "float32"]
    return stored * float(np.abs(value).max(initial=0.0)) / largest if largest else 0.0


def eased(got: np.ndarray, expected: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """`got`, moved towards `expected` by at most `slack`; unchanged where the shapes differ."""
    if got.shape != expected.shape:
        return got
    off = got - expected
    return expected + np.sign(off) * np.maximum(np.abs(off) - slack, 0)


def _trace_errors(rough: Oracle, exact: Oracle) -> dict[str, float]:
    """By step, never less than at an earlier step."""
    examples = np.abs(rough.example_losses - exact.example_losses).mean(1) / np.abs(exact.losses)
    return {f"step{i}": float(error) for i, error in enumerate(np.maximum.accumulate(examples))}


def _example_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log softmax(logits)[label] of each example, float64 [examples]."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, labels[..., None].astype(np.intp), -1)[..., 0]
    return (np.log(np.exp(shifted).sum(-1)) - chosen).ravel()
