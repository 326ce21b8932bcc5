"""A rank that dies, hangs, lies or is slow: its cell ends and names it, the others are measured, nothing is left."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import conftest, worlds
from xlacompare.launch import blame, campaign, crews, launchers, meeting, protocol

BOTH = ("all_gather", "ppermute")


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("1:die:all_gather:9", "crash", "rank 1 was ended by SIGKILL"),
        ("0:die:all_gather:9", "crash", "rank 0 was ended by SIGKILL"),
        ("1:raise:all_gather:9", "crash", "rank 1 died: RuntimeError: planted: a rank that raises"),
        ("1:wrong:all_gather:9", "mismatch", "rank 1, index 3: got"),
        ("1:unsupported:all_gather:0", "unsupported", "rank 1: planted"),
        ("1:compile:all_gather:0", "unsupported", "still compiling after 30 runs"),
    ],
)
def test_a_rank_that_fails(monkeypatch, tmp_path, fault, status, words):
    monkeypatch.setattr("xlacompare.launch.world.ERROR_GRACE_S", 0.5)
    begin = time.monotonic()
    found = worlds.measure(monkeypatch, tmp_path, fault, collectives=BOTH, deadline_s=600.0)
    assert time.monotonic() - begin < 600, "a death is seen at once, not at the deadline"
    record = found.of("all_gather")
    assert (record["status"], words in record["reason"]) == (status, True), record["reason"]
    assert not record["blocks"]["total_s"] and not record["iterations"]["total_s"], "no values, no time"
    assert found.of("ppermute")["status"] == "ok"
    assert found.of("ppermute")["blocks"]["total_s"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("1:stop:all_gather:9", "(--deadline_s): rank 1 is stopped (SIGSTOP); rank 0 is in "),
        ("1:late:all_gather:9", "of 8 float32, barrier (collectives.py"),  # both are in it: the lines tell
        ("1:never:all_gather:9", "rank 1 is in "),
    ],
)
def test_a_rank_that_hangs(monkeypatch, tmp_path, fault, words):
    found = worlds.measure(monkeypatch, tmp_path, fault, collectives=BOTH, deadline_s=2.0)
    record = found.of("all_gather")
    assert record["status"] == "hang"
    assert "within 2 s" in record["reason"] and words in record["reason"]
    assert not record["blocks"]["total_s"]
    assert found.of("ppermute")["status"] == "ok"


class Killer(campaign.Progress):
    """Signals rank 1 between two cells."""

    def __init__(self, number: int) -> None:
        self._number, self.pid = number, 0

    def phase(self, text: str, done: float, total: float) -> None:
        ranks = worlds.marked(os.environ[worlds.MARK_VARIABLE])
        second = [pid for pid in ranks if b"XLACOMPARE_RANK=1" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()]
        if done == 1 and second and not self.pid:
            self.pid = second[0]
            os.kill(self.pid, self._number)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "crash"), (signal.SIGSTOP, "hang")])
def test_a_signal_from_outside(monkeypatch, tmp_path, number, status):
    names = ("all_gather", "ppermute", "all_to_all")
    found = worlds.measure(monkeypatch, tmp_path, progress=Killer(number), collectives=names, deadline_s=2.0)
    assert [record["status"] for record in found.cells] == ["ok", status, "ok"]
    assert "rank 1" in found.cells[1]["reason"]
    pids = [[rank["pid"] for rank in record["ranks"]] for record in found.cells]
    assert pids[0] == pids[1] and not set(pids[0]) & set(pids[2]), "the rest runs in a new world"


def test_who_gives_up_waiting_is_not_blamed(monkeypatch, tmp_path):
    found = worlds.measure(monkeypatch, tmp_path, "1:stop_alone:all_gather:9", collectives=BOTH)
    record = found.of("all_gather")
    assert record["status"] == "hang"
    assert record["reason"].startswith("rank 1 is stopped (SIGSTOP); rank 0 died: ConnectionError")
    assert found.of("ppermute")["status"] == "ok"


def test_a_world_that_does_not_start_is_tried_once(monkeypatch, tmp_path):
    found = worlds.measure(monkeypatch, tmp_path, "1:absent::0", collectives=BOTH)
    assert {record["status"] for record in found.cells} == {"crash"}
    assert all("rank 1 died: RuntimeError: planted: a rank that never" in r["reason"] for r in found.cells)
    assert len(list((tmp_path / "logs").iterdir())) == 2


needs_mpi = pytest.mark.skipif(
    shutil.which("mpiexec", path=str(pathlib.Path(sys.executable).parent)) is None, reason="needs mpiexec (extra mpi)"
)


@needs_mpi
def test_mpi_ranks_of_one_mpiexec(monkeypatch, tmp_path):
    left = []
    free = launchers.SharedMemory.free

    def watched(memory: launchers.SharedMemory) -> None:
        free(memory)
        left.extend(path for path in memory._made - memory._before if path.exists())

    monkeypatch.setattr(launchers.SharedMemory, "free", watched)
    found = worlds.measure(monkeypatch, tmp_path, "1:die:all_gather:9", collectives=BOTH, transports=("mpi",))
    assert found.of("all_gather")["status"] == "crash"
    assert "rank 1" in found.of("all_gather")["reason"]
    assert found.of("ppermute")["status"] == "ok"
    assert len(found.of("ppermute")["ranks"]) == 2
    assert not left


def test_shared_memory_of_a_killed_process_is_removed():
    path, mine = launchers.SHARED_MEMORY / f"xlacompare-test-{os.getpid()}", launchers.SHARED_MEMORY / "other"
    memory = launchers.SharedMemory()
    code = f"import mmap; f = open({str(path)!r}, 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 0); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while not path.exists() or str(path) not in pathlib.Path(f"/proc/{child.pid}/maps").read_text():
            time.sleep(0.01)
        memory.note([child.pid])
        child.kill()
    memory.free()
    assert not path.exists() and not mine.exists()


def test_interrupt_leaves_no_rank(tmp_path):
    code = (
        "import sys, pathlib, signal\nfrom xlacompare.collectives import config\n"
        "from xlacompare.launch import campaign, collective_campaign\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell started with &
        "run = config.CollectiveConfig(('standin',), ('all_gather',), sizes=(64,), deadline_s=100.0)\n"
        "collective_campaign.execute(run, pathlib.Path(sys.argv[1]), 'r', [], campaign.Progress())"
    )
    mark = f"interrupt-{os.getpid()}"
    added = {"XLACOMPARE_FRAMEWORKS": "standin=tests.standin", "STANDIN_RANK_FAULT": "1:stop:all_gather:5"}
    environment = {**os.environ, **added, worlds.MARK_VARIABLE: mark, "PYTHONPATH": str(conftest.ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    child = subprocess.Popen(command, env=environment, cwd=conftest.ROOT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not any(blame.is_stopped(pid) for pid in worlds.marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in error
    assert '"ending":"interrupted"' in (tmp_path / "records.jsonl").read_text()
    assert not worlds.marked(mark)


def test_a_killed_coordinator_takes_its_ranks_along(tmp_path):
    code = (
        "import os, pathlib, sys\nfrom xlacompare.launch import crews, launchers\n"
        "spec = launchers.Spec('standin', 'gloo', 'process', 2, 'cpu', (0,), 9.0)\n"
        "crew = crews.BuiltIn(pathlib.Path(sys.argv[1])).crew(spec, 'x')\n"
        "assert len(crew.muster(60.0)) == 2\nos.kill(os.getpid(), 9)"
    )
    mark = f"killed-{os.getpid()}"
    environment = {**os.environ, "XLACOMPARE_FRAMEWORKS": "standin=tests.standin", worlds.MARK_VARIABLE: mark}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, cwd=conftest.ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while worlds.marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert not worlds.marked(mark)


def test_a_rank_whose_coordinator_hung_up_ends(monkeypatch, tmp_path):
    """Its parent lives here, so that nothing but the closed stream tells it."""
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    crew = crews.BuiltIn(tmp_path).crew(launchers.Spec("standin", "gloo", "process", 2, "cpu", (0,), 9.0), "x")
    try:
        for member in crew.muster(60.0):
            member.channel.close()
        crew.wait(20.0)
        assert all(child.poll() is not None for child in crew._children.values())
    finally:
        crew.kill()


def test_strangers_are_turned_away():
    found = meeting.Meeting("right")
    try:
        assert found.accept(1, 0.0, lambda: True) == []
        caught = []

        def stranger(token: str) -> None:
            try:
                caught.append(meeting.report(meeting.LOOPBACK, found.port, {"token": token, "rank": 0}))
            except protocol.StreamClosed:
                caught.append(None)

        for token, number in (("wrong", 0), ("right", 1)):
            thread = threading.Thread(target=stranger, args=(token,))
            thread.start()
            assert len(found.accept(1, 20.0 if number else 1.0, lambda: True)) == number
            thread.join()
        assert caught[0] is None and caught[1] is not None
    finally:
        found.close()


def where(sequence: int, index: int | None = None) -> dict:
    return {"sequence": sequence, "note": "a block", "index": index, "frame": "run (a.py:1)"}


def hang(*answers: dict | None) -> blame.Verdict:
    silent = [blame.Whereabouts(rank, answer, None) for rank, answer in enumerate(answers)]
    return blame.of_hang(silent, "blocks", 3.0, pathlib.Path("log"))


def test_who_is_blamed_for_a_hang():
    assert hang(where(5), None, where(4)).ranks == (1,), "who does not answer, before who is behind"
    assert hang(where(5), where(4), where(5)).ranks == (1,)
    assert hang(where(5, 7), where(5, 8)).ranks == (0,), "the run inside a block counts"
    assert hang(where(5, 7), where(5)).ranks == (1,), "not yet in the loop"
    assert hang(where(5, 7), where(5, 7)).ranks == (0, 1), "nobody is behind: all are named"
    assert "rank 1 does not answer; rank 0 is in a block run 7, run (a.py:1)" in hang(where(5, 7), None).reason


def ended(rank: int, order: int, code: int | None, raised: str = "", at: float = 0.0) -> blame.Ended:
    return blame.Ended(rank, code, raised, at, order, pathlib.Path("none"))


def test_who_is_blamed_for_deaths():
    dragged = "RuntimeError: connection closed by peer"
    assert blame.of_deaths([ended(0, 0, 1, dragged, 2.0), ended(1, 1, -9)], 0).ranks == (1,)
    assert blame.of_deaths([ended(0, 0, 1, dragged, 2.0), ended(1, 1, 1, "ValueError: x", 1.0)], 0).ranks == (1,)
    assert blame.of_deaths([ended(0, 0, -6), ended(1, 1, -6)], 0).ranks == (0,)
    assert blame.of_deaths([ended(1, 0, None), ended(0, 1, None)], 0).ranks == (1,), "nobody knows: the first to go"
    assert blame.of_deaths([ended(0, 0, -9)], 0).status == "crash"
    assert blame.of_deaths([ended(0, 0, -9)], 1).status == "out_of_memory"
    assert blame.of_deaths([ended(0, 0, 1, "jax.XlaRuntimeError: RESOURCE_EXHAUSTED: x")], 0).status == "out_of_memory"
    assert "after it rank 1 died too" in blame.of_deaths([ended(0, 0, -6), ended(1, 1, -6)], 0).reason


def test_shares_of_cores():
    spec = launchers.Spec("x", "gloo", "process", 2, "cpu", (4, 5, 6, 7), 1.0)
    assert [spec.pinned(rank, 2) for rank in range(2)] == [[4, 5], [6, 7]]
    assert spec.pinned(3, 4) == [7]
    assert spec.pinned(0, 5) is None, "more ranks than cores: none is pinned"
    assert spec.place(1, 1, 2, "a", 1).num_threads == 2
    assert spec.place(1, 1, 8, "a", 1).num_threads == 1


def test_the_interpreters_own_mpiexec_is_taken(monkeypatch, tmp_path):
    (tmp_path / "mpiexec").write_text("#!/bin/sh\n")
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setattr(crews.sysconfig, "get_path", lambda _: str(tmp_path))
    assert crews.mpiexec() == str(tmp_path / "mpiexec")
