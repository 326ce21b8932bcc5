"""The census from torch's dispatcher: types, copies, convolutions, collectives; and what a run makes of it."""

from __future__ import annotations

import collections
import json
import pathlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn import functional as nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests import conftest
from tests.frameworks import cases
from xlacompare import frameworks, workloads
from xlacompare.core import errors, record
from xlacompare.frameworks.on_torch import arrays, counters, dispatched, models


def counted(function, *given):
    with dispatched.Count() as count:
        function(*given)
    return count.census()


def test_bytes_copies_and_types():
    x, y = torch.ones(8, 4), torch.ones(8, 4)
    assert counted(torch.add, x, y).bytes == 3 * 128
    assert counted(lambda: x.add_(y)).bytes == 3 * 128
    assert counted(lambda: torch._foreach_add_([x], [y])).bytes == 3 * 128
    assert counted(lambda: x.t()).bytes == 0
    found = counted(lambda: x.t().contiguous())
    assert [(move["opcode"], move["shapes"], move["bytes"]) for move in found.moves] == [
        ("copy", "f32[4,8] -> f32[4,8]", 256),
        ("transpose", "f32[8,4] -> f32[4,8]", 0),
    ]
    found = counted(lambda: x.to(torch.bfloat16) + y)
    assert found.converts == {"f32 -> bf16": 1, "bf16 -> f32 in aten.add": 1}
    assert counted(lambda: x * torch.tensor(2.0, dtype=torch.float64)).converts == {}, "a scalar widens nothing"
    assert counted(lambda: torch.relu(x)).opcodes == {"aten.relu": 1}


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"padding": 2}, {"dilation": 2, "padding": 1}, {"groups": 2}, {"stride": 2, "padding": 1}],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_count_what_an_explicit_loop_multiplies(options, transposed):
    """Ones convolved with ones, and the gradient of their sum: each result element is its number of products."""
    groups = options.get("groups", 1)
    x = torch.ones(2, 4, 7, 5, requires_grad=True)
    weight = torch.ones((4, 6 // groups, 3, 3) if transposed else (6, 4 // groups, 3, 3), requires_grad=True)
    function = nn.conv_transpose2d if transposed else nn.conv2d
    products = int(function(x, weight, None, **options).sum())
    with dispatched.Count() as count:
        function(x, weight, None, **options).sum().backward()
    found = count.census()
    assert [entry["flops"] for entry in found.heavy] == [2 * products] * 3
    shapes = function(x, weight, None, **options).shape, x.shape, weight.shape
    forms = [tuple(sorted(extent for extent in shape if extent > 1)) for shape in shapes]
    assert sorted(entry["form"] for entry in found.heavy) == sorted(forms)


def test_an_attention_kernel_counts_its_products():
    """Two forward, and backward the scores once more beside the four gradients."""
    q = torch.ones(2, 4, 16, 8, requires_grad=True)
    found = counted(lambda: nn.scaled_dot_product_attention(q, q, q).sum().backward())
    one = 2 * 2 * 4 * 16 * 16 * 8
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in found.opcodes
    assert found.flops == (2 + 5) * one


@pytest.mark.parametrize("name", workloads.WORKLOADS)
@pytest.mark.parametrize("preset", workloads.PRESETS)
def test_products_of_every_preset(name, preset):
    """Without memory or arithmetic: tensors of shape and type alone."""
    workload = workloads.load_workload(name, preset, 4)
    batch = arrays.batch_to_torch(workload.batches(0, 1)[0], "float32")
    batch = {key: tensor.to("meta") for key, tensor in batch.items()}
    with torch.device("meta"):
        model = models.make(workload, "float32")
        with dispatched.Count() as count:
            models.loss_of(model(batch)[0], batch["labels"]).backward()
    expected = collections.Counter()
    for product in workload.products_per_step():
        expected[product.opcode, product.form, product.flops] += 1
    kinds = collections.Counter()
    for entry in count.census().heavy:
        kinds[entry["opcode"], tuple(entry["form"]), entry["flops"] // entry["count"]] += entry["count"]
    assert kinds == expected


@pytest.fixture
def four_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield dist.new_group([0, 2])
    dist.destroy_process_group()


def test_collectives(four_ranks):
    x, y = torch.ones(8), torch.ones(32, dtype=torch.bfloat16)

    def run():
        dist.all_reduce(x, group=four_ranks)
        dist.all_gather_into_tensor(y, y[:8])
        dist.reduce_scatter_tensor(y[:8], y)
        dist.all_reduce_coalesced([x, x])
        (functional.all_reduce(x, "sum", four_ranks) + 1).sum()

    whole = ((0, 1, 2, 3),)
    found = [
        (op["opcode"], op["dtype"], op["operand_bytes"], op["result_bytes"], op["operands"], op["groups"])
        for op in counted(run).collectives
    ]
    assert found == [
        ("all-reduce", "f32", 32, 32, 1, ((0, 2),)),
        ("all-gather", "bf16", 16, 64, 1, whole),
        ("reduce-scatter", "bf16", 64, 16, 1, whole),
        ("all-reduce", "f32", 64, 64, 2, whole),
        ("all-reduce", "f32", 32, 32, 1, ((0, 2),)),
    ]


def test_gradients_that_ddp_reduces_are_seen(tmp_path):
    """Its hooks run in the backward pass; a world of one over gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn_parallel(torch.nn.Linear(8, 4))
        found = counted(lambda: model(torch.ones(2, 8)).sum().backward())
    finally:
        dist.destroy_process_group()
    assert [(op["opcode"], op["operand_bytes"]) for op in found.collectives if op["opcode"] == "all-reduce"] == [
        ("all-reduce", 4 * (8 * 4 + 4))
    ]


def nn_parallel(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def test_uncompiled_for_the_count_alone():
    """The stance is put back, nothing is compiled again, and torch.optim believes what it did before."""
    framework = frameworks.load_framework("torch")
    step = cases.shared_step(framework, "captured")
    before = framework.compile_count()
    found = frameworks.count("torch", step).census
    step.run(0)
    assert framework.compile_count() == before and not torch.compiler.is_compiling()
    with counters.not_compiled():
        assert torch.compiler.is_compiling()
    assert {entry["layers"][0] for entry in found.heavy} == {"layer0", "layer1", "head"}


def test_a_run_refuses_the_extra_product_and_saves_the_census(tmp_path):
    """Exit code 3, no time, one line with the operation; `extra_product` is torch with one more product."""
    words = ["-m", "xlacompare.run", "--framework=torch,extra_product", "--compiler=eager", "--workload=mlp"]
    words += ["--batch_size=32", "--cell_s=0.05", "--min_block_s=0.002", "--launches=1", "--num_cores=1"]
    words += [f"--output_dir={tmp_path / 'run'}", f"--save_program={tmp_path / 'programs'}"]
    child = conftest.run_child(words, env={"XLACOMPARE_FRAMEWORKS": "extra_product=tests.extra_product"}, timeout=120)
    assert child.returncode == errors.EXIT_MISMATCH, child.stderr
    made = [item for item in record.read(tmp_path / "run").records if item["kind"] == "cell"]
    by_cell = {(item["cell"]["framework"], item["launch"]): item for item in made}
    assert set(by_cell) == {("torch", 0), ("extra_product", 0)}
    wrong = by_cell["extra_product", 0]
    assert wrong["status"] == wrong["census"]["status"] == "mismatch"
    assert wrong["reason"].startswith(
        "census gate failed: dot f32[32,512] x f32[512,512] -> f32[32,512] [layer1] is run 3 times in "
        "extra_product eager and 2 times in torch eager"
    )
    assert by_cell["torch", 0]["status"] == by_cell["torch", 0]["census"]["status"] == "ok"
    said = " ".join(child.stdout.split())
    assert "is run 3 times in extra_product eager and 2 times in torch eager" in said
    assert "workload's in 1 of 2 cells" in said
    folder = pathlib.Path(by_cell["torch", 0]["program"]["folder"])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stablehlo"]["status"] == by_cell["torch", 0]["program"]["status"] == "unsupported"
    assert summary["census"]["flops"] == by_cell["torch", 0]["census"]["census"]["flops"]
    read = conftest.run_child(["-m", "xlacompare.program", "census", str(folder)])
    assert read.returncode == errors.EXIT_OK and "aten.addmm" in read.stdout, read.stderr
    refused = conftest.run_child(["-m", "xlacompare.program", "run", str(folder)])
    assert refused.returncode == errors.EXIT_BAD_INPUT and "no program" in refused.stderr
