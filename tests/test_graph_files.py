"""Captured programs on disk, and run by the neutral runtime; what is wrong with one is told in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.graph_programs import STEP, captured
from xlacompare.core import errors, program
from xlacompare.graph import client, program_file


@pytest.fixture(scope="module")
def reader():
    with client.Client() as made:
        yield made


def test_saved_program_is_the_same_again(tmp_path):
    made = captured(optimised="HloModule x")
    program_file.save(made, tmp_path / "p")
    again = program_file.load(tmp_path / "p")
    assert (again.inputs, again.outputs, again.notes) == (made.inputs, made.outputs, made.notes)
    assert (again.stablehlo, again.bytecode, again.optimised) == (STEP, STEP.encode(), "HloModule x")
    assert all(np.array_equal(one, other) for one, other in zip(again.arguments, made.arguments, strict=True))
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert (summary["donated"], summary["fingerprint"]) == (2, made.fingerprint)
    program_file.save(captured(), tmp_path / "p")
    assert program_file.load(tmp_path / "p").optimised == ""


def test_fingerprint_knows_operations_and_no_names():
    renamed = STEP.replace("%arg0", "%inputs").replace("@step", "@other").replace("%3 ", "%3 ") + '#loc1 = loc("a")\n'
    renamed = renamed.replace("return %3 : tensor<4x16xf32>", 'return %3 : tensor<4x16xf32> loc("f(x)"(#loc1))')
    assert program.fingerprint(renamed) == program.fingerprint(STEP)
    assert program.fingerprint(STEP.replace("tanh", "cosine")) != program.fingerprint(STEP)
    assert program.fingerprint(STEP.replace("stablehlo.add %0, %1", "stablehlo.add %1, %1")) != program.fingerprint(
        STEP
    )


def test_neutral_runtime_computes_what_numpy_does(reader, tmp_path):
    program_file.save(captured(), tmp_path / "p")
    found = reader.ask("run", str(tmp_path / "p"), 3)
    assert found["wrong"] == []
    assert 0 < found["median_s"] < found["compile_s"] + 10
    off = captured()
    off.expected[0][2, 3] += 1e-3
    program_file.save(off, tmp_path / "p")
    assert reader.ask("run", str(tmp_path / "p"), 0)["wrong"] == ["logits"]


def test_update_by_a_gradient_of_nothing_but_rounding(reader, tmp_path):
    """AdamW moves such a parameter by the whole learning rate, in a direction that rounding decides."""
    made = captured()
    parameter = program.Tensor("logits", "parameter", "float32", (4, 16))
    size = np.ones((4, 16), np.float32)
    size[0, 0] = 1e-9  # of the gradient
    old = made.expected[0] + 0.1
    text = STEP.replace("-> tensor<4x16xf32> {", "-> (tensor<4x16xf32>, tensor<4x16xf32>) {", 1)
    text = text.replace(
        "%arg2: tensor<16xf32>)", "%arg2: tensor<16xf32>, %arg3: tensor<4x16xf32>, %old: tensor<4x16xf32>)"
    )
    text = text.replace("return %3 : tensor<4x16xf32>", "return %3, %arg3 : tensor<4x16xf32>, tensor<4x16xf32>")

    def wrong(place: tuple[int, int]) -> list[str]:
        expected = made.expected[0].copy()
        expected[place] += 0.15
        folder = tmp_path / "p"
        extra = (program.Tensor("size", "batch", "float32", (4, 16)), parameter)
        saved = captured(
            stablehlo=text,
            bytecode=text.encode(),
            inputs=(*made.inputs, *extra),
            arguments=[*made.arguments, size, old],
            outputs=(parameter, program.Tensor("mu of logits", "optimizer", "float32", (4, 16))),
            expected=[expected, size],
        )
        program_file.save(saved, folder)
        return reader.ask("run", str(folder), 0)["wrong"]

    assert wrong((0, 0)) == []
    assert wrong((1, 1)) == ["logits"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arguments": []}, "0 values for 3 inputs"),
        ({"inputs": captured().inputs[:2], "arguments": captured().arguments[:2]}, "takes 3 inputs, 2 are described"),
        ({"bytecode": STEP.encode()[:300]}, "not StableHLO"),
        ({"bytecode": b""}, "empty"),
        ({"bytecode": b"ML\xefR\x0dStableHLO_v99.1.0\x00"}, "StableHLO 99.1.0"),
        ({"bytecode": b"ML\xefR\x0dStableHLO_v1.1.0\x00\x01\x02"}, "damaged or cut short"),
    ],
)
def test_program_that_cannot_run_is_one_line(reader, tmp_path, changes, says):
    program_file.save(captured(**changes), tmp_path / "p")
    with pytest.raises(client.ProblemError, match=says) as raised:
        reader.ask("run", str(tmp_path / "p"), 0)
    assert "\n" not in str(raised.value)


def test_value_of_another_shape_is_named(reader, tmp_path):
    other = captured()
    other.arguments[1] = other.arguments[1][:4]
    program_file.save(other, tmp_path / "p")
    with pytest.raises(client.ProblemError, match=r"input 1 \(layer0.kernel\) is float32\[4, 16\]"):
        reader.ask("run", str(tmp_path / "p"), 0)


def test_folder_that_is_none(tmp_path):
    with pytest.raises(errors.BadInputError, match=r"summary.json is missing.*--save_program"):
        program_file.load(tmp_path)
    program_file.save(captured(), tmp_path)
    (tmp_path / "summary.json").write_text('{"format": 99}')
    with pytest.raises(errors.BadInputError, match="format 99"):
        program_file.load(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(errors.BadInputError, match="damaged"):
        program_file.load(tmp_path)
