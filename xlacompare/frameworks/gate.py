"""The gate: does this framework do the workload's work? Nothing is timed before it has passed.

Program order is activations, loss, gradients (from the last parameter to the first, as the backward pass makes them),
then one update, the buffers, and the losses of the steps after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from xlacompare.core import causes, parity
from xlacompare.frameworks import interface
from xlacompare.workloads import optimizers, oracle, spec


def exact_gate(
    framework: interface.Framework,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    exact: oracle.Oracle,
    arm: str = "eager",
    steps: int = 4,
) -> parity.GateResult:
    """Everything in float64, against the oracle: once per framework and workload.

    Args:
      framework: The adapter.
      workload: What to do.
      parameters: Initial ones, neutral.
      buffers: Initial ones, neutral.
      batches: The same as the oracle's.
      exact: The float64 oracle.
      arm: The arm whose step makes the update.
      steps: Steps of the loss trace, at most those of the oracle.
    """
    reference = oracle.Reference("float64", exact, {})
    evaluation = framework.evaluate(workload, parameters, buffers, batches[0], "float64")
    gate = _Gate(workload, parameters, buffers, reference)
    gate.check_evaluation(evaluation)
    step = framework.build(workload, parameters, buffers, batches, "float64", arm, {})
    try:
        gate.check_step(step, steps)
    finally:
        step.close()
    return gate.result(evaluation.exceptions)


def dtype_gate(
    framework: interface.Framework,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    batches: list[spec.Arrays],
    reference: oracle.Reference,
) -> parity.GateResult:
    """Activations, loss and gradients in the reference's dtype, within its derived limits."""
    evaluation = framework.evaluate(workload, parameters, buffers, batches[0], reference.dtype)
    gate = _Gate(workload, parameters, buffers, reference)
    gate.check_evaluation(evaluation)
    return gate.result(evaluation.exceptions)


def arm_gate(
    step: interface.TrainStep,
    workload: spec.Workload,
    parameters: spec.Arrays,
    buffers: spec.Arrays,
    reference: oracle.Reference,
    dtype: str,
    steps: int,
    gradients: spec.Arrays | None = None,
) -> parity.GateResult:
    """The built step itself, the one that is timed, in its own dtype, within derived limits.

    Resets the step first and leaves it `steps` steps on; call `reset` again where that matters.

    Args:
      step: The step.
      workload: What to do.
      parameters: Initial ones, neutral.
      buffers: Initial ones, neutral.
      reference: Of the step's dtype.
      dtype: That of the step.
      steps: Steps of the loss trace.
      gradients: Those that the optimizer gets, where they can be had (`strategy.ParallelStep`): an update by adamw
        hides their scale, a sum over ranks instead of a mean for one.
    """
    if dtype != reference.dtype:
        raise ValueError(f"the step is {dtype}, its reference {reference.dtype}")
    step.reset()
    gate = _Gate(workload, parameters, buffers, reference)
    if gradients is not None:
        gate.check_gradients(gradients)
    gate.check_step(step, steps)
    return gate.result({})


@dataclasses.dataclass
class _Gate:
    """Differences so far, in program order."""

    workload: spec.Workload
    parameters: spec.Arrays
    buffers: spec.Arrays
    reference: oracle.Reference
    differences: list[parity.Difference] = dataclasses.field(default_factory=list)
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    seen: dict[str, tuple[spec.Arrays, spec.Arrays]] = dataclasses.field(default_factory=dict)  # kind -> got, expected

    def check_evaluation(self, evaluation: interface.Evaluation) -> None:
        exact = self.reference.oracle
        self._compare("activation", evaluation.activations, exact.activations, self.workload.activation_names())
        self._compare("loss", {"loss": np.asarray(evaluation.loss)}, {"loss": exact.losses[0]}, ["loss"])
        self.check_gradients(evaluation.gradients)
        count = {"parameters": np.asarray(sum(g.size for g in evaluation.gradients.values()))}
        expected = {"parameters": np.asarray(sum(g.size for g in exact.gradients.values()))}
        self._extend("count", count, expected, parity.compare("count", count, expected, ["parameters"], 0.0))

    def check_gradients(self, got: spec.Arrays) -> None:
        """As `_compare`, but a gradient that is zero in exact arithmetic is measured against the model's largest."""
        exact = self.reference.oracle.gradients
        order = [tensor.name for tensor in reversed(self.workload.parameters())]
        plain = parity.compare("gradient", got, exact, order, lambda name: self.reference.limit("gradient", name))
        for i, item in enumerate(plain):
            if item.name in got and item.name in exact and got[item.name].shape == exact[item.name].shape:
                error = oracle.gradient_error(got[item.name], exact, item.name)
                plain[i] = dataclasses.replace(item, error=error)
        self._extend("gradient", got, exact, plain)

    def check_step(self, step: interface.TrainStep, steps: int) -> None:
        exact = self.reference.oracle
        steps = min(steps, len(exact.losses))
        losses: spec.Arrays = {}
        expected = {f"step{i}": exact.losses[i] for i in range(steps)}
        for i in range(steps):
            step.run(i)
            step.synchronize()
            losses[f"step{i}"] = np.asarray(step.loss())
            if i == 0:
                self._compare("trace", losses, expected, ["step0"])
                self._check_state(*step.state())
        self._compare("trace", losses, expected, [f"step{i}" for i in range(1, steps)], ["step0"])

    def _check_state(self, parameters: spec.Arrays, buffers: spec.Arrays) -> None:
        exact = self.reference.oracle
        expected = oracle.deltas(exact.updated_parameters, self.parameters)
        slack = oracle.update_slack(self.workload, self.parameters, self.reference)
        got = {}
        for name, value in parameters.items():
            got[name] = np.asarray(value, np.float64)
            if name in expected and value.shape == expected[name].shape:
                got[name] = oracle.eased(got[name] - self.parameters[name], expected[name], slack[name])
        self._compare("update", got, expected, [tensor.name for tensor in self.workload.parameters()])
        self._compare("buffer", buffers, exact.updated_buffers, [tensor.name for tensor in self.workload.buffers()])
        self.facts["update_elements"] = sum(s.size for s in slack.values())
        self.facts["update_elements_eased"] = sum(int((s > 0).sum()) for s in slack.values())

    def _limit(self, kind: str, name: str) -> float:
        """Of an update, the rounding of the parameter that it is added to comes on top."""
        limit = self.reference.limit(kind, name)
        return limit + oracle.stored_rounding(self.reference, self.parameters, name) if kind == "update" else limit

    def _compare(
        self, kind: str, got: spec.Arrays, expected: spec.Arrays, order: Sequence[str], done: Sequence[str] = ()
    ) -> None:
        """Adds the differences of one kind; names in `done` were compared before."""
        rest = {name: value for name, value in got.items() if name not in done}
        found = parity.compare(kind, rest, expected, order, lambda name: self._limit(kind, name))
        self._extend(kind, got, expected, found)

    def _extend(self, kind: str, got: spec.Arrays, expected: spec.Arrays, found: list[parity.Difference]) -> None:
        self.differences += found
        self.seen[kind] = (got, expected)

    def _causes(self, first: parity.Difference) -> list[str]:
        got, expected = (side.get(first.name) for side in self.seen[first.kind])
        found = causes.likely_causes(first.kind, first.name, got, expected, self.buffers.get(first.name))
        if first.kind == "update" and got is not None and expected is not None and got.shape == expected.shape:
            return self._variants(first.name, got) or found
        return found

    def _variants(self, name: str, got: np.ndarray) -> list[str]:
        """Wrong optimizers whose first update is the one that was got."""
        p, g = np.asarray(self.parameters[name], np.float64), self.reference.oracle.gradients[name]
        variants = optimizers.wrong_first_updates(self.workload.optimizer, p, g)
        errors = {
            text: float(np.median(np.abs(got - delta)) / np.median(np.abs(got))) for text, delta in variants.items()
        }
        return [text for text, error in sorted(errors.items(), key=lambda item: item[1]) if error < 1e-4]

    def result(self, exceptions: dict[str, str]) -> parity.GateResult:
        tensors = self.workload.parameters()
        self.facts["parameters"] = sum(int(np.prod(tensor.shape)) for tensor in tensors)
        self.facts["flops_per_step"] = self.workload.flops_per_step()
        return parity.verdict(self.differences, exceptions, self._causes, self.facts)
