"""The self-test of the fence accepts each framework's own fence and rejects what only looks like one.

On steps whose work outlasts their dispatch: an mlp with a batch of 1024 examples, in the arm `compiled`, or what
`native` makes of it. Shares and ratios are asserted, never seconds.
"""

from __future__ import annotations

import pytest

from tests.frameworks import cases, native
from xlacompare.core import fence, timing

STEPS = 4  # of the short run; the long one has four times as many


@pytest.fixture
def step(framework):
    built = cases.build(framework, "mlp of 1024", native.load(framework.name).FENCE_ARM)
    timing.warm_up(built, 0, framework.compile_count)
    yield built
    built.close()


@pytest.mark.quiet
def test_the_own_fence_passes(framework, step):
    report = fence.self_test(step, STEPS)
    assert report.passed, report
    assert fence.GROWTH_LOW <= report.growth <= fence.GROWTH_HIGH


@pytest.mark.quiet
def test_false_fences_are_rejected(framework, step):
    loaded = native.load(framework.name)
    false_fences = loaded.false_fences(step)
    assert false_fences
    for name, wrong in false_fences.items():
        report = fence.self_test(wrong, STEPS)
        assert not report.passed, f"{name}: {report}"
        assert report.late_share > fence.MAX_LATE_SHARE, f"{name}: {report}"
        assert "returned before the work was done" in report.reason
    right = loaded.true_fence(step)
    report = fence.self_test(right, STEPS)
    assert report.passed, f"the rejections above would mean nothing: {report}"


@pytest.mark.quiet
def test_a_wrong_value_is_rejected(framework, step):
    """The value that the first short run leaves is known from a run before."""
    step.reset()
    for index in range(STEPS):
        step.run(index)
    value = step.loss()
    for expected, passed in ((value, True), (value * 1.1, False)):
        step.reset()
        report = fence.self_test(step, STEPS, expected=expected)
        assert report.passed == passed, report
