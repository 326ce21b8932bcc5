"""torch_xla's programs: captured steps of the main job, and what its collectives are made of."""

from __future__ import annotations

import pytest

from tests import conftest
from tests.frameworks import cases, programs
from xlacompare import frameworks
from xlacompare.core import errors
from xlacompare.frameworks.on_torch_xla import arms
from xlacompare.graph import client, program_file


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
    assert arms.DUMP_VARIABLE in " ".join(made.notes)
    with pytest.raises(client.ProblemError, match="no optimised HLO"):
        reader.ask("count", str(tmp_path), "optimised")


OPTIMISED = """
import pathlib, sys
from tests.frameworks import cases
from xlacompare import frameworks
from xlacompare.graph import program_file
adapter = frameworks.load_framework("torch_xla")
for place in range(2):  # the second build finds the program in memory, and compiles nothing
    step = cases.build(adapter, "transformer of 2", "compiled")
    made = frameworks.capture("torch_xla", step)
    program_file.save(made, pathlib.Path(sys.argv[1], str(place)))
    step.close()
"""


def test_optimised_program_is_in_xlas_dump(reader, tmp_path):
    """As a worker of a run that saves programs: fusions and copies of torch_xla's own compiler are counted."""
    environment = {**frameworks.arms("torch_xla").environment("cpu", 1), arms.DUMP_VARIABLE: str(tmp_path / "dumps")}
    child = conftest.run_child(["-c", OPTIMISED, str(tmp_path)], env=environment, timeout=120)
    assert child.returncode == 0, child.stderr
    first, again = (reader.ask("count", str(tmp_path / name), "optimised") for name in "01")
    given = reader.ask("count", str(tmp_path / "0"), "stablehlo")
    assert first == again
    assert first["flops"] == given["flops"] and first["bytes"] < given["bytes"]
    assert first["fusions"] and first["opcodes"]["copy"] and not given["fusions"]
    assert "while it compiled" in " ".join(program_file.load(tmp_path / "0").notes)
    (folder,) = (tmp_path / "dumps").iterdir()
    assert len(list(folder.iterdir())) == 1, "what is not the step's is deleted"


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
