"""Every framework's step does exactly the workload's products; the census gate names extra and missing ones."""

from __future__ import annotations

import collections

import pytest

from tests import report_samples
from tests.frameworks import cases, faults, native, programs
from xlacompare import frameworks
from xlacompare.core import census, work_gate
from xlacompare.frameworks import gate

# What builds in seconds: the same model is counted in another arm of the framework.
CASES = [
    (name, arm, variant)
    for name in frameworks.FRAMEWORKS
    for arm in ("eager", "compiled")
    for variant in programs.VARIANTS
    if variant.partition(" ")[0] in cases.quick(name, arm)
]


def counted(framework, step, reader, tmp_path) -> census.Census:
    found = frameworks.count(framework.name, step)
    if found.census is not None:
        return found.census
    path = tmp_path / "program.mlirbc"
    path.write_bytes(found.bytecode)
    return census.Census.from_dict(reader.ask("count_bytecode", str(path), [item.to_dict() for item in found.inputs]))


def problem_of(framework, variant, arm, reader, tmp_path) -> str:
    workload, _ = cases.inputs(variant)
    step = cases.build(framework, variant, arm)
    cell = report_samples.make_cell(framework.name, arm)
    found = counted(framework, step, reader, tmp_path)
    step.close()
    return work_gate.judge({cell: found}, workload.products_per_step())[cell].problem


@pytest.mark.parametrize(("framework_name", "arm", "variant"), CASES)
def test_products_are_the_workloads_one_by_one(framework, arm, variant, reader, tmp_path):
    """Not only as many FLOPs: the same products, each as often."""
    workload, _ = cases.inputs(variant)
    step = cases.shared_step(framework, arm) if variant == "mlp" else cases.build(framework, variant, arm)
    step.reset()
    step.run(0)
    loss = step.loss()
    compiled = framework.compile_count()
    found = counted(framework, step, reader, tmp_path)
    assert framework.compile_count() == compiled
    expected = collections.Counter((item.opcode, item.form) for item in workload.products_per_step())
    kinds = collections.Counter()
    for entry in found.heavy:
        kinds[entry["opcode"], tuple(entry["form"])] += entry["count"]
    assert kinds == expected
    assert found.flops == programs.flops(variant, workload)
    assert found.bytes > 0 and found.instructions > len(found.heavy) and not found.collectives
    step.reset()
    step.run(0)
    assert step.loss() == loss


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("extra product", "is run 3 times in {} and 2 times in the workload's formula"),
        ("layer left out", "is run 0 times"),
    ],
)
def test_other_work_is_refused_and_named(framework, fault, says, reader, tmp_path, monkeypatch):
    arm = native.load(framework.name).GATE_ARM
    assert problem_of(framework, "mlp of 32", arm, reader, tmp_path) == ""
    faults.work_patches(framework.name)[fault](monkeypatch)
    problem = problem_of(framework, "mlp of 32", arm, reader, tmp_path)
    assert problem.startswith("census gate failed: dot ") and "in the workload's formula" in problem
    assert "512" in problem.partition(" is run ")[0]
    assert says.format(f"{framework.name} {arm}") in problem, problem


def test_the_extra_product_passes_every_gate_of_values(framework, monkeypatch):
    """So that nothing but the census can see it."""
    faults.work_patches(framework.name)["extra product"](monkeypatch)
    workload, made = cases.inputs("mlp of 32")
    given = workload, made.parameters, made.buffers, made.batches
    result = gate.exact_gate(framework, *given, cases.exact("mlp of 32"), native.load(framework.name).GATE_ARM, steps=2)
    assert result.passed, result.message()
