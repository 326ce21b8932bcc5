"""torch_xla's programs: captured steps of the main job, and what its collectives are made of."""

from __future__ import annotations

import pytest

from tests.frameworks import cases, programs
from xlacompare import frameworks
from xlacompare.core import errors
from xlacompare.graph import client


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("torch_xla")


@pytest.fixture(scope="module")
def reader():
    with client.Client(240.0) as made:
        yield made


@pytest.mark.parametrize("variant", programs.VARIANTS)
def test_captured_step(adapter, reader, variant, tmp_path):
    made = programs.capture(adapter, variant, tmp_path)
    found = programs.check(reader, variant, tmp_path)
    assert {heavy["dtype"] for heavy in found["heavy"]} == {"f32"}
    # Matched runs ask for the highest; torch_xla gives it to every dot, and to some convolutions only.
    wanted = "{highest,highest}" if adapter.describe()["matmul_precision"] == "highest" else ""
    assert {heavy["precision"] for heavy in found["heavy"] if heavy["opcode"] == "dot"} == {wanted}
    assert {heavy["precision"] for heavy in found["heavy"]} <= {"", wanted}
    assert {item.role for item in made.inputs if not item.name} <= {"constant"}
    assert "xla_dump_to" in " ".join(made.notes)
    with pytest.raises(client.ProblemError, match="no optimised HLO"):
        reader.ask("count", str(tmp_path), "optimised")


def test_step_goes_on_after_a_capture(adapter):
    step = cases.build(adapter, "mlp", "compiled")
    step.run(0)
    before = step.loss()
    frameworks.capture("torch_xla", step)
    step.run(0)
    assert step.loss() == before


def test_eager_has_no_program(adapter):
    step = cases.build(adapter, "mlp", "eager")
    with pytest.raises(errors.UnsupportedError, match="eager"):
        frameworks.capture("torch_xla", step)
