"""The self-test of the fence accepts each framework's own fence and rejects what only looks like one.

Rejections are tried on steps whose work outlasts their dispatch (`native.asynchronous_step`). Shares and ratios are
asserted, never seconds.
"""

from __future__ import annotations

import pytest

from tests.frameworks import cases, native
from xlacompare.core import fence, timing

STEPS = 4  # of the short run; the long one has four times as many


class Fenced:
    """A step with `fence` for its own `synchronize`."""

    def __init__(self, step, fence):
        self.run, self.loss, self.synchronize = step.run, step.loss, fence


@pytest.fixture
def step(framework):
    built = cases.build(framework, "mlp of 1024", native.load(framework.name).GATE_ARM)
    timing.warm_up(built, 0, framework.compile_count)
    yield built
    built.close()


@pytest.fixture
def asynchronous_step(framework):
    made = native.load(framework.name).asynchronous_step(framework)
    timing.warm_up(made, 0, framework.compile_count)
    return made


@pytest.mark.quiet
def test_the_own_fence_passes(step):
    report = fence.self_test(step, STEPS)
    assert report.passed, report


@pytest.mark.quiet
def test_false_fences_are_rejected(framework, asynchronous_step):
    for name, false_fence in native.load(framework.name).false_fences().items():
        report = fence.self_test(Fenced(asynchronous_step, false_fence), STEPS)
        assert not report.passed, f"{name}: {report}"
        assert report.late_share > fence.MAX_LATE_SHARE, f"{name}: {report}"
        assert "returned before the work was done" in report.reason
    report = fence.self_test(asynchronous_step, STEPS)
    assert report.passed, f"with its own fence, or the rejections would mean nothing: {report}"


@pytest.mark.quiet
def test_a_wrong_value_is_rejected(step):
    """The value that the first short run leaves is known from a run before."""
    step.reset()
    for index in range(STEPS):
        step.run(index)
    value = step.loss()
    for expected, passed in ((value, True), (value * 1.1, False)):
        step.reset()
        report = fence.self_test(step, STEPS, expected=expected)
        assert report.passed == passed, report
