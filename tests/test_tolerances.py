"""Which values a program of a low precision may have: honest ones of either rounding, and no wrong ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from xlacompare import workloads
from xlacompare.core import program, program_values
from xlacompare.workloads import archive, optimizers, oracle, tolerances

CALLED = {"velocity": "trace", "first": "mu", "second": "nu"}
NAMES = ("mlp", "convnet", "transformer")


@pytest.fixture(scope="module", params=NAMES)
def made(request):
    """Workload, its inputs, the bfloat16 reference."""
    workload = workloads.load_workload(request.param, "tiny")
    inputs = archive.build(workload, 0, 1)
    given = (inputs.parameters, inputs.buffers, inputs.batches)
    return workload, inputs, oracle.references(workload, *given, "bfloat16", 1)


def outputs(workload, inputs, run, gradients=None, seen=None) -> dict[str, tuple[str, np.ndarray]]:
    """Output's name -> role and float32 values of a step whose gradients are those of `run`, or others."""
    gradients = run.gradients if gradients is None else gradients
    zero = optimizers.initial_state(workload.optimizer, inputs.parameters)
    updated, state = optimizers.update(workload.optimizer, 0, inputs.parameters, gradients, zero)
    found = {"loss": ("loss", np.asarray(run.losses[0]))}
    found |= {name: ("parameter", value) for name, value in updated.items()}
    found |= {name: ("buffer", value) for name, value in run.updated_buffers.items()}
    for moment, values in state.items():
        found |= {f"{CALLED[moment]} of {name}": ("optimizer", value) for name, value in values.items()}
    return {name: (role, np.asarray(value, np.float32)) for name, (role, value) in found.items()}


def wrong(workload, inputs, reference, own, got, known=True) -> list[str]:
    """Outputs of `got` that are refused, against the framework's `own`."""
    before = [program.Tensor.of(name, "parameter", value) for name, value in inputs.parameters.items()]
    described = [program.Tensor.of(name, role, value) for name, (role, value) in own.items()]
    allowed = tolerances.of_outputs(workload, inputs.parameters, reference) if known else {}
    captured = program.Program("jax", "x", "", b"", "", tuple(before), tuple(described), tolerances=allowed)
    captured.arguments = list(inputs.parameters.values())
    captured.expected = [value for _, value in own.values()]
    found = program_values.judged(captured, [got[name][1] for name in own])
    return [item["name"] for item in found if not item["of_allowed"] <= 1.0]


def test_two_honest_roundings_agree(made):
    """One rounds to bfloat16 at every operation, the other not at all: no two XLA builds are farther apart."""
    workload, inputs, reference = made
    rough = oracle.evaluate(workload, inputs.parameters, inputs.buffers, inputs.batches, 1, "bfloat16")
    own, got = (outputs(workload, inputs, run) for run in (rough, reference.oracle))
    assert wrong(*made, own, got) == []
    assert len(wrong(*made, own, got, known=False)) > len(own) / 2, "float32's rounding alone does not explain it"
    assert not set(own) - set(tolerances.of_outputs(workload, inputs.parameters, reference)), "each has a limit"


def test_wrong_programs_are_refused(made):
    workload, inputs, reference = made
    exact = reference.oracle
    own = outputs(workload, inputs, exact)

    def refused(**changes) -> list[str]:
        gradients = changes.pop("gradients", None)
        return wrong(*made, own, outputs(workload, inputs, dataclasses.replace(exact, **changes), gradients))

    moment = CALLED[next(iter(optimizers.initial_state(workload.optimizer, {})))]
    for name in (workload.parameters()[0].name, workload.parameters()[-1].name):
        for factor in (0.0, 2.0, -1.0):
            off = {**exact.gradients, name: factor * exact.gradients[name]}
            assert f"{moment} of {name}" in refused(gradients=off), (name, factor)
    nothing = {name: 0 * value for name, value in exact.gradients.items()}
    assert set(inputs.parameters) & set(refused(gradients=nothing)), "no update"
    assert refused(losses=exact.losses * 1.1) == ["loss"]
    if exact.updated_buffers:
        assert refused(updated_buffers={name: 2 * value for name, value in exact.updated_buffers.items()})
    rate = dataclasses.replace(workload.optimizer, learning_rate=2 * workload.optimizer.learning_rate)
    twice = outputs(_Other(rate), inputs, exact)
    assert len(set(inputs.parameters) & set(wrong(*made, own, twice))) > len(inputs.parameters) / 2


@dataclasses.dataclass
class _Other:
    optimizer: object
