from __future__ import annotations

import pathlib
import sys

import pytest

from xlacompare.core import errors, machine


def test_parse_core_list():
    assert machine.parse_core_list("0-2,5\n") == (0, 1, 2, 5)
    assert machine.parse_core_list("7") == (7,)
    assert machine.parse_core_list("") == ()


def test_choose_cores_takes_whole_cores_first():
    siblings = {core: (core % 4, core % 4 + 4) for core in range(8)}  # 4 cores of 2 threads
    assert machine.choose_cores(1, range(8), siblings) == (7,)
    assert machine.choose_cores(4, range(8), siblings) == (4, 5, 6, 7)
    assert machine.choose_cores(5, range(8), siblings) == (3, 4, 5, 6, 7)
    assert machine.choose_cores(2, [0, 3, 4], siblings) == (3, 4)
    assert machine.choose_cores(2, [0, 4], siblings) == (0, 4)
    pairs = {core: (core // 2 * 2, core // 2 * 2 + 1) for core in range(4)}
    assert machine.choose_cores(2, range(4), pairs) == (1, 3)
    assert machine.choose_cores(3, range(4), pairs) == (1, 2, 3)


@pytest.mark.parametrize("num", [0, -1, 3])
def test_choose_cores_refuses(num):
    with pytest.raises(errors.BadInputError, match=f"{num} cores asked for, 2 available"):
        machine.choose_cores(num, [0, 1], {})


def test_default_cores_are_available():
    assert set(machine.default_cores(1)) <= set(machine.available_cores())


STATUS = "Name:\tpython\nVmHWM:\t    2080 kB\nVmRSS:\t    1040 kB\nThreads:\t1\n"


def test_parse_status():
    assert machine.parse_status_bytes(STATUS, "VmHWM") == 2080 * 1024
    assert machine.parse_status_bytes(STATUS, "VmRSS") == 1040 * 1024
    assert machine.parse_status_bytes(STATUS, "VmSwap") is None
    assert machine.parse_meminfo_bytes("MemTotal:       24683656 kB\nMemFree: 1 kB\n") == 24683656 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_peak_memory_can_be_reset():
    size = 64 << 20
    machine.trim_heap()  # else the block may lie in memory that is resident already
    machine.reset_peak_memory()
    before = machine.resident_bytes()
    block = b"x" * size
    assert machine.peak_memory_bytes() >= before + size * 0.9
    del block
    machine.trim_heap()  # it may have lain in a hole of the heap, which free() keeps
    if machine.reset_peak_memory():
        assert machine.peak_memory_bytes() < before + size * 0.5


def test_peak_memory_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    assert machine.peak_memory_bytes() is None
    assert machine.resident_bytes() is None
    assert machine.reset_peak_memory() is False


def test_parse_cpu_model():
    assert machine.parse_cpu_model("processor\t: 0\nmodel name\t: Fast CPU @ 2: GHz\n") == "Fast CPU @ 2: GHz"
    assert machine.parse_cpu_model("processor : 0\nCPU part : 0xd0c\n") == "0xd0c"
    assert machine.parse_cpu_model("") is None


def test_describe_without_proc(monkeypatch):
    monkeypatch.setattr(machine, "PROC", pathlib.Path("/nowhere"))
    monkeypatch.setattr(machine, "CPU_FOLDER", pathlib.Path("/nowhere"))
    described = machine.describe()
    assert described["memory_bytes"] is None
    assert described["governor"] is None
    assert described["hypervisor"] is None
    assert described["cpu"]
    assert described["cores_available"]
