"""Runs of the stand-in's collectives for tests, and what they leave behind."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any

from xlacompare.collectives import config
from xlacompare.launch import campaign, collective_campaign, parallel_campaign, parallel_grid
from xlacompare.parallel import config as parallel

MARK_VARIABLE = "XLACOMPARE_TEST_MARK"


class Measured:
    """A finished run."""

    def __init__(self, made: collective_campaign.Campaign) -> None:
        self.made = made
        self.cells = [record for record in made.records if record["kind"] == "collective"]

    def of(self, collective: str, **more: Any) -> dict[str, Any]:
        """The only record of a collective with these values in its cell."""
        found = [
            record
            for record in self.cells
            if record["cell"]["collective"] == collective
            if all(record["cell"][key] == value for key, value in more.items())
        ]
        assert len(found) == 1, [(record["comparison"], record["status"], record["reason"]) for record in self.cells]
        return found[0]


def measure(monkeypatch, folder: pathlib.Path, fault: str = "", progress=None, launcher=None, **values) -> Measured:
    """Runs the stand-in, and checks that nothing of it is left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin,twin=tests.standin")
    monkeypatch.setenv(MARK_VARIABLE, mark)
    if fault:
        monkeypatch.setenv("STANDIN_RANK_FAULT", fault)
    chosen = {"frameworks": ("standin",), "sizes": (64,), "cell_s": 0.02, "min_block_s": 0.005, "deadline_s": 30.0}
    run = config.CollectiveConfig(**{**chosen, **values})
    open_before = descriptors()
    made = collective_campaign.execute(run, folder, "run", ["test"], progress or campaign.Progress(), launcher)
    assert not marked(mark), "a process is left"
    assert descriptors() == open_before, "a socket or a file is left open"
    return Measured(made)


def descriptors() -> int:
    """Open files and sockets of this process."""
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def marked(mark: str) -> list[int]:
    """Processes other than zombies that were started with this mark in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            inherited = f"{MARK_VARIABLE}={mark}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if inherited:
            found.append(int(folder.name))
    return found


class MeasuredSteps:
    """A finished run of training over the stand-in's ranks."""

    def __init__(self, made: parallel_campaign.Campaign) -> None:
        self.made = made
        self.cells = [record for record in made.records if record["kind"] == "parallel"]

    def of(self, communication: str, **more: Any) -> dict[str, Any]:
        """The only record of an arm with these values in its cell; matched, where nothing else is said."""
        wanted = {"label": "matched", "communication": communication, **more}
        found = [r for r in self.cells if all(r["cell"][key] == value for key, value in wanted.items())]
        assert len(found) == 1, [(r["cell"]["communication"], r["status"], r["reason"]) for r in self.cells]
        return found[0]


def train(monkeypatch, folder: pathlib.Path, faults: str = "", progress=None, **values) -> MeasuredSteps:
    """Trains over the stand-in's ranks, and checks that nothing of it is left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin,twin=tests.standin")
    monkeypatch.setenv(MARK_VARIABLE, mark)
    monkeypatch.setenv("STANDIN_STEP_FAULT", faults)
    usual = {"frameworks": ("standin",), "batch_size": 8, "launches": 1, "cell_s": 0.05, "min_block_s": 0.005}
    run = parallel.ParallelConfig(**{**usual, "deadline_s": 30.0, "compilers": ("compiled",), **values})
    open_before = descriptors()
    try:
        made = parallel_campaign.execute(
            run, parallel_grid.expand(run), folder, "run", ["test"], progress or campaign.Progress()
        )
    finally:
        assert not marked(mark), "a process is left"
        assert descriptors() == open_before, "a socket or a file is left open"
    return MeasuredSteps(made)
