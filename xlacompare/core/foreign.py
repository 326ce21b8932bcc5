"""Foreign CPU use between two instants. Linux `/proc`, no framework.

Two clocks tell of foreign work, and each is blind where the other sees:
  ticks  `/proc/stat` per core minus the CPU time of our own processes. Sees work that does not disturb us yet; coarse
         (a tick is 10 ms and is charged whole to whoever runs at that instant), so it is of use from about 1 s on.
  wait   `/proc/<pid>/task/*/schedstat`: nanoseconds for which our own threads were ready to run and another one had
         the core. Fine enough for one block of 30 ms; blind to work on a core that we do not use, and it counts our own
         threads waiting for each other. The same file has the nanoseconds for which they ran; what the cores did not
         spend on us bounds what others can have taken, so the lesser of the two is what we lost, at most.
Where the kernel offers neither (not Linux, a sandbox), the answers are None, never 0.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xlacompare.core import machine


@dataclasses.dataclass(frozen=True)
class CoreTimes:
    """Seconds since boot of one core: busy (ours and others', interrupts included) and stolen by the hypervisor."""

    busy_s: float
    steal_s: float


def parse_stat(text: str, ticks_per_s: int) -> dict[int, CoreTimes]:
    """Core -> times, from the text of `/proc/stat`.

    Busy is user + nice + system + irq + softirq; idle and iowait are not. Guest time is part of user already (proc(5)).
    """
    times = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, irq, softirq, steal = [int(field) for field in fields[:8]]
            busy = user + nice + system + irq + softirq
            times[int(name[3:])] = CoreTimes(busy / ticks_per_s, steal / ticks_per_s)
    return times


def parse_process_ticks(text: str) -> int:
    """User + system ticks of one process, all its threads, from the text of `/proc/<pid>/stat`."""
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return int(fields[11]) + int(fields[12])


def parse_wait(texts: Iterable[str]) -> float:
    """Seconds that threads were ready and not running, from the texts of their `schedstat` (second field, ns)."""
    return sum(int(text.split()[1]) for text in texts) / 1e9


def parse_run(texts: Iterable[str]) -> float:
    """Seconds that threads ran, from the texts of their `schedstat` (first field, ns)."""
    return sum(int(text.split()[0]) for text in texts) / 1e9


@dataclasses.dataclass(frozen=True)
class CpuSnapshot:
    """Cumulative CPU use at one instant; `foreign_cpu` takes the difference of two.

    Attributes:
      time_s: Monotonic clock.
      own_s: CPU seconds of our own processes, wherever they ran.
      cores: Core -> times, of the cores that were asked for; None without `/proc/stat`.
      wait_s: Seconds for which our threads waited for a core; None where the kernel does not tell.
      ticks_per_s: Resolution of `cores`.
      run_s: CPU seconds of our living threads, exact to the nanosecond; None where the kernel does not tell.
    """

    time_s: float
    own_s: float
    cores: Mapping[int, CoreTimes] | None
    wait_s: float | None
    ticks_per_s: int
    run_s: float | None = None


@dataclasses.dataclass(frozen=True)
class ForeignCpu:
    """CPU use of others between two snapshots.

    Attributes:
      wall_s: Seconds between the snapshots.
      num_cores: Cores watched.
      seconds: CPU seconds on these cores that were not ours; None where the machine does not tell.
      resolution_s: Error to expect of `seconds`: one tick per core and per end.
      steal_s: Seconds that the hypervisor gave to other guests (not part of `seconds`).
      wait_s: Seconds for which our own threads waited for a core, exact to the nanosecond; None where unknown.
      run_s: Seconds for which they ran, as exact; None where unknown.
    """

    wall_s: float
    num_cores: int
    seconds: float | None
    resolution_s: float
    steal_s: float | None
    wait_s: float | None
    run_s: float | None = None

    @property
    def share(self) -> float | None:
        """Foreign and stolen time as a share of the cores' time, less what ticks cannot resolve; None if unknown."""
        if self.seconds is None or self.steal_s is None or self.wall_s <= 0:
            return None
        return max(0.0, self.seconds + self.steal_s - self.resolution_s) / (self.wall_s * self.num_cores)

    @property
    def wait_share(self) -> float | None:
        """Waiting time of our threads as a share of the cores' time; None if unknown."""
        if self.wait_s is None or self.wall_s <= 0:
            return None
        return self.wait_s / (self.wall_s * self.num_cores)

    @property
    def lost_share(self) -> float | None:
        """At most this share of the cores' time went to others while we could have used it; None if unknown.

        Where our own threads keep the cores busy they may wait for each other as long as they like: nothing is lost.
        """
        if self.wait_share is None or self.run_s is None:
            return self.wait_share
        return min(self.wait_share, max(0.0, 1 - self.run_s / (self.wall_s * self.num_cores)))

    def disturbed(self, limit: float = 0.10) -> bool | None:
        """Did others take more than `limit` of our cores, by either clock? None where neither tells."""
        known = [share for share in (self.share, self.lost_share) if share is not None]
        return any(share > limit for share in known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        shares = {"share": self.share, "wait_share": self.wait_share, "lost_share": self.lost_share}
        return {**dataclasses.asdict(self), **shares}


def snapshot(cores: Sequence[int], pids: Sequence[int] = ()) -> CpuSnapshot:
    """Takes a snapshot; about 0.1 ms, plus 10 us per thread of the processes.

    Args:
      cores: Cores to watch: those that the workers are pinned to.
      pids: Our own processes besides this one (to 10 ms each; this one is exact). Ended ones count 0, so keep
        the set alive between two snapshots.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    others = [pid for pid in pids if pid != os.getpid()]
    own = time.process_time() + sum(_process_ticks(pid) for pid in others) / ticks_per_s
    text = machine.read_text(machine.PROC / "stat")
    waits = [text for pid in (os.getpid(), *others) for text in _schedstats(pid)]
    return CpuSnapshot(
        time_s=time.perf_counter(),
        own_s=own,
        cores={core: t for core, t in parse_stat(text, ticks_per_s).items() if core in cores} if text else None,
        wait_s=parse_wait(waits) if waits else None,
        ticks_per_s=ticks_per_s,
        run_s=parse_run(waits) if waits else None,
    )


def foreign_cpu(before: CpuSnapshot, after: CpuSnapshot) -> ForeignCpu:
    """CPU use of others between two snapshots of the same cores and processes.

    Threads that ended in between take their times along; a difference is then cut off at 0.
    """
    seconds = steal = None
    if before.cores is not None and after.cores is not None:
        busy = sum(after.cores[core].busy_s - before.cores[core].busy_s for core in after.cores)
        seconds = max(0.0, busy - (after.own_s - before.own_s))
        steal = sum(after.cores[core].steal_s - before.cores[core].steal_s for core in after.cores)
    wait = run = None
    if before.wait_s is not None and after.wait_s is not None:
        wait = max(0.0, after.wait_s - before.wait_s)
    if before.run_s is not None and after.run_s is not None:
        run = max(0.0, after.run_s - before.run_s)
    num_cores = max(1, len(after.cores or ()))
    return ForeignCpu(
        wall_s=after.time_s - before.time_s,
        num_cores=num_cores,
        seconds=seconds,
        resolution_s=2 * num_cores / after.ticks_per_s,
        steal_s=steal,
        wait_s=wait,
        run_s=run,
    )


def _process_ticks(pid: int) -> int:
    text = machine.read_text(machine.PROC / str(pid) / "stat")
    return parse_process_ticks(text) if text else 0


def _schedstats(pid: int) -> list[str]:
    texts = (machine.read_text(path / "schedstat") for path in (machine.PROC / str(pid) / "task").glob("[0-9]*"))
    return [text for text in texts if text]
