"""Captured programs in JAX's XLA, and what two programs spend their time on."""

from __future__ import annotations

import pytest

from experiments.planted_jax import arms as planted_arms
from experiments.planted_jax import framework as planted
from tests.frameworks import cases, replays
from xlacompare import frameworks


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("jax")


def test_foreign_program(adapter, reader, tmp_path):
    replays.check_foreign(adapter, reader, tmp_path)


def test_own_program_and_what_it_spends_its_time_on(adapter, reader, tmp_path):
    folders = []
    for variant in ("mlp", "transformer of 2"):
        replays.own(adapter, variant, reader, tmp_path / variant).finish(rebuild=False)
        folders.append(str(tmp_path / variant))
    found = reader.ask("costs", *folders)
    assert all(seconds > 0 for seconds in found["total_s"])
    seconds = [sum(entry["seconds"][side] for entry in found["entries"]) for side in (0, 1)]
    assert all(one <= total * 1.001 for one, total in zip(seconds, found["total_s"], strict=True))
    dots = [entry for entry in found["entries"] if entry["what"].startswith("dot")]
    assert sum(entry["seconds"][1] for entry in dots) > 0
    assert any("attention" in layer for entry in dots for layer in entry["layers"])
    gaps = [abs(entry["seconds"][0] - entry["seconds"][1]) for entry in found["entries"]]
    assert gaps == sorted(gaps, reverse=True)


def test_planted_transposes_are_in_the_program_and_change_no_value():
    """Of the experiment `planted_bars`: alive after XLA's passes, and the step's losses are the same."""
    workload, inputs = cases.inputs("mlp")
    before, after, losses = [], [], []
    for pairs in (0, 2):
        given = (inputs.parameters, inputs.buffers, inputs.batches)
        settings = {planted_arms.TRANSPOSES: pairs}
        step = planted.Adapter().build(workload, *given, "float32", "compiled", settings)
        captured = frameworks.capture("jax", step)
        before.append(captured.stablehlo.count("stablehlo.transpose"))
        after.append(captured.optimised.count("tanh("))
        losses.append([])
        for index in range(3):
            step.run(index)
            losses[-1].append(step.loss())
        step.close()
    assert before[1] - before[0] == 2
    assert after[1] - after[0] >= 2, "XLA dropped what was planted"
    assert losses[0] == losses[1]
