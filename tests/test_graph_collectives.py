"""The census of collectives, on programs that JAX, torch_xla and a hand wrote; parsed by XLA in a child process."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

from xlacompare.core import census
from xlacompare.graph import client, hlo_text, modules

SAMPLES = pathlib.Path(__file__).parent / "programs"
ALL = ((0, 1, 2, 3),)


@pytest.fixture(scope="module")
def reader():
    with client.Client() as made:
        yield made


def found(reader, name: str) -> list[census.LoweredCollective]:
    answer = reader.collectives([(SAMPLES / f"{name}.hlo").read_text()])[0]
    assert not isinstance(answer, str), answer
    return answer


def only(reader, name: str) -> census.LoweredCollective:
    answers = found(reader, name)
    assert len(answers) == 1, answers
    return answers[0]


def test_bfloat16_that_the_compiler_widened(reader):
    item = only(reader, "jax_psum_bf16")
    assert (item.opcode, item.dtype, item.promoted_from) == ("all-reduce", "f32", "bf16")
    assert (item.operand_bytes, item.groups, item.reduction) == (64, ALL, "sum")
    assert item.source.endswith("/psum")


def test_convert_on_one_side_is_no_promotion(reader):
    text = (SAMPLES / "jax_psum_bf16.hlo").read_text().replace("_promoted", "")
    assert reader.collectives([text])[0][0].promoted_from == "bf16"  # converts on both sides
    entry = text.index("ENTRY")
    kept = text[:entry] + text[entry:].replace(
        "ROOT %wrapped_convert.1 = bf16[16]{0} fusion(%psum.8), kind=kLoop, calls=%wrapped_convert_computation.1",
        "ROOT %kept = f32[16]{0} negate(%psum.8)",
    ).replace("-> bf16[16]", "-> f32[16]")
    kept = kept.replace("->bf16[16]{0}}", "->f32[16]{0}}")
    assert reader.collectives([kept])[0][0].promoted_from == ""


def test_two_sums_merged_into_one(reader):
    item = only(reader, "jax_two_psums")
    assert (item.operands, item.operand_bytes, item.groups) == (2, 128, ((0, 2), (1, 3)))


def test_loop_counts_its_trips(reader):
    item = only(reader, "jax_psum_in_loop")
    assert (item.trips, item.operand_bytes) == (5, 64)
    assert item.computation != "main"
    text = (SAMPLES / "jax_psum_in_loop.hlo").read_text().replace("known_trip_count", "unknown")
    assert reader.collectives([text])[0][0].trips is None


def test_all_to_all_in_chunks_is_one_buffer(reader):
    item = only(reader, "jax_all_to_all")
    assert (item.opcode, item.operands, item.operand_bytes, item.groups) == ("all-to-all", 1, 64, ALL)


def test_permutation(reader):
    item = only(reader, "jax_ppermute")
    assert (item.opcode, item.pairs) == ("collective-permute", ((0, 1), (1, 2), (2, 3), (3, 0)))


def test_gather_of_torch_xla_is_a_padded_all_reduce(reader):
    item = only(reader, "torch_xla_all_gather")
    assert (item.opcode, item.source, item.operand_bytes, item.reduction) == ("all-reduce", "pad", 64, "sum")


def test_token_of_torch_xla_is_no_operand(reader):
    items = found(reader, "torch_xla_all_reduce")
    assert [(item.dtype, item.operands, item.operand_bytes) for item in items] == [
        ("f32", 1, 32), ("bf16", 1, 16), ("f32", 1, 32),
    ]  # fmt: skip


def test_scalar_that_is_read_is_an_operand(reader):
    text = (SAMPLES / "torch_xla_all_gather.hlo").read_text()
    for old, new in (
        ("%get-tuple-element.13)", "%get-tuple-element.13, f32[] %get-tuple-element.14)"),
        ("ROOT %tuple.15 = (f32[16]{0})", "ROOT %tuple.15 = (f32[16]{0}, f32[])"),
        ("-> (f32[16])", "-> (f32[16], f32[])"),
        ("->(f32[16]{0})", "->(f32[16]{0}, f32[])"),
    ):
        assert old in text
        text = text.replace(old, new)
    assert reader.collectives([text])[0][0].operands == 2


def test_start_and_done_are_one(reader):
    items = found(reader, "async")
    assert all(item.asynchronous for item in items)
    assert [(item.opcode, item.operand_bytes, item.result_bytes, item.groups, item.pairs) for item in items] == [
        ("all-reduce", 256, 256, ((0, 1), (2, 3)), ()),
        ("all-gather", 256, 1024, ALL, ()),
        ("collective-permute", 256, 256, (), ((0, 1), (1, 0))),
        ("reduce-scatter", 256, 128, ((0, 2), (1, 3)), ()),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [("hello", "not HLO"), ("HloModule x\nENTRY %a { ROOT %x = f32[2] foo() }", "foo"), ("", "not HLO")],
)
def test_what_is_no_hlo_is_one_line(reader, text, says):
    problem, fine = reader.collectives([text, (SAMPLES / "jax_ppermute.hlo").read_text()])
    assert says in problem
    assert "\n" not in problem
    assert len(fine) == 1


def test_without_jaxlib_the_problem_is_told(tmp_path, monkeypatch):
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("raise ModuleNotFoundError(name='jaxlib')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with client.Client() as alone:
        assert "jaxlib is not installed" in alone.collectives(["HloModule x"])[0]


def test_child_that_dies_or_hangs_is_replaced(reader, tmp_path, monkeypatch):
    text = (SAMPLES / "jax_ppermute.hlo").read_text()
    with client.Client() as made:
        made.collectives([text])
        made._process.kill()
        made._process.wait()
        assert "died" in made.collectives([text])[0]
        assert len(made.collectives([text])[0]) == 1
        os.kill(made._process.pid, signal.SIGSTOP)  # else a quick child has answered before anyone looks
        made._deadline_s = 0.0
        assert "did not answer" in made.collectives([text])[0]
        made._deadline_s = 60.0
        assert len(made.collectives([text])[0]) == 1
    made.close()


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ()),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("[4,2]<=[2,2,2]T(1,0,2)", ((0, 1), (4, 5), (2, 3), (6, 7))),
        ("[1,4]<=[4]", ALL),
    ],
)
def test_groups(text, groups):
    assert hlo_text.groups(text) == groups


def test_line_of_an_instruction():
    line = (
        "ROOT %c.1 = (f32[2,3]{1,0:T(8,128)}, pred[], f8e4m3fn[4]) custom-call(%a, /*index=1*/%b), dims={0,{1,2}}, "
        'custom_call_target="x,y(", metadata={op_name="jit(f)/a, b" source_file="x"}'
    )
    item = hlo_text.instruction(line, "c.1", ("a", "b"), root=True)
    assert item.opcode == "custom-call"
    assert [str(array) for array in item.arrays] == ["f32[2,3]", "pred[]", "f8e4m3fn[4]"]
    assert item.bytes == 24 + 1 + 4
    assert dict(item.attributes) == {"dims": "{0,{1,2}}", "custom_call_target": '"x,y("'}
    assert item.source == "jit(f)/a, b"


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 16), ("s4", 4), ("pred", 8), ("c128", 128), ("token", 0)])
def test_bits(dtype, bits):
    assert modules.bits(dtype) == bits
