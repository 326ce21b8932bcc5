"""The clock, with a scripted clock and a step that only counts."""

from __future__ import annotations

import pytest

from xlacompare.core import errors, timing


class Machine:
    """A clock and an asynchronous step: dispatch takes `dispatch_s`, work `work_s`, one after the other."""

    def __init__(self, dispatch_s: float, work_s: float, compiles: tuple[int, ...] = ()) -> None:
        self.now, self.ready_at = 100.0, 100.0
        self.dispatch_s, self.work_s = dispatch_s, work_s
        self.compile_at = set(compiles)
        self.compiled, self.indices, self.fences = 0, [], 0

    def clock(self) -> float:
        return self.now

    def run(self, index: int) -> None:
        self.indices.append(index)
        if len(self.indices) in self.compile_at:
            self.compiled += 1
        self.now += self.dispatch_s
        self.ready_at = max(self.ready_at, self.now) + self.work_s

    def synchronize(self) -> None:
        self.fences += 1
        self.now = max(self.now, self.ready_at)

    def count(self) -> int:
        return self.compiled


def test_a_block_has_one_fence_and_hides_dispatch():
    machine = Machine(dispatch_s=1.0, work_s=3.0)
    block = timing.time_block(machine, 4, 7, machine.count, machine.clock)
    assert machine.indices == [7, 8, 9, 10]
    assert machine.fences == 1
    assert block.total_s == pytest.approx(1.0 + 4 * 3.0)  # only the first dispatch shows
    assert block.dispatch_s == pytest.approx(4.0)
    assert block.step_s == pytest.approx(13.0 / 4)


def test_stepwise_shows_the_dispatch_that_a_block_hides():
    machine = Machine(dispatch_s=1.0, work_s=3.0)
    block = timing.time_stepwise(machine, 4, 0, machine.count, machine.clock)
    assert machine.fences == 4
    assert block.total_s == pytest.approx(4 * 4.0)
    assert block.dispatch_s == pytest.approx(4.0)


def test_the_host_part_is_the_cpu_time_of_this_thread():
    machine, cpu = Machine(dispatch_s=1.0, work_s=3.0), iter((10.0, 12.5))
    block = timing.time_block(machine, 4, 0, machine.count, machine.clock, lambda: next(cpu))
    assert block.host_s == pytest.approx(2.5)


@pytest.mark.parametrize("mode", sorted(timing.MODES))
def test_the_host_part_holds_the_fence_as_well(mode):
    """A fence that computes (a runtime that dispatches lazily works there) is host time."""
    machine, cpu_s = Machine(dispatch_s=1.0, work_s=3.0), [0.0]
    fence = machine.synchronize

    def synchronize() -> None:
        fence()
        cpu_s[0] += 0.5

    machine.synchronize = synchronize
    block = timing.MODES[mode](machine, 4, 0, machine.count, machine.clock, lambda: cpu_s[0])
    assert block.host_s == pytest.approx(0.5 * machine.fences)


@pytest.mark.parametrize("mode", sorted(timing.MODES))
def test_a_compilation_inside_the_fence_is_counted(mode):
    """A lazy runtime compiles when it is waited for, and the last fence of a block is part of it."""
    machine = Machine(dispatch_s=1.0, work_s=1.0)
    fence = machine.synchronize

    def synchronize() -> None:
        fence()
        machine.compiled += len(machine.indices) == 2  # in the last fence only

    machine.synchronize = synchronize
    assert timing.MODES[mode](machine, 2, 0, machine.count, machine.clock).compiles == 1


def test_a_host_bound_step_takes_its_dispatch():
    machine = Machine(dispatch_s=3.0, work_s=1.0)
    block = timing.time_block(machine, 4, 0, machine.count, machine.clock)
    assert block.total_s == pytest.approx(4 * 3.0 + 1.0)


@pytest.mark.parametrize("mode", sorted(timing.MODES))
def test_a_compilation_inside_a_block_is_counted(mode):
    machine = Machine(1.0, 1.0, compiles=(3,))
    assert timing.MODES[mode](machine, 2, 0, machine.count, machine.clock).compiles == 0
    assert timing.MODES[mode](machine, 2, 0, machine.count, machine.clock).compiles == 1


def test_warm_up_ends_after_two_steps_without_a_compilation():
    machine = Machine(0.5, 1.0, compiles=(1, 3))
    warm = timing.warm_up(machine, 0, machine.count, machine.clock)
    assert (warm.steps, warm.compiles) == (5, 2)
    assert warm.step_s == pytest.approx(1.5)
    assert machine.fences == 5  # every warm-up step is fenced, or its compilation could fall into the next one


def test_a_step_that_always_compiles_is_refused():
    machine = Machine(0.5, 1.0, compiles=tuple(range(100)))
    with pytest.raises(errors.UnsupportedError, match="still compiling after 30 steps"):
        timing.warm_up(machine, 0, machine.count, machine.clock)


@pytest.mark.parametrize(("step_s", "expected"), [(0.0101, 3), (0.0099, 4), (0.03, 2), (1.0, 2), (0.0625, 2)])
def test_blocks_last_long_enough(step_s, expected):
    assert timing.steps_per_block(step_s, 0.03) == expected


@pytest.mark.parametrize(("step_s", "expected"), [(0.25, 4), (0.2501, 4), (0.2499, 5), (0.125, 8), (0.0, 10**7)])
def test_a_block_has_no_step_more_than_it_needs(step_s, expected):
    assert timing.steps_per_block(step_s, 1.0) == pytest.approx(expected, rel=1e-6)
