"""How far two runs of one program in two XLA builds may be apart in each output, as absolute errors.

Derived as the gate's limits are, from the dtype's own error against float64 on this workload. Each of the two runs errs
by about that, so that they differ by twice as much at most: FACTOR is 2. The gate's 8 makes room for frameworks that
compose a step of other operations; here the operations are the same, and only how they are fused is not. Of the first
step, from the archive's parameters and batch 0.
"""

from __future__ import annotations

import numpy as np

from xlacompare.workloads import optimizers, oracle, spec

FACTOR = 2.0
# The optimizer's state by what frameworks call it (optax, torch).
MOMENTS = {"velocity": ("trace", "momentum_buffer"), "first": ("mu", "exp_avg"), "second": ("nu", "exp_avg_sq")}


def of_outputs(workload: spec.Workload, parameters: spec.Arrays, reference: oracle.Reference) -> dict[str, float]:
    """Largest absolute error by output, named as in `core.program.Tensor`: "loss", "layer0.kernel", "mu of ...".

    Of a parameter under adamw it leaves out what a gradient near zero does to its update (`oracle.update_slack`), which
    depends on the element.

    Args:
      workload: The work.
      parameters: Initial ones, neutral.
      reference: With the error of the program's dtype.

    Returns:
      Nothing for float64, whose own error is that of the reference.
    """
    if reference.dtype == "float64":
        return {}
    exact = reference.oracle
    found = {"loss": reference.rounding("loss", "loss", FACTOR) * abs(float(exact.losses[0]))}
    for name, update in oracle.deltas(exact.updated_parameters, parameters).items():
        limit = reference.rounding("update", name, FACTOR) + oracle.stored_rounding(reference, parameters, name)
        found[name] = limit * _largest(update)
    for name, value in exact.updated_buffers.items():
        found[name] = reference.rounding("buffer", name, FACTOR) * _largest(value)
    return found | _of_moments(workload, parameters, reference)


def _of_moments(workload: spec.Workload, parameters: spec.Arrays, reference: oracle.Reference) -> dict[str, float]:
    """What gradients that are off by their limits do to the optimizer's state."""
    gradients = reference.oracle.gradients
    start = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    zero = optimizers.initial_state(workload.optimizer, start)
    _, state = optimizers.update(workload.optimizer, 0, start, gradients, zero)
    larger = {}
    for name, gradient in gradients.items():
        off = reference.rounding("gradient", name, FACTOR) * oracle.gradient_scale(gradients, name)
        larger[name] = gradient + np.where(gradient < 0, -off, off)  # away from zero: squares move most
    _, moved = optimizers.update(workload.optimizer, 0, start, larger, zero)
    return {
        f"{called} of {name}": _largest(moved[moment][name] - value)
        for moment, values in state.items()
        for name, value in values.items()
        for called in MOMENTS[moment]
    }


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))
