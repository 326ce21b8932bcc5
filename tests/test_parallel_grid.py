"""What can be trained over ranks and what not, what is planted, and what a cell asks of an adapter."""

from __future__ import annotations

import pytest

from xlacompare import frameworks
from xlacompare.core import errors
from xlacompare.launch import launchers, parallel_grid, planted, rank_link
from xlacompare.parallel import config


def grid(monkeypatch, **values) -> parallel_grid.Grid:
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    return parallel_grid.expand(config.ParallelConfig(**{"frameworks": ("standin",), "batch_size": 8, **values}))


def test_what_is_not_supported_says_why(monkeypatch):
    for values, words in (
        ({"strategies": ("fsdp",)}, "standin has no strategy 'fsdp': the stand-in shards nothing"),
        ({"strategies": ("tp",), "workloads": ("mlp",)}, "not a strategy of this framework"),
        ({"transports": ("nccl",)}, "standin has no transport 'nccl': NumPy has no GPU"),
        ({"transports": ("mpi",)}, "standin runs dp over mpi in no mode"),
        ({"modes": ("threads",)}, "standin runs dp over gloo in process, not threads"),
        ({"compilers": ("opt0",)}, "standin has no compiler arm 'opt0' for dp; it has eager, compiled"),
        ({"workloads": ("convnet",), "communications": ("real",)}, "no batch norm over ranks"),
    ):
        made = grid(monkeypatch, **values)
        assert not made.cells and len(made.unsupported) == 1 and words in made.unsupported[0][1], made.unsupported
    found = grid(monkeypatch, workloads=("convnet",), communications=("alone",)).unsupported
    assert [(cell.communication, reason.startswith("there is no `real`")) for cell, reason in found] == [
        *(("real", False), ("alone", False))
    ]


def test_real_joins_what_replays_it(monkeypatch):
    assert [c.communication for c in grid(monkeypatch, communications=("alone",)).cells] == ["real", "alone"]
    assert [c.communication for c in grid(monkeypatch, communications=("elided",)).cells] == ["elided"]
    assert [c.compiler for c in grid(monkeypatch, communications=("real",)).cells] == ["eager"], "its first"


def test_settings_of_strategies(monkeypatch):
    (cell,) = grid(monkeypatch, communications=("real",), settings=(("bucket_mb", 1.0),)).cells
    assert cell.label == "matched" and cell.changed == (("bucket_mb", 1.0),)
    assert dict(parallel_grid.request_of(cell).settings)["bucket_mb"] == 1.0
    (usual,) = grid(monkeypatch, communications=("real",), settings=(("bucket_mb", 25.0),)).cells
    assert usual.changed == () and dict(parallel_grid.request_of(usual).settings)["bucket_mb"] == 25
    (_, twin) = grid(monkeypatch, communications=("real",), planted=("extra_matmul=64,sleep_s=0.5",)).cells
    settings = dict(parallel_grid.request_of(twin).settings)
    assert settings["extra_matmul"] == 64 and "sleep_s" not in settings, "what launch plants is not the adapter's"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"batch_size": 9}, "does not divide among 2 ranks"),
        ({"num_ranks": 1}, "two ranks at the least"),
        ({"strategies": ("zero",)}, "unknown strategy 'zero'"),
        ({"communications": ("mute",)}, "unknown communication arm 'mute'"),
        ({"communications": ("real", "real")}, "named twice"),
        ({"dtypes": ("float8",)}, "unknown dtype"),
        ({"workloads": ("lenet",)}, "lenet"),
        ({"settings": (("bucket_gb", 1),)}, "no strategy of standin has this setting"),
        ({"planted": ("slow_rank",)}, "give name=value"),
        ({"planted": ("slow_rank=1",)}, "give RANK:SECONDS"),
        ({"planted": ("process=b",)}, "needs a process of its own"),
        ({"deadline_s": 0.0}, "--deadline_s=0"),
        ({"num_cores": 0}, "--num_cores=0"),
    ],
)
def test_bad_input(monkeypatch, values, says):
    with pytest.raises(errors.BadInputError, match=says):
        grid(monkeypatch, **values)


def test_an_arm_with_variables_has_a_world_of_its_own(monkeypatch):
    (cell,) = grid(monkeypatch, communications=("real",)).cells
    own = frameworks.arms("standin").ARMS["nofusion"]
    monkeypatch.setitem(frameworks.arms("standin").ARMS, "eager", own)
    assert parallel_grid.arm_of(cell) == "eager"
    spec = launchers.Spec("standin", "gloo", "process", 2, "cpu", (0,), 9.0, parallel_grid.arm_of(cell))
    monkeypatch.setenv("STANDIN_FLAGS", "--there")
    variables = launchers.environment(spec, spec.place(0, 0, 2, "", 0))
    assert variables["STANDIN_FLAGS"] == "--there --nofusion", "added to what is there"


class Recorded:
    """A step that writes down what is done to it."""

    def __init__(self) -> None:
        self.compile_times, self.done = None, []

    def __getattr__(self, name: str):
        return lambda *_: self.done.append(name)


def test_a_busy_rank_waits_first():
    """Else the device would work meanwhile and nobody would be late."""
    step, times = Recorded(), iter([0.0, 0.4, 0.9, 1.1])
    planted.BusyStep(step, 1.0, lambda: next(times)).run(7)
    assert step.done == ["synchronize", "run"] and next(times, None) is None
    assert planted.of_ranks(step, {"slow_rank": "1:0.5"}, (0,)) is step
    assert isinstance(planted.of_ranks(step, {"slow_rank": "1:0.5"}, (0, 1)), planted.BusyStep)


def test_the_rate_of_a_link(monkeypatch):
    (cell, twin) = grid(monkeypatch, communications=("real",), planted=("planted_link=200mbit",)).cells
    ran = []
    monkeypatch.setattr(rank_link.subprocess, "run", lambda rule, **_: ran.append(rule) or Done())
    link = rank_link.RankLink.of({rank_link.VARIABLE: "link0 1gbit 256kb 1s"})
    for point in (cell, twin, twin, cell):
        link.set_for(point)
    assert [rule[rule.index("rate") + 1] for rule in ran] == ["200mbit", "1gbit"], "only where it changes"
    assert " ".join(ran[0]).endswith("dev link0 root tbf rate 200mbit burst 256kb latency 1s")
    with pytest.raises(errors.UnsupportedError, match="no throttled link"):
        rank_link.RankLink.of({}).set_for(twin)
    rank_link.RankLink.of({}).set_for(cell)


class Done:
    returncode, stderr = 0, ""
