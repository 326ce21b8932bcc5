"""The fence self-test, on a simulated asynchronous device."""

from __future__ import annotations

import pytest

from tests.test_timing import Machine
from xlacompare.core import fence


class Device(Machine):
    """Adds a host read, which waits for the work and costs `read_s`."""

    def __init__(self, waits: bool, read_s: float = 0.01, value: float = 5.0, **kwargs) -> None:
        super().__init__(**kwargs)
        self.waits, self.read_s, self.value = waits, read_s, value

    def synchronize(self) -> None:
        if self.waits:
            super().synchronize()

    def loss(self) -> float:
        super().synchronize()
        self.now += self.read_s
        return self.value


def test_a_fence_that_waits_passes():
    device = Device(True, dispatch_s=0.1, work_s=1.0)
    report = fence.self_test(device, 4, clock=device.clock, expected=5.0)
    assert report.passed and report.reason == ""
    assert report.growth == pytest.approx(4, rel=0.1)
    assert report.late_share == 0


def test_a_clock_without_synchronisation_is_rejected():
    device = Device(False, dispatch_s=0.1, work_s=1.0)
    report = fence.self_test(device, 4, clock=device.clock)
    assert not report.passed
    assert "returned before the work was done" in report.reason
    assert report.late_share > 0.5


def test_a_fence_that_waits_for_nothing_of_the_steps_is_rejected():
    device = Device(True, dispatch_s=0.0, work_s=0.0)
    device.now_per_fence = 0

    def constant() -> None:
        device.now += 2.0

    device.synchronize = constant  # takes a while, but the same for any number of steps
    report = fence.self_test(device, 4, clock=device.clock)
    assert not report.passed and "does not wait for the steps" in report.reason


def test_a_wrong_value_is_rejected():
    device = Device(True, dispatch_s=0.1, work_s=1.0, value=4.0)
    report = fence.self_test(device, 4, clock=device.clock, expected=5.0)
    assert not report.passed and "expected 5.0" in report.reason


def test_the_cost_of_a_read_is_not_taken_for_work_left_over():
    device = Device(True, dispatch_s=0.1, work_s=1.0, read_s=50.0)
    assert fence.self_test(device, 4, clock=device.clock).passed
