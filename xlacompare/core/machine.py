"""The machine under the measurement: cores, peak memory, description. Linux `/proc` and `/sys`, no framework.

Where the system does not tell (not Linux, a sandbox) the answer is None, never 0. Parsers take the text of a file, so
that tests can feed them samples of other machines.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from xlacompare.core import errors

PROC = pathlib.Path("/proc")
CPU_FOLDER = pathlib.Path("/sys/devices/system/cpu")


def read_text(path: pathlib.Path) -> str | None:
    """Text of a file of `/proc` or `/sys`; None where it is not there or not ours to read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending (its affinity, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def parse_core_list(text: str) -> tuple[int, ...]:
    """Cores of the kernel's list format: "0-2,5" is (0, 1, 2, 5)."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cores))


def choose_cores(num: int, available: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """`num` cores, one hardware thread per physical core as long as these last, the highest numbers first.

    The highest, because the lowest serve most interrupts and are where everybody else starts.

    Args:
      num: How many.
      available: What there is.
      siblings: Core -> all hardware threads of its physical core.

    Raises:
      BadInputError: Fewer are available, or `num` is below 1.
    """
    if not 1 <= num <= len(available):
        raise errors.BadInputError(
            f"{num} cores asked for, {len(available)} available to this process "
            f"({','.join(map(str, available))}); ask for 1 to {len(available)}"
        )
    firsts: list[int] = []
    seconds: list[int] = []
    taken: set[int] = set()
    for core in sorted(available, reverse=True):
        physical = min(siblings.get(core, (core,)))
        (seconds if physical in taken else firsts).append(core)
        taken.add(physical)
    return tuple(sorted((firsts + seconds)[:num]))


def default_cores(num: int) -> tuple[int, ...]:
    """The `num` cores that a worker of this machine is pinned to; `choose_cores` over this process's affinity."""
    available = available_cores()
    return choose_cores(num, available, {core: _siblings(core) for core in available})


def _siblings(core: int) -> tuple[int, ...]:
    text = read_text(CPU_FOLDER / f"cpu{core}" / "topology" / "thread_siblings_list")
    return parse_core_list(text) if text else (core,)


def load_average() -> tuple[float, float, float] | None:
    """Mean number of runnable tasks over 1, 5 and 15 minutes; None where the system does not tell."""
    return os.getloadavg() if hasattr(os, "getloadavg") else None


def parse_status_bytes(text: str, key: str) -> int | None:
    """A size of `/proc/<pid>/status` in bytes: VmHWM (resident high-water mark), VmRSS (resident now)."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024  # the kernel says kB and means KiB
    return None


def reset_peak_memory() -> bool:
    """Sets this process's resident high-water mark to what is resident now; False where that cannot be done."""
    try:
        (PROC / "self" / "clear_refs").write_text("5")  # 5 resets the peak only, see proc(5)
    except OSError:
        return False
    return True


def trim_heap() -> bool:
    """Gives freed heap memory back to the system (glibc), so that what stays resident is in use; False elsewhere."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    return bool(trim is not None and trim(0))


def peak_memory_bytes(pid: int | str = "self") -> int | None:
    """Resident high-water mark since the process's start or `reset_peak_memory`; None where unknown."""
    return parse_status_bytes(read_text(PROC / str(pid) / "status") or "", "VmHWM")


def resident_bytes(pid: int | str = "self") -> int | None:
    """Resident memory now; None where unknown."""
    return parse_status_bytes(read_text(PROC / str(pid) / "status") or "", "VmRSS")


def parse_cpu_model(text: str) -> str | None:
    """Name of the processor in the text of `/proc/cpuinfo` ("model name" on x86, "CPU part" on Arm)."""
    fields = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    known = {key.strip(): value.strip() for key, value in fields.items()}
    return known.get("model name") or known.get("CPU part")


def parse_meminfo_bytes(text: str) -> int | None:
    """Memory of the machine, from the text of `/proc/meminfo`."""
    return parse_status_bytes(text, "MemTotal")


def describe() -> dict[str, Any]:
    """The machine as it goes into a record; None stands for "this system does not tell"."""
    cpuinfo = read_text(PROC / "cpuinfo") or ""
    governor = read_text(CPU_FOLDER / "cpu0" / "cpufreq" / "scaling_governor")
    return {
        "host": platform.node(),
        "cpu": parse_cpu_model(cpuinfo) or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores_online": os.cpu_count(),
        "cores_available": list(available_cores()),
        "hypervisor": " hypervisor" in cpuinfo if cpuinfo else None,
        "memory_bytes": parse_meminfo_bytes(read_text(PROC / "meminfo") or ""),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "governor": governor.strip() if governor else None,
        "load_average": load_average(),
    }
