"""Every planted mistake fails the gate of every framework, and the first name that differs is the table's."""

from __future__ import annotations

import pytest

from tests.frameworks import cases, faults, native
from xlacompare import frameworks
from xlacompare.frameworks import gate


def run_gate(framework, variant, arm):
    workload, made = cases.inputs(variant)
    given = workload, made.parameters, made.buffers, made.batches
    return gate.exact_gate(framework, *given, cases.exact(variant), arm, steps=3)


@pytest.mark.parametrize("variant", sorted({fault.variant for fault in faults.FAULTS.values()}))
def test_without_a_fault_the_gate_passes(framework, variant):
    result = run_gate(framework, variant, native.load(framework.name).GATE_ARM)
    assert result.passed, result.message()


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_fails_at_the_expected_name(framework, name, monkeypatch):
    fault = faults.FAULTS[name]
    wrong = fault.plant(framework, name, monkeypatch)
    result = run_gate(wrong, fault.variant, native.load(framework.name).GATE_ARM)
    assert not result.passed
    assert f"{result.first.kind} {result.first.name}" == fault.first, result.message()
    assert result.message().startswith(f"gate failed at {fault.first}: ")
    assert fault.cause in result.message().partition("likely: ")[2], result.message()


@pytest.mark.parametrize(
    ("framework_name", "arm"), [(name, arm) for name in frameworks.FRAMEWORKS for arm in cases.shared_arms(name)]
)
def test_the_gate_of_an_arm_sees_its_own_program(framework, arm, monkeypatch):
    """The exact gate runs one arm; a mistake in the update of another one is found in the very step that is timed."""
    faults.patches(framework.name)["velocity averages"](monkeypatch)
    workload, made = cases.inputs("mlp of 32")
    step = cases.build(framework, "mlp of 32", arm)
    reference = cases.reference("mlp of 32", "float32")
    result = gate.arm_gate(step, workload, made.parameters, made.buffers, reference, "float32", 3)
    step.close()
    assert f"{result.first.kind} {result.first.name}" == "update layer0.kernel", result.message()
    assert "momentum sense" in result.message()


def test_every_patch_is_of_a_fault(framework_name):
    """None is left over, none is missing."""
    patched = {name for name, fault in faults.FAULTS.items() if fault.sees is None}
    assert set(faults.patches(framework_name)) == patched
