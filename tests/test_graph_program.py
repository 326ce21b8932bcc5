"""Census and diff of small programs, which XLA reads in a child process; and the command."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests import conftest
from tests.graph_programs import CALLED, LOOP, STEP, captured
from xlacompare import program as command
from xlacompare.graph import client, diff, hlo_text, modules, program_file, work


@pytest.fixture(scope="module")
def reader():
    with client.Client() as made:
        yield made


@pytest.fixture
def compared(reader, tmp_path):
    """Entries of the diff of two programs in text."""

    def run(left: str, right: str) -> dict:
        (tmp_path / "a").write_text(left)
        (tmp_path / "b").write_text(right)
        return reader.ask("compare", str(tmp_path / "a"), str(tmp_path / "b"), "stablehlo")

    return run


def test_census_of_stablehlo(reader):
    found = reader.ask("count_stablehlo", STEP)
    assert found["flops"] == 2 * 4 * 8 * 16
    assert found["opcodes"]["dot"] == found["opcodes"]["tanh"] == 1
    assert found["heavy"][0]["shapes"] == "f32[4,8] x f32[8,16] -> f32[4,16]"
    four = 4 * (4 * 16)
    assert found["bytes"] == (4 * 8 + 8 * 16) * 4 + four + 16 * 4 + four + 3 * four + 2 * four


def test_census_enters_calls_and_loops(reader):
    assert reader.ask("count_stablehlo", CALLED)["opcodes"]["add"] == 1
    found = reader.ask("count_hlo", LOOP)
    assert found["opcodes"]["dot"] == 5
    assert found["flops"] == 5 * 2 * 8**3
    assert found["opcodes"]["compare"] == 6  # the condition is asked once more
    unknown = reader.ask("count_hlo", LOOP.replace("known_trip_count", "guess"))
    assert (unknown["opcodes"]["dot"], unknown["unknown_trips"] > 0) == (1, True)


def test_census_sees_widened_operands(reader):
    text = STEP.replace("%arg0: tensor<4x8xf32>", "%narrow: tensor<4x8xbf16>").replace(
        "    %0 =", "    %arg0 = stablehlo.convert %narrow : (tensor<4x8xbf16>) -> tensor<4x8xf32>\n    %0 ="
    )
    found = reader.ask("count_stablehlo", text)
    assert found["heavy"][0]["promoted_from"] == "bf16"
    assert found["converts"] == {"bf16 -> f32": 1}
    assert reader.ask("count_stablehlo", STEP)["heavy"][0]["promoted_from"] == ""


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "hole"), [(8, 3, 1, 1, 1), (8, 3, 2, 1, 1), (4, 3, 1, 2, 2), (5, 1, 1, 0, 1)]
)
def test_flops_of_a_convolution(size, kernel, stride, pad, hole):
    """Against a count of the products that an explicit loop makes, zeros that were put in left out."""
    wide = np.zeros((size - 1) * hole + 1 + 2 * pad, dtype=int)
    wide[pad : len(wide) - pad : hole] = 1
    starts = range(0, len(wide) - kernel + 1, stride)
    products = sum(int(wide[start : start + kernel].sum()) for start in starts)
    result = len(starts)
    line = (
        f"%c = f32[2,{result},{result},7] convolution(%x, %k), window={{size={kernel}x{kernel} "
        f"stride={stride}x{stride} pad={pad}_{pad}x{pad}_{pad} lhs_dilate={hole}x{hole}}}, dim_labels=b01f_01io->b01f"
    )
    item = hlo_text.instruction(line, "c", ("x", "k"))
    given = [
        hlo_text.instruction(f"%x = f32[2,{size},{size},3] parameter(0)", "x", ()),
        hlo_text.instruction(f"%k = f32[{kernel},{kernel},3,7] parameter(1)", "k", ()),
    ]
    home = modules.Computation("main", (*given, item))
    assert work.flops(home, item) == 2 * 2 * 3 * 7 * products**2


def test_same_program_under_other_names_and_in_another_order(compared):
    found = compared(STEP, CALLED)
    assert found["entries"] == []
    assert found["same"] == found["operations"][0] == 4


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("DEFAULT, DEFAULT", "HIGHEST, HIGHEST", "precision"),
        ("f32", "bf16", "dtype"),
        ("tensor<4x", "tensor<6x", None),
    ],
)
def test_operation_that_differs(compared, old, new, kind):
    found = compared(STEP, STEP.replace(old, new))
    dot = [entry for entry in found["entries"] if entry["what"].startswith("dot")]
    if kind is None:  # another amount of work: not the same operation
        assert {entry["kind"] for entry in dot} == {"only in A", "only in B"}
    else:
        assert [(entry["kind"], list(entry["changes"])) for entry in dot] == [("changed", [kind])]
    assert found["entries"][0] == dot[0]  # the most FLOPs come first


def test_turned_operand_is_a_change_of_dimension_numbers(compared):
    turned = STEP.replace("8x16", "16x8").replace("[1] x [0]", "[1] x [1]")
    (entry,) = compared(STEP, turned)["entries"]
    assert entry["kind"] == "changed"
    assert set(entry["changes"]) == {"dimension numbers", "order of axes"}


def test_planted_transposes_and_adds_are_named(compared):
    extra = """    %t = stablehlo.transpose %2, dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
    %d = stablehlo.add %t, %t : tensor<16x4xf32>
    %u = stablehlo.transpose %d, dims = [1, 0] : (tensor<16x4xf32>) -> tensor<4x16xf32>
    %3 = stablehlo.tanh %u"""
    found = compared(STEP, STEP.replace("    %3 = stablehlo.tanh %2", extra))
    named = [(entry["kind"], entry["what"].split()[0]) for entry in found["entries"]]
    assert sorted(named) == [("only in B", "add"), ("only in B", "transpose"), ("only in B", "transpose")]
    assert sum(entry["count"] for entry in found["entries"]) == 3
    assert found["same"] == 4


def test_epsilon_that_differs_is_seen(compared):
    def with_constant(value: str) -> str:
        """The step with a value added before the end."""
        constant = f"    %e = stablehlo.constant dense<{value}> : tensor<4x16xf32>\n"
        added = "    %f = stablehlo.add %2, %e : tensor<4x16xf32>\n    %3 ="
        return STEP.replace("    %3 =", constant + added).replace("tanh %2", "tanh %f")

    assert compared(with_constant("1.0e-05"), with_constant("0.00001"))["entries"] == []
    (entry,) = compared(with_constant("1.0e-05"), with_constant("1.0e-06"))["entries"]
    assert entry["changes"] == {"constants": "constants 1e-05 -> 1e-06"}


def test_layers_come_from_the_inputs(reader, tmp_path):
    for name, text in (("a", STEP), ("b", STEP.replace("DEFAULT, DEFAULT", "HIGHEST, HIGHEST"))):
        program_file.save(captured(bytecode=text.encode(), stablehlo=text), tmp_path / name)
    found = reader.ask("compare", str(tmp_path / "a"), str(tmp_path / "b"), "stablehlo")
    assert found["entries"][0]["layers"] == ["layer0"]


def long_program(length: int) -> modules.Module:
    array = (modules.Array("f32", (16,)),)
    items = [modules.Instruction("p", "parameter", array, (), {}, literal="0")]
    for place in range(length):
        opcode = ("add", "multiply", "tanh", "maximum", "negate")[place % 5]
        reads = (items[-1].name, items[max(0, place - 7)].name)[: 1 + (opcode not in ("tanh", "negate"))]
        items.append(modules.Instruction(f"i{place}", opcode, array, reads, {}, root=place == length - 1))
    return modules.Module("long", {"main": modules.Computation("main", tuple(items))}, "main")


@pytest.mark.parametrize(("opcode", "same"), [("add", True), ("subtract", False)])
def test_order_of_operands_means_nothing_to_a_sum(opcode, same):
    def surroundings(reads: tuple[str, str]) -> int:
        array = (modules.Array("f32", (16,)),)
        items = [
            modules.Instruction("p", "parameter", array, (), {}, literal="0"),
            modules.Instruction("t", "tanh", array, ("p",), {}),
            modules.Instruction("n", "negate", array, ("p",), {}),
            modules.Instruction("o", opcode, array, reads, {}, root=True),
        ]
        module = modules.Module("m", {"main": modules.Computation("main", tuple(items))}, "main")
        return diff.operations(module)[-1].surroundings

    assert (surroundings(("t", "n")) == surroundings(("n", "t"))) == same


def test_time_grows_with_the_length_and_not_with_its_square():
    def seconds(length: int) -> float:
        pair = (long_program(length), ()), (long_program(length + 1), ())
        begin = time.process_time()
        assert diff.compare(*pair).same == length
        return time.process_time() - begin

    assert min(seconds(16_000) for _ in range(2)) < 24 * min(seconds(2_000) for _ in range(3))  # 8 times as long


def test_command(tmp_path):
    (tmp_path / "a.mlir").write_text(STEP)
    (tmp_path / "b.mlir").write_text(STEP.replace("DEFAULT, DEFAULT", "HIGHEST, HIGHEST"))
    child = conftest.run_child(["-m", "xlacompare.program", "diff", str(tmp_path / "a.mlir"), str(tmp_path / "b.mlir")])
    assert child.returncode == 0, child.stderr
    assert "1. changed: 1 x dot" in child.stdout
    for words in (["diff", "a"], ["census", str(tmp_path / "none")], []):
        child = conftest.run_child(["-m", "xlacompare.program", *words])
        assert (child.returncode, len(child.stderr.strip().splitlines())) == (2, 1), child.stderr


def test_words_of_the_command():
    assert command.command.words_of(["x", "diff", "a", "--limit=3", "b"]) == (["diff", "a", "b"], ["x", "--limit=3"])
    assert command.number(67_108_864) == "67.1 M"
    assert command.number(12) == "12 "
