"""Runs of collectives through the stand-in: what is measured, how it is ordered, what a record holds."""

from __future__ import annotations

import importlib.util
import os

import pytest

from tests import worlds
from xlacompare import frameworks
from xlacompare.collectives import config
from xlacompare.core import collective_cell, errors, record
from xlacompare.launch import campaign, collective_grid, collective_records, rank_rows

EVERY = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute", "barrier")


def block(start: float, total: float, **more) -> dict:
    return {"n": 4, "start_s": start, "total_s": total, "dispatch_s": total / 2, "host_s": 0.1, "compiles": 0, **more}


def test_a_row_is_the_slowest_rank():
    hosts = [{"host": "a"}, {"host": "a"}]
    row = rank_rows.merged([block(1.5, 1.0), block(1.0, 2.0, compiles=2, host_s=0.3)], hosts)
    assert (row.total_s, row.dispatch_s, row.host_s, row.compiles) == (2.0, 1.0, 0.3, 2)
    assert (row.skew_s, row.by_process, row.n, row.start_s) == (0.5, [1.0, 2.0], 4, 1.0)
    other = rank_rows.merged([block(1.0, 2.0), block(1.5, 1.0)], [{"host": "a"}, {"host": "b"}])
    assert other.skew_s is None, "two machines have two clocks"


@pytest.mark.parametrize("transport", ["gloo", "inprocess"])
def test_every_collective(monkeypatch, tmp_path, transport):
    dtypes, reductions = ("float32", "int32"), ("sum", "max")
    found = worlds.measure(
        monkeypatch, tmp_path, collectives=EVERY, transports=(transport,), sizes=(7, 4096), dtypes=dtypes,
        reductions=reductions, mesh=(2, 2), axis=0, cell_s=0.004, min_block_s=0.001,
    )  # fmt: skip
    assert {(r["status"], r["reason"]) for r in found.cells} == {("ok", "")}
    assert len(found.cells) == 2 * 2 * (2 * 2 + 3) + 1
    assert all(r["values"]["wrong"] == 0 and r["values"]["checked"] for r in found.cells if r["cell"]["count"])
    padded = found.of("all_gather", dtype="float32", size_bytes=7)
    assert (padded["cell"]["count"], padded["cell"]["pad_bytes"]) == (1, 1)
    assert len(padded["ranks"]) == (4 if transport == "gloo" else 1)
    written = record.read(tmp_path).records
    assert [r["kind"] for r in written][:1] == ["run"] and written[-1]["ending"] == "complete"
    assert written[0]["mode"] == "collective" and written[0]["config"]["mesh"] == [2, 2]
    cell = collective_cell.CollectiveCell.from_dict(padded["cell"])
    assert cell.comparison == padded["comparison"] and collective_grid.request_of(cell).mesh == (2, 2)


def test_a_record(monkeypatch, tmp_path):
    values = {"collectives": ("all_reduce",), "sizes": (1024,), "min_block_s": 0.05, "cell_s": 0.2}
    made = worlds.measure(monkeypatch, tmp_path, **values).of("all_reduce")
    lengths = {len(values) for values in made["blocks"].values()}
    assert len(lengths) == 1 and lengths.pop() >= 4
    assert all(len(rank["total_s"]) == len(made["blocks"]["n"]) for rank in made["ranks"])
    assert made["blocks"]["total_s"] == [max(both) for both in zip(*(rank["total_s"] for rank in made["ranks"]))]
    assert {len(values) for values in made["iterations"].values()} == {len(made["iterations"]["total_s"])}
    assert len(made["iterations"]["total_s"]) >= 5
    assert made["blocks"]["n"][0] > 1 and set(made["blocks"]["mode"]) == {"block"}
    assert made["fence"]["passed"] in (True, False) and made["launcher"] == "built-in"
    assert made["values"]["checked"] == 2 * 256
    assert made["warm_up"]["steps"] >= 2 and made["compile"]["first_s"] > 0
    assert made["environment"]["checked"]["transport"] == "gloo"
    assert [rank["rank"] for rank in made["ranks"]] == [0, 1]


def test_in_place_reductions_are_refilled(monkeypatch, tmp_path):
    """Else the sum over 2 ranks doubles with every run; the stand-in raises when it finds anything but the input."""
    found = worlds.measure(monkeypatch, tmp_path, collectives=("all_reduce", "ppermute"), placements=("in_place",))
    assert [record["status"] for record in found.cells] == ["ok", "ok"]
    reduced, moved = found.of("all_reduce"), found.of("ppermute")
    assert set(reduced["blocks"]["n"]) == {1} and set(reduced["blocks"]["mode"]) == {"stepwise"}
    assert reduced["iterations"]["total_s"] == reduced["blocks"]["total_s"]
    assert set(moved["blocks"]["mode"]) == {"block"}


def test_the_slowest_rank_sets_the_time(monkeypatch, tmp_path):
    made = worlds.measure(monkeypatch, tmp_path, "1:slow:ppermute:0", collectives=("ppermute",)).of("ppermute")
    assert made["status"] == "ok"
    assert min(total / n for total, n in zip(made["blocks"]["total_s"], made["blocks"]["n"])) >= 0.05
    assert set(made["blocks"]["n"]) == {1} and len(made["blocks"]["n"]) >= 4


def test_worlds_take_turns(monkeypatch, tmp_path):
    both = ("standin", "twin")
    found = worlds.measure(monkeypatch, tmp_path, frameworks=both, collectives=("all_gather",), cell_s=0.1, launches=2)
    by_launch: dict[int, list[tuple[float, str]]] = {}
    for made in found.cells:
        starts = zip(made["blocks"]["start_s"], made["blocks"]["visit"])
        by_launch.setdefault(made["launch"], []).extend((s, made["cell"]["framework"]) for s, _ in starts)
    for starts in by_launch.values():
        order = [name for _, name in sorted(starts)]
        turns = [order[i] for i in range(0, len(order), 2)]
        assert len(turns) >= 4 and order == [name for name in turns for _ in range(2)], "two blocks a visit"
        pairs = [tuple(turns[i : i + 2]) for i in range(0, len(turns), 2)]
        assert all(set(pair) == set(both) for pair in pairs)
        assert all(pairs[i] == pairs[i + 1][::-1] for i in range(0, len(pairs) - 1, 2)), "ABBA"
    pids = [{rank["pid"] for rank in made["ranks"]} for made in found.cells]
    assert not pids[0] & pids[2], "a launch has processes of its own"


def test_a_failed_cell_is_left_out_of_later_launches(monkeypatch, tmp_path):
    names = ("all_gather", "ppermute")
    found = worlds.measure(monkeypatch, tmp_path, "1:wrong:all_gather:1", collectives=names, launches=2)
    seen = [(made["cell"]["collective"], made["launch"], made["status"]) for made in found.cells]
    assert seen == [("all_gather", 0, "mismatch"), ("ppermute", 0, "ok"), ("ppermute", 1, "ok")]
    assert set(found.made.failed.values()) == {"mismatch"}
    plan = next(made["plan"] for made in found.made.records if made["kind"] == "plan")
    assert plan["looks"] == [2]


def test_a_collective_that_never_ran_has_no_time(monkeypatch, tmp_path):
    monkeypatch.setenv("STANDIN_LOG", "empty")
    made = worlds.measure(monkeypatch, tmp_path, collectives=("all_reduce",)).of("all_reduce")
    assert made["status"] == "mismatch" and "removed" in made["reason"]
    assert not made["blocks"]["total_s"] and made["lowering"]["source"] == "c10d"


class Heard(campaign.Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(("cores", "marked"), [(1, True), (2, False)])
def test_more_ranks_than_cores(monkeypatch, tmp_path, cores, marked):
    if len(os.sched_getaffinity(0)) < cores:
        pytest.skip(f"needs {cores} cores")
    heard = Heard()
    made = worlds.measure(monkeypatch, tmp_path, progress=heard, collectives=("barrier",), num_cores=cores)
    assert made.of("barrier")["oversubscribed"] is marked
    assert any("2 ranks on 1 core" in text for text in heard.said) is marked
    pinned = [rank["affinity"] for rank in made.of("barrier")["ranks"]]
    assert (pinned[0] == pinned[1]) is marked, "a core for each rank, where there is one"


def grid(**values) -> collective_grid.Grid:
    return collective_grid.expand(config.CollectiveConfig(**{"frameworks": ("standin",), "sizes": (64,), **values}))


def test_what_is_not_supported_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    for values, words in (
        ({"collectives": ("broadcast",)}, "the stand-in has no broadcast"),
        ({"transports": ("nccl",)}, "standin has no transport 'nccl': NumPy has no GPU"),
        ({"transports": ("ici",)}, "not a transport of this framework"),
        ({"modes": ("threads",)}, "standin runs gloo in mode process, not threads"),
        ({"reductions": ("mean",), "dtypes": ("int32",)}, "int32"),
    ):
        made = grid(**values)
        assert not made.cells and len(made.unsupported) == 1 and words in made.unsupported[0][1]
    found = worlds.measure(monkeypatch, tmp_path, collectives=("broadcast",)).of("broadcast")
    assert (found["status"], found["reason"]) == ("unsupported", "the stand-in has no broadcast")


def test_what_an_extra_leaves_to_be_done_is_said(monkeypatch):
    """mpi4jax is in no extra: it has no wheel."""
    spec = frameworks.transports("jax").TRANSPORTS["mpi"]
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("mpi4") else find(name))
    assert spec.missing().startswith("mpi4jax, mpi4py not installed here; install with: pip install -e '.[mpi]'; mpi4")
    assert "`make test`" in spec.missing() and "BUILD_NOTES.md" in spec.missing()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert spec.missing() is None


@pytest.mark.parametrize(
    "values",
    [
        {"collectives": ("all_reduse",)},
        {"collectives": ("ppermute",), "patterns": ("pairs:0>7",)},
        {"axis": 0},
        {"mesh": (2, 2, 2)},
        {"root": 2},
        {"sizes": (0,)},
        {"sizes": (4, 4)},
        {"transports": ("tcp",)},
        {"deadline_s": 0.0},
        {"launches": -1},
        {"frameworks": ()},
    ],
)
def test_bad_input(monkeypatch, values):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    with pytest.raises(errors.BadInputError):
        grid(**values)


class Parser:
    """In place of the graph's child process."""

    def __init__(self) -> None:
        self.asked = 0

    def collectives(self, texts: list[str]) -> list:
        self.asked += 1
        return [f"cannot read {text}" for text in texts]


def test_the_census_asks_once_for_equal_programs(monkeypatch):
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    cell, parser = grid().cells[0], Parser()
    census = collective_records.Census(parser)
    for _ in range(2):
        made, removed = census.judge(cell, {"source": "hlo", "text": "HloModule x", "optimised": True})
        assert (made["problem"], removed, made["optimised"]) == ("cannot read HloModule x", False, True)
    assert parser.asked == 1
    assert "text" not in made and len(made["fingerprint"]) == 16
    assert census.judge(cell, None)[0]["problem"]
