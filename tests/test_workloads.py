"""Names, shapes, data, formulas, optimizers and archives of the workloads."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from xlacompare import workloads
from xlacompare.core import errors
from xlacompare.workloads import archive, data, layout, optimizers, oracle, spec, tape

ALL = [(name, preset) for name in workloads.WORKLOADS for preset in workloads.PRESETS]


def tiny(name):
    return workloads.load_workload(name, "tiny")


@pytest.fixture(params=workloads.WORKLOADS)
def workload(request):
    return tiny(request.param)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("cnn", "tiny"), "cnn"),
        (("mlp", "huge"), "huge"),
        (("mlp", "tiny", 0), "batch size"),
        (("mlp", "tiny", -3), "batch size"),
        (("mlp", "tiny", None, "lion"), "lion"),
    ],
)
def test_bad_input_is_named(arguments, word):
    with pytest.raises(errors.BadInputError, match=word):
        workloads.load_workload(*arguments)


def test_batch_size_and_optimizer_can_be_chosen():
    chosen = workloads.load_workload("mlp", "tiny", 3, "adamw")
    assert chosen.batches(0, 1)[0]["inputs"].shape == (3, 64)
    assert chosen.optimizer.name == "adamw"


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_tensors_are_well_formed(name, preset):
    workload = workloads.load_workload(name, preset)
    tensors = [*workload.parameters(), *workload.buffers()]
    names = [tensor.name for tensor in tensors]
    assert len(set(names)) == len(names)
    assert {tensor.kind for tensor in tensors} <= set(layout.LAYOUTS)
    assert {n.rsplit(".", 1)[-1] for n in names} <= {"kernel", "bias", "scale", "embedding", "mean", "var"}
    assert workload.activation_names()[-1] == "logits"
    assert (workload.name, workload.preset) == (name, preset)
    assert pickle.loads(pickle.dumps(workload)) == workload


@pytest.mark.parametrize(
    ("name", "count"),
    [("convnet", 25_557_032), ("transformer", 124_439_808)],  # ResNet-50 and GPT-2 124M, as published
)
def test_base_has_the_published_parameter_count(name, count):
    assert data.count_elements(workloads.load_workload(name, "base").parameters()) == count


def test_base_convnet_has_the_published_flops():
    """ResNet-50: 4.09e9 multiply-adds an image (torchvision's table says 4.09 GFLOPS)."""
    base = workloads.load_workload("convnet", "base")
    assert base.flops_per_step() / (6 * base.batch_size) == pytest.approx(4.09e9, rel=2e-3)


def test_only_the_images_of_base_are_synthetic():
    assert [case for case in ALL if workloads.load_workload(*case).synthetic] == [("convnet", "base")]


def test_initial_values_match_the_specification(workload):
    for tensors, values in (
        (workload.parameters(), workload.initial_parameters(0)),
        (workload.buffers(), workload.initial_buffers()),
    ):
        assert {t.name: t.shape for t in tensors} == {n: v.shape for n, v in values.items()}
        assert all(value.dtype == np.float32 for value in values.values())


def test_initial_values_are_not_trivial(workload):
    """A lost bias or a swapped scale must show: no parameter or buffer is constant."""
    values = {**workload.initial_parameters(0), **workload.initial_buffers()}
    assert all(value.std() > 0 for value in values.values())


def test_initial_values_follow_the_seed(workload):
    one, again, other = (workload.initial_parameters(seed) for seed in (0, 0, 1))
    assert archive.sha256(one) == archive.sha256(again) != archive.sha256(other)


def test_batches_follow_the_seed_and_differ(workload):
    one, again, other = (workload.batches(seed, 2) for seed in (0, 0, 1))
    assert archive.sha256(one[1]) == archive.sha256(again[1])
    assert len({archive.sha256(batch) for batch in (*one, *other)}) == 4


def test_labels_are_classes(workload):
    config = workload.config
    classes = config.vocab if workload.name == "transformer" else config.classes
    for batch in workload.batches(0, 2):
        assert batch["labels"].dtype == np.int32
        assert batch["labels"].min() >= 0
        assert batch["labels"].max() < classes


def test_digits_are_standardised_and_all_used_once_an_epoch():
    images, labels = data.digits()
    assert images.shape == (1797, 8, 8, 1)
    assert abs(images.mean()) < 1e-6
    assert images.std() == pytest.approx(1, abs=1e-5)
    drawn = data.draw_digits(0, 599, 3)
    np.testing.assert_array_equal(np.bincount(np.concatenate([b["labels"] for b in drawn])), np.bincount(labels))


def test_more_digits_than_there_are():
    drawn = data.draw_digits(0, 512, 8)
    assert [len(batch["labels"]) for batch in drawn] == [512] * 8


def test_text_is_english_and_labels_are_the_next_byte():
    batch = tiny("transformer").batches(0, 1)[0]
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["labels"][:, :-1])
    assert b"statement" in data.text().tobytes()
    assert len(data.text_fingerprint()) == 64


def test_masks_drop_their_rate_and_keep_the_mean():
    batch = tiny("transformer").batches(0, 1)[0]
    masks = {name: mask for name, mask in batch.items() if name.startswith("mask.")}
    assert {name: mask.shape for name, mask in masks.items()} == tiny("transformer").mask_shapes()
    for mask in masks.values():
        assert mask.dtype == np.float32
        assert set(np.unique(mask)) == {np.float32(0), np.float32(1) / np.float32(0.9)}
        assert mask.mean() == pytest.approx(1, abs=0.01)
    assert len({mask.tobytes() for mask in masks.values()}) == len(masks)


def test_without_dropout_there_are_no_masks():
    base = dataclasses.replace(
        tiny("transformer"), config=dataclasses.replace(tiny("transformer").config, dropout=0.0), batch_size=1
    )
    assert set(base.batches(0, 1)[0]) == {"inputs", "labels"}


def small_shapes():
    """Every structure of every workload (bottleneck and stem pool included) at a size that runs at once."""
    resnet = workloads.load_workload("convnet", "base", 2)
    stages = tuple(dataclasses.replace(stage, width=4, blocks=2) for stage in resnet.config.stages)
    config = dataclasses.replace(resnet.config, image_size=33, stem_width=6, stages=stages, classes=7)
    odd = dataclasses.replace(tiny("transformer"), config=dataclasses.replace(tiny("transformer").config, dropout=0.0))
    return [*(tiny(name) for name in workloads.WORKLOADS), dataclasses.replace(resnet, config=config), odd]


def forward(workload, precision="float64"):
    recorder = tape.Tape(precision)
    made = archive.build(workload, 0, 1)
    leaves = {name: recorder.parameter(value) for name, value in made.parameters.items()}
    return recorder, *workload.forward(recorder, leaves, made.buffers, made.batches[0])


@pytest.mark.parametrize("workload", small_shapes(), ids=lambda w: f"{w.name}-{w.preset}")
def test_formulas_equal_the_count_of_the_tape(workload):
    recorder, loss, updated, taps = forward(workload)
    assert workload.flops_per_step() == 3 * recorder.forward_flops
    copies = {"sgd": 2, "adamw": 3}[workload.optimizer.name]
    elements = data.count_elements(workload.parameters())
    for dtype, wide, narrow in (("float32", 4, 4), ("float64", 8, 8), ("bfloat16", 4, 2)):
        expected = 2 * copies * elements * wide + 2 * recorder.product_elements * narrow
        assert workload.bytes_per_step(dtype) == expected
    assert tuple(taps) == workload.activation_names()
    assert {t.name: t.shape for t in workload.buffers()} == {n: v.shape for n, v in updated.items()}
    assert 1 < float(loss.value) < 20


def test_every_parameter_gets_a_gradient(workload):
    made = archive.build(workload, 0, 1)
    exact = oracle.evaluate(workload, made.parameters, made.buffers, made.batches, 1, "float64")
    assert all(np.abs(gradient).max() > 1e-6 for gradient in exact.gradients.values())


# Optimizers, against loops over plain numbers.


def test_sgd_is_its_definition():
    chosen = spec.OptimizerSpec("sgd", learning_rate=0.1, momentum=0.8, weight_decay=0.3)
    p, state = {"w": np.array([2.0])}, optimizers.initial_state(chosen, {"w": np.array([2.0])})
    plain, v = 2.0, 0.0
    for step, g in enumerate([0.5, -1.0, 0.25]):
        p, state = optimizers.update(chosen, step, p, {"w": np.array([g])}, state)
        v = 0.8 * v + (g + 0.3 * plain)
        plain -= 0.1 * v
        assert p["w"][0] == pytest.approx(plain, rel=1e-15)


def test_adamw_is_its_definition():
    chosen = spec.OptimizerSpec("adamw", learning_rate=0.1, b1=0.8, b2=0.95, eps=1e-2, weight_decay=0.3)
    p, state = {"w": np.array([2.0])}, optimizers.initial_state(chosen, {"w": np.array([2.0])})
    plain, m, v = 2.0, 0.0, 0.0
    for step, g in enumerate([0.5, -1.0, 0.25]):
        p, state = optimizers.update(chosen, step, p, {"w": np.array([g])}, state)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        corrected = m / (1 - 0.8 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
        plain -= 0.1 * (corrected[0] / (np.sqrt(corrected[1]) + 1e-2) + 0.3 * plain)
        assert p["w"][0] == pytest.approx(plain, rel=1e-14)


def test_optimizers_keep_float32():
    for chosen in workloads.OPTIMIZERS.values():
        p = {"w": np.ones(3, np.float32)}
        p, state = optimizers.update(chosen, 0, p, p, optimizers.initial_state(chosen, p))
        assert p["w"].dtype == np.float32
        assert {a["w"].dtype for a in state.values()} == {np.dtype(np.float32)}


# Archives.


def test_an_archive_comes_back(workload, tmp_path):
    made = archive.build(workload, 3, 2)
    fingerprint = archive.save(tmp_path / "a.npz", made)
    loaded = archive.load(tmp_path / "a.npz")
    assert loaded.sha256() == fingerprint == made.sha256()
    assert list(loaded.parameters) == [tensor.name for tensor in workload.parameters()]
    assert list(loaded.buffers) == [tensor.name for tensor in workload.buffers()]
    assert len(loaded.batches) == 2


def test_the_fingerprint_sees_name_dtype_shape_and_value():
    base = {"a": np.zeros(4, np.float32), "b": np.ones(2)}
    variants = [
        base,
        {"c": base["a"], "b": base["b"]},
        {**base, "a": np.zeros(4, np.int32)},
        {**base, "a": np.zeros((2, 2), np.float32)},
        {**base, "a": np.array([0, 0, 0, 1e-30], np.float32)},
    ]
    assert len({archive.sha256(v) for v in variants}) == len(variants)
    assert archive.sha256(base) == archive.sha256(dict(reversed(base.items())))


def test_broken_archives_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "pickle.npz", a=np.array([object()]))
    whole = archive.build(tiny("mlp"), 0, 1)
    archive.save(tmp_path / "cut.npz", whole)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:5000])
    for name in ("text", "pickle", "cut", "missing"):
        with pytest.raises(errors.RecordError, match=name):
            archive.load(tmp_path / f"{name}.npz")
