"""The census as a gate: other FLOPs or other communication refuse a cell and name the operation; forms are findings."""

from __future__ import annotations

import dataclasses

import pytest

from tests import report_samples
from xlacompare.core import census, products, work_gate
from xlacompare.workloads import load_workload
from xlacompare.workloads import products as made

DENSE = [*made.dense("layer0", 512, 64, 256, first=True), *made.dense("head", 512, 256, 10)]
JAX, TORCH, XLA = (report_samples.make_cell(name) for name in ("jax", "torch", "torch_xla"))


def counted(kinds, collectives=()) -> census.Census:
    """A census that has these products, and nothing else."""
    heavy = [
        {
            "opcode": kind.opcode,
            "form": kind.form,
            "shapes": kind.shapes,
            "count": 1,
            "flops": kind.flops,
            "layers": [kind.layer],
        }
        for kind in kinds
    ]
    flops = sum(kind.flops for kind in kinds)
    return census.Census(len(heavy), {}, flops, 0, heavy, {}, [], {}, [c.to_dict() for c in collectives], {}, 0)


def judged(**found) -> dict[str, work_gate.Judgement]:
    made = work_gate.judge({report_samples.make_cell(name): value for name, value in found.items()}, DENSE)
    return {cell.framework: judgement for cell, judgement in made.items()}


def test_the_same_products_in_another_order_are_the_same():
    found = judged(jax=counted(DENSE), torch=counted(DENSE[::-1]))
    assert all(judgement == work_gate.Judgement() for judgement in found.values())


def test_an_extra_product_is_named_and_only_its_cell_is_refused():
    found = judged(jax=counted([*DENSE, DENSE[0]]), torch_xla=counted(DENSE), torch=counted(DENSE))
    assert "dot [512,64] x [64,256] [layer0] is run 2 times in jax compiled" in found["jax"].problem
    assert "and 1 time in torch_xla compiled" in found["jax"].problem
    assert "33,554,432" in found["jax"].problem or "FLOP a step" in found["jax"].problem
    assert not found["torch"].problem and not found["torch_xla"].problem


def test_a_product_left_out_is_named():
    found = judged(jax=counted(DENSE), torch=counted(DENSE[1:]))
    assert "is run 0 times in torch compiled and 1 time in jax compiled" in found["torch"].problem
    assert "[layer0]" in found["torch"].problem and not found["jax"].problem


def test_one_framework_alone_is_held_against_the_formula():
    found = judged(jax=counted([*DENSE, DENSE[0]]))
    assert "2 times in jax compiled and 1 time in the workload's formula" in found["jax"].problem


def test_the_operation_with_the_most_flops_at_stake_comes_first():
    small, large = DENSE[2], DENSE[0]
    assert small.flops < large.flops
    problem = judged(jax=counted([*DENSE, small, large]))["jax"].problem
    assert "[512,64] x [64,256]" in problem


def test_the_same_flops_in_another_form_are_a_finding():
    halves = [products.dot(1, 512, 128, 64, layer="layer0")] * 2
    found = judged(jax=counted(DENSE), torch=counted([*halves, *DENSE[1:]]))
    assert not found["torch"].problem and not found["jax"].findings
    assert any("is run 2 times in torch compiled and 0 times" in text for text in found["torch"].findings)


REDUCED = census.LoweredCollective("all-reduce", "f32", 400, 400, groups=((0, 1), (2, 3)), reduction="sum")


def changed(**values) -> census.LoweredCollective:
    return dataclasses.replace(REDUCED, **values)


@pytest.mark.parametrize(
    "same",
    [
        [changed(operand_bytes=100), changed(operand_bytes=300)],  # not combined
        [changed(opcode="reduce-scatter", result_bytes=200)],
        [changed(dtype="f32", promoted_from="bf16", operand_bytes=400), None],
        [changed(operand_bytes=200, trips=2)],
        [changed(groups=((0, 1),))],  # what rank 0's own record has
    ],
)
def test_the_same_communication_in_another_form(same):
    other = [REDUCED]
    if same[-1] is None:  # bfloat16 as it is, against what XLA:CPU widens
        same, other = same[:1], [changed(dtype="bf16", operand_bytes=200)]
    found = judged(jax=counted(DENSE, other), torch=counted(DENSE, same))
    assert not found["jax"].problem and not found["torch"].problem
    number_or_form = len(same) != 1 or same[0].opcode != "all-reduce" or same[0].dtype != other[0].dtype
    assert bool(found["torch"].findings) == number_or_form


def test_a_padded_all_reduce_is_a_gather():
    gather = census.LoweredCollective("all-gather", "f32", 100, 400)
    padded = census.LoweredCollective("all-reduce", "f32", 400, 400, reduction="sum", source="pad + x")
    assert work_gate.meaning([gather.to_dict()]) == work_gate.meaning([padded.to_dict()])


def test_all_ranks_listed_are_all_ranks():
    found = judged(jax=counted(DENSE, [changed(groups=((0, 1, 2, 3),))]), torch=counted(DENSE, [changed(groups=())]))
    assert not found["jax"].problem and not found["torch"].problem


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ([], "is 0 bytes in torch compiled and 400 in jax compiled"),
        ([changed(operand_bytes=404)], "is 404 bytes in torch compiled and 400"),
        ([changed(dtype="bf16", operand_bytes=200)], "bytes"),
        ([changed(groups=((0, 2), (1, 3)))], "bytes"),
        ([changed(opcode="all-gather")], "bytes"),
    ],
)
def test_other_communication_refuses_both(other, says):
    found = judged(jax=counted(DENSE, [REDUCED]), torch=counted(DENSE, other))
    assert says in found["torch"].problem and found["jax"].problem == found["torch"].problem


@pytest.mark.parametrize("name", ["mlp", "convnet", "transformer"])
@pytest.mark.parametrize("preset", ["tiny", "small", "base"])
def test_products_are_the_formula_without_inputs_and_padding(name, preset):
    workload = load_workload(name, preset)
    total = sum(product.flops for product in workload.products_per_step())
    assert (total == workload.flops_per_step()) == (name == "transformer")
    assert total <= workload.flops_per_step()
    if name == "mlp":
        fan_in, fan_out = workload.parameters()[0].shape
        assert total == workload.flops_per_step() - 2 * workload.batch_size * fan_in * fan_out
