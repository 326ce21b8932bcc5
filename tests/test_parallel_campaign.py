"""Training over the stand-in's ranks: what is measured, how it is ordered, what a record holds, what has no time."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests import worlds
from xlacompare.core import cell as cells
from xlacompare.core import record
from xlacompare.launch import campaign
from xlacompare.parallel import arms

BOTH = ("standin", "twin")


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> tuple[worlds.MeasuredSteps, pathlib.Path]:
    """Two frameworks, every arm, in two launches."""
    folder = tmp_path_factory.mktemp("everything")
    with pytest.MonkeyPatch.context() as patch:
        values = {"frameworks": BOTH, "launches": 2, "cell_s": 0.01, "min_block_s": 0.002}
        return worlds.train(patch, folder, **values), folder


def blocks_of(records: list[dict]) -> list[tuple[float, str, str, int, int]]:
    """(start, framework, arm, visit, position) of every block, as they were run."""
    found = []
    for made in records:
        cell, blocks = made["cell"], made["blocks"]
        arm = f"{cell['compiler']} {cell['communication']}"
        where = zip(blocks["start_s"], blocks["visit"], blocks["position"], strict=True)
        found += [(start, cell["framework"], arm, visit, position) for start, visit, position in where]
    return sorted(found)


def test_every_arm_is_measured(everything):
    found, folder = everything
    assert {(r["status"], r["reason"]) for r in found.cells} == {("ok", "")}
    assert len(found.cells) == 2 * 2 * len(arms.ARMS)
    written = record.read(folder).records
    assert written[0]["mode"] == "parallel" and written[-1]["ending"] == "complete"
    assert written[0]["definitions"]["communication"]["real"] == arms.DEFINITIONS["real"]
    assert [r["plan"]["looks"] for r in written if r["kind"] == "plan"] == [[2]]
    first = cells.Cell.from_dict(found.cells[0]["cell"])
    assert first.comparison == found.cells[0]["comparison"] and first.id in (c.id for c in found.made.grid.cells)


def test_what_the_arms_did_is_in_the_record(everything):
    found, _ = everything
    by_arm = {
        r["cell"]["communication"]: r for r in found.cells if r["launch"] == 0 and r["cell"]["framework"] == "twin"
    }
    kinds = {arm: made["gate"]["kind"] for arm, made in by_arm.items()}
    expected = ("values", "finite", "finite", "values", "none", "none")
    assert kinds == dict(zip(("real", "elided", "token", "serial", "alone", "alone_token"), expected, strict=True))
    checks = by_arm["real"]["gate"]["checks"]
    assert checks["gradient"] == checks["update"] and checks["trace"] == 4
    sent = {arm: made["census"]["wire_bytes"] for arm, made in by_arm.items()}
    operands = by_arm["real"]["census"]["ops"][0]["operands"]
    assert sent["real"] == sent["serial"] == sent["alone"] > sent["token"] == sent["alone_token"] == 4 * operands
    assert sent["elided"] == 0 and by_arm["elided"]["census"]["ops"] == []
    assert {by_arm[arm]["work"]["status"] for arm in ("real", "elided", "token", "serial")} == {"ok"}
    assert by_arm["real"]["fence"]["passed"] in (True, False) and by_arm["real"]["warm_up"]["steps"] >= 2
    assert by_arm["real"]["environment"]["checked"]["transport"] == "gloo"
    assert by_arm["real"]["facts"]["flops_per_step"] > 0


def test_a_row_is_the_slowest_rank(everything):
    found, _ = everything
    for made in found.cells:
        lengths = {len(values) for values in made["blocks"].values()}
        assert len(lengths) == 1 and lengths.pop() >= 8
        assert made["blocks"]["total_s"] == [max(both) for both in zip(*(r["total_s"] for r in made["ranks"]))]
        assert [rank["rank"] for rank in made["ranks"]] == [0, 1]


def test_the_arms_of_a_framework_share_a_world(everything):
    found, _ = everything
    pids: dict[tuple[int, str], set[tuple[int, ...]]] = {}
    for made in found.cells:
        key = made["launch"], made["cell"]["framework"]
        pids.setdefault(key, set()).add(tuple(rank["pid"] for rank in made["ranks"]))
    assert all(len(worlds_of_one) == 1 for worlds_of_one in pids.values())
    assert len({pid for group in pids.values() for ranks in group for pid in ranks}) == 8, "a launch has its own"


def test_visits_are_balanced(everything):
    found, _ = everything
    for launch in (0, 1):
        run = blocks_of([r for r in found.cells if r["launch"] == launch])
        visits: list[tuple[str, int, list[str]]] = []
        for _, framework, arm, visit, position in run:
            if not visits or visits[-1][:2] != (framework, visit):
                visits.append((framework, visit, []))
                assert position == 0
            visits[-1][2].append(arm)
        assert len(visits) >= 8 and all(len(order) == 2 * len(arms.ARMS) for *_, order in visits)
        assert all(order == order[::-1] for *_, order in visits), "forwards and backwards"
        assert all(len(set(order)) == len(arms.ARMS) for *_, order in visits)
        assert len({order[0] for *_, order in visits}) > 2, "another arm is first"
        names = [framework for framework, *_ in visits]
        pairs = [tuple(names[i : i + 2]) for i in range(0, len(names), 2)]
        assert all(set(pair) == set(BOTH) for pair in pairs)
        assert pairs[0] == pairs[1][::-1], "ABBA"


def statuses(found: worlds.MeasuredSteps, **more) -> dict[str, tuple[str, str]]:
    chosen = [r for r in found.cells if all(r["cell"][key] == value for key, value in more.items())]
    return {r["cell"]["communication"]: (r["status"], r["reason"]) for r in chosen}


def test_an_arm_that_does_something_else_has_no_time(monkeypatch, tmp_path):
    """Each fault in its own arm: the others are measured."""
    faults = [
        *("1:sum:real:eager", "0:nan:elided:eager", "0:lost:token:eager"),
        *("0:talks:elided:compiled", "0:bytes:token:compiled", "0:bytes:serial:compiled"),
    ]
    found = worlds.train(monkeypatch, tmp_path, ",".join(faults), compilers=("eager", "compiled"))
    eager, compiled = (statuses(found, compiler=compiler) for compiler in ("eager", "compiled"))
    wrong = {"real": eager["real"], "elided": eager["elided"], "token": eager["token"]} | {
        f"compiled {arm}": compiled[arm] for arm in ("elided", "token", "serial")
    }
    assert {status for status, _ in wrong.values()} == {"mismatch"}
    assert wrong["real"][1].startswith("rank 1: gate failed at gradient "), wrong["real"]
    assert "2" in wrong["real"][1].partition("likely:")[2], "a sum instead of a mean over 2 ranks"
    assert "not finite" in wrong["elided"][1] and wrong["elided"][1].startswith("rank 0: ")
    assert wrong["token"][1].startswith("token has 5 operands of collectives")
    assert wrong["compiled elided"][1].startswith("elided communicates: 1 all-reduce f32 of ")
    assert wrong["compiled token"][1].startswith("token moves more than an element per operand: 424 bytes")
    assert "serial sends" in wrong["compiled serial"][1] and "real" in wrong["compiled serial"][1]
    assert eager["alone"][0] == "unsupported" and "`real`" in eager["alone"][1] and "mismatch" in eager["alone"][1]
    assert {compiled[arm][0] for arm in ("real", "alone", "alone_token")} | {eager["serial"][0]} == {"ok"}
    assert not found.of("serial", compiler="compiled")["blocks"]["total_s"]
    assert set(found.made.failed.values()) == {"mismatch", "unsupported"}


def test_other_work_is_seen(monkeypatch, tmp_path):
    found = worlds.train(monkeypatch, tmp_path, "0:product:elided:compiled", communications=("real", "elided"))
    assert found.of("real")["status"] == "ok"
    made = found.of("elided")
    assert made["status"] == "mismatch" and "is run 2 times in elided and 1 time in real" in made["reason"]
    assert made["work"]["status"] == "mismatch" and not made["blocks"]["total_s"]


def test_a_rank_that_does_the_whole_batch_is_seen(monkeypatch, tmp_path):
    """Its values are right: the mean of equal losses."""
    monkeypatch.setenv("STANDIN_WHOLE_BATCH", "1")
    made = worlds.train(monkeypatch, tmp_path, communications=("real",)).of("real")
    assert made["gate"]["passed"] and made["status"] == "mismatch"
    assert "its share of the batch is" in made["reason"]


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("1:die:elided:compiled", "crash", "rank 1 was ended by SIGKILL"),
        ("0:stop:token:compiled", "hang", "rank 0 is stopped (SIGSTOP)"),
        ("1:unsupported:serial:compiled", "unsupported", "rank 1: planted"),
    ],
)
def test_a_rank_that_fails(monkeypatch, tmp_path, fault, status, words):
    monkeypatch.setattr("xlacompare.launch.world.ERROR_GRACE_S", 0.5)
    found = worlds.train(monkeypatch, tmp_path, fault, deadline_s=6.0)
    arm = fault.split(":")[2]
    assert found.of(arm)["status"] == status and words in found.of(arm)["reason"], found.of(arm)["reason"]
    rest = [made for made in found.cells if made["cell"]["communication"] != arm]
    assert len(rest) == len(arms.ARMS) - 1 and {made["status"] for made in rest} == {"ok"}
    assert len({tuple(rank["pid"] for rank in made["ranks"]) for made in rest}) == 1, "measured again in one world"
    partial = [made for made in found.made.records if made["kind"] == "partial"]
    assert bool(partial) == (status in ("crash", "hang")), "what was measured before is set apart"
    assert len({len(made["blocks"]["n"]) for made in rest}) == 1, "and nothing of it is mixed in"


class Interrupting(campaign.Progress):
    def phase(self, text: str, done: float, total: float) -> None:
        if "visit 3" in text:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_what_is_measured(monkeypatch, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        worlds.train(monkeypatch, tmp_path, progress=Interrupting(), communications=("real", "elided"))
    written = record.read(tmp_path).records
    assert written[-1]["ending"] == "interrupted"
    made = [r for r in written if r["kind"] == "parallel"]
    assert {r["cell"]["communication"] for r in made} == {"real", "elided"}
    assert all(len(r["blocks"]["n"]) == 4 and "interrupted" in r["work"]["reason"] for r in made)


def test_planted_causes(monkeypatch, tmp_path):
    """Twins in the same world; a slow rank is slow in every arm that trains, and the other rank waits for it."""
    slow = "slow_rank=1:0.03"
    causes = (slow, "planted_link=1gbit", "repeat_every=2")
    found = worlds.train(monkeypatch, tmp_path, planted=causes, communications=("real", "elided", "alone"))
    twin = {arm: found.of(arm, label=f"planted:{slow}") for arm in ("real", "elided", "alone")}
    assert len({tuple(rank["pid"] for rank in r["ranks"]) for r in (*twin.values(), found.of("real"))}) == 1
    assert fastest(twin["real"]) > 0.03 and fastest(twin["elided"]) > 0.03 > fastest(twin["alone"])
    assert fastest(twin["elided"], 1) > 0.03 > fastest(twin["elided"], 0), "without communication nobody waits"
    assert fastest(twin["real"], 0) > 0.03
    linked = found.of("real", label="planted:planted_link=1gbit")
    assert linked["status"] == "unsupported" and "no throttled link" in linked["reason"]
    assert found.of("elided", label="planted:repeat_every=2")["status"] == "ok"


def fastest(made: dict, rank: int | None = None) -> float:
    """Seconds a step of the fastest block, of one rank or of the slowest: other work only adds to it."""
    assert made["status"] == "ok", made["reason"]
    times = made["blocks"]["total_s"] if rank is None else made["ranks"][rank]["total_s"]
    return min(total / n for total, n in zip(times, made["blocks"]["n"], strict=True))


def test_one_process_for_all_ranks(monkeypatch, tmp_path):
    found = worlds.train(monkeypatch, tmp_path, transports=("inprocess",), communications=("real", "elided", "alone"))
    assert {(r["status"], r["reason"], r["cell"]["mode"]) for r in found.cells} == {("ok", "", "spmd")}
    assert [rank["rank"] for rank in found.of("real")["ranks"]] == [0]


def test_pinning(everything):
    """A core for each rank, where there is one."""
    found, _ = everything
    pinned = [tuple(rank["affinity"]) for rank in found.cells[0]["ranks"]]
    alone = len(os.sched_getaffinity(0)) < 2
    assert found.cells[0]["oversubscribed"] is alone and (pinned[0] == pinned[1]) is alone
