from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import pytest

from xlacompare.core import foreign, machine

STAT = """\
cpu  300 0 100 900 10 0 5 7 0 0
cpu0 100 0 50 450 5 0 2 3 0 0
cpu1 200 10 50 450 5 1 3 4 60 0
intr 12345 0 0
ctxt 99
"""


def test_parse_stat():
    times = foreign.parse_stat(STAT, 100)
    assert sorted(times) == [0, 1]
    assert times[0] == foreign.CoreTimes(busy_s=1.52, steal_s=0.03)
    # user + nice + system + irq + softirq; not idle, iowait, steal, and guest is part of user already
    assert times[1] == foreign.CoreTimes(busy_s=2.64, steal_s=0.04)


def test_parse_process_ticks_of_a_name_with_brackets():
    assert foreign.parse_process_ticks("7 (a) b (c) S 1 7 7 0 -1 4 100 0 0 0 250 30 9 9 20 0 1") == 280


def test_parse_wait_adds_threads():
    assert foreign.parse_wait(["5000 1500000000 7\n", "1 500000000 2\n"]) == 2.0


def test_parse_run_adds_threads():
    assert foreign.parse_run(["1500000000 5000 7\n", "500000000 1 2\n"]) == 2.0


def snapshot(time_s, own_s, busy, steal=0.0, wait=0.0, run=None):
    cores = None if busy is None else {0: foreign.CoreTimes(busy, steal), 1: foreign.CoreTimes(0.0, 0.0)}
    return foreign.CpuSnapshot(time_s, own_s, cores, wait, 100, run)


@pytest.mark.parametrize(
    ("wait", "run", "lost"),
    [
        (0.6, 2.0, 0.0),  # our threads wait for each other while both cores are ours
        (0.6, 1.4, 0.3),  # others cannot have waited us out of more than we did not use
        (0.2, 0.4, 0.1),  # cores that are idle because we asked for nothing are not lost
        (0.6, 2.2, 0.0),  # threads that ran elsewhere
        (0.6, None, 0.3),  # a kernel that tells the waiting only
    ],
)
def test_others_took_no_more_than_we_waited_for_and_did_not_use(wait, run, lost):
    """Over 1 s on 2 cores."""
    change = foreign.foreign_cpu(snapshot(0, 0, 0, run=0.0), snapshot(1, 0, 0, wait=wait, run=run))
    assert change.lost_share == pytest.approx(lost)
    assert change.disturbed() is (lost > 0.1)


def test_foreign_is_busy_minus_own():
    change = foreign.foreign_cpu(snapshot(10, 3, 50, 1, 0.5), snapshot(20, 7, 57, 1.5, 0.9))
    assert change.wall_s == 10
    assert change.num_cores == 2
    assert change.seconds == pytest.approx(3)  # 7 busy, 4 of them ours
    assert change.steal_s == pytest.approx(0.5)
    assert change.wait_s == pytest.approx(0.4)
    assert change.resolution_s == pytest.approx(0.04)
    assert change.share == pytest.approx((3 + 0.5 - 0.04) / 20)
    assert change.wait_share == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("busy", "wait", "disturbed"),
    [(0.03, 0.0, False), (0.4, 0.0, True), (0.0, 0.15, True), (0.0, 0.25, True), (0.2, 0.19, False)],
)
def test_disturbed_by_either_clock(busy, wait, disturbed):
    """Over 1 s on 2 cores; 0.03 s is within the ticks' resolution of 0.04 s."""
    change = foreign.foreign_cpu(snapshot(0, 0, 0), snapshot(1, 0, busy, wait=wait))
    assert change.disturbed(limit=0.1 if wait != 0.15 else 0.07) is disturbed


def test_foreign_is_never_negative():
    change = foreign.foreign_cpu(snapshot(0, 0, 0, wait=1.0), snapshot(1, 5, 1, wait=0.2))
    assert change.seconds == 0
    assert change.wait_s == 0


def test_unknown_is_not_zero():
    change = foreign.foreign_cpu(foreign.CpuSnapshot(0, 0, None, None, 100), foreign.CpuSnapshot(1, 1, None, None, 100))
    assert change.seconds is None
    assert change.share is None
    assert change.wait_share is None and change.lost_share is None
    assert change.disturbed() is None


def test_wait_alone_decides_where_ticks_are_unknown():
    change = foreign.foreign_cpu(snapshot(0, 0, None), snapshot(1, 1, None, wait=0.5))
    assert change.share is None
    assert change.disturbed() is True


@pytest.fixture
def neighbour():
    """A process that is busy on the core to which this one is pinned; gives (its pid, that core)."""
    home, cores = os.sched_getaffinity(0), machine.default_cores(1)
    os.sched_setaffinity(0, cores)
    pid = os.fork()
    if not pid:  # only arithmetic until the parent kills it
        while True:
            pass
    yield pid, cores
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, home)


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.mark.quiet
@linux_only
def test_a_busy_neighbour_is_seen(neighbour):
    """Ground truth: a core that is never idle gives others exactly what it does not give us."""
    _, cores = neighbour
    before = foreign.snapshot(cores)
    spin_until(before.time_s + 1.0)
    after = foreign.snapshot(cores)
    change = foreign.foreign_cpu(before, after)
    lost = 1 - (after.own_s - before.own_s) / change.wall_s
    assert lost > 0.3
    assert change.disturbed() is True
    assert change.share == pytest.approx(lost, abs=0.06)  # ticks
    if change.wait_share is not None:
        assert change.wait_share == pytest.approx(lost, abs=0.02)
        assert change.lost_share == pytest.approx(lost, abs=0.02)


@linux_only
def test_a_busy_neighbour_is_seen_within_one_block(neighbour):
    """Ten blocks of 30 ms: too short for ticks, not for the waiting time."""
    _, cores = neighbour
    seen = []
    for _ in range(10):
        before = foreign.snapshot(cores)
        spin_until(before.time_s + 0.03)
        seen.append(foreign.foreign_cpu(before, foreign.snapshot(cores)))
    if seen[0].wait_s is None:
        pytest.skip("this kernel does not tell the waiting time")
    assert sum(bool(change.disturbed()) for change in seen) >= 9


@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@pytest.mark.quiet
@linux_only
def test_own_processes_are_not_foreign(neighbour):
    """The same neighbour named as ours is no stranger: the difference is its CPU time, as psutil reads it."""
    pid, cores = neighbour
    before, before_named = foreign.snapshot(cores), foreign.snapshot(cores, [os.getpid(), pid])
    used = psutil.Process(pid).cpu_times().user
    spin_until(before.time_s + 1.0)
    after, after_named = foreign.snapshot(cores), foreign.snapshot(cores, [os.getpid(), pid])
    used = psutil.Process(pid).cpu_times().user - used
    strangers = foreign.foreign_cpu(before, after).seconds
    strangers_besides = foreign.foreign_cpu(before_named, after_named).seconds
    assert used > 0.05
    assert strangers - strangers_besides == pytest.approx(used, abs=0.05)


def spin_until(end_s):
    while time.perf_counter() < end_s:
        pass
