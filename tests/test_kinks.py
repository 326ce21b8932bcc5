"""What a ReLU unit within rounding of zero may cost."""

from __future__ import annotations

import numpy as np

from tests.test_oracle import STEPS, inputs
from xlacompare.workloads import kinks, oracle, tape


def test_undecided_units_are_flipped_and_nothing_else():
    x = np.array([[-1.0, -1e-9, 1e-9, 0.5]])
    gradients = []
    for recorder in (tape.Tape("float64"), kinks.KinkTape(1e-8)):
        leaf = recorder.parameter(x)
        out = recorder.relu(leaf)
        assert np.array_equal(out.value, np.maximum(x, 0))
        recorder.backward(recorder.matmul(out, recorder.parameter(np.ones((4, 1)))))
        gradients.append(leaf.gradient)
    assert np.array_equal(gradients[0], [[0, 0, 1, 1]])
    assert np.array_equal(gradients[1], [[0, 1, 0, 1]])


def test_kinks_widen_only_what_a_flip_reaches():
    """The convnet has units near zero, the transformer has no kink at all."""
    kinked = {}
    for name in ("convnet", "transformer"):
        workload, made = inputs(name)
        reference = oracle.references(workload, made.parameters, made.buffers, made.batches, "float32", STEPS)
        kinked[name] = reference.kink_errors
    assert max(kinked["transformer"]["trace"].values()) == 0
    assert kinked["convnet"]["loss"]["loss"] == 0  # the forward pass of the first step knows no flip
    assert 1e-6 < kinked["convnet"]["trace"]["step3"] < 1e-2
