"""`python -m xlacompare.run --collective=...`: bad input is one line, from flags to report, under a launcher."""

from __future__ import annotations

import functools
import json
import pathlib

import pytest
from absl import flags

from tests import conftest
from xlacompare import run_collectives, run_steps
from xlacompare.core import errors, record

QUICK = ["--cell_s=0.02", "--min_block_s=0.002", "--sizes=1KiB:64KiB:8", "--deadline_s=30"]
STANDIN = {"XLACOMPARE_FRAMEWORKS": "standin=tests.standin"}


KINDS = ("list", "string", "integer", "float", "enum", "bool", "boolean", "multi_string", "flag")
DEFINE = {f"DEFINE_{kind}": getattr(flags, f"DEFINE_{kind}") for kind in KINDS}


@pytest.fixture
def parsed(monkeypatch):
    """Parses flags into a registry of this test's own."""

    def parse(*arguments: str) -> None:
        own = flags.FlagValues()
        monkeypatch.setattr(flags, "FLAGS", own)
        for name, define in DEFINE.items():
            monkeypatch.setattr(flags, name, functools.partial(define, flag_values=own))
        run_steps.define_flags()
        own(["run", *arguments])

    return parse


def asked(parsed, *arguments: str, started: int | None = None):
    """Configuration that these flags ask for, or the error that refuses them."""
    parsed("--collective=all_reduce", *arguments)
    run_steps.check_flags()
    return run_collectives.read_config(started)


def test_the_command_of_the_issue(parsed):
    made = asked(
        parsed, "--framework=jax,torch,torch_xla", "--collective=all_reduce,all_gather,ppermute",
        "--sizes=1KiB:64MiB:4", "--num_devices=2", "--transport=gloo",
    )  # fmt: skip
    assert made.frameworks == ("jax", "torch", "torch_xla") and made.mesh == (2,)
    assert made.collectives == ("all_reduce", "all_gather", "ppermute")
    assert made.sizes == tuple(1024 * 4**i for i in range(9)) and made.transports == ("gloo",)


def test_defaults_of_this_job_are_not_those_of_steps(parsed):
    made = asked(parsed)
    assert (made.cell_s, made.deadline_s, made.launches) == (
        run_collectives.DEFAULTS.cell_s,
        run_collectives.DEFAULTS.deadline_s,
        run_collectives.DEFAULTS.launches,
    )
    assert asked(parsed, "--cell_s=1", "--launches=4").cell_s == 1.0


def test_ranks(parsed):
    """From flags, or from whoever started the processes."""
    assert asked(parsed).mesh == (2,) and asked(parsed, started=4).mesh == (4,)
    assert asked(parsed, "--mesh=2x3", "--axis=1").group_size == 3
    assert asked(parsed, "--mesh=2x2", "--num_devices=4", started=4).num_ranks == 4
    with pytest.raises(errors.BadInputError, match="started 4 ranks"):
        asked(parsed, "--num_devices=2", started=4)


def test_everything_that_a_flag_can_say(parsed):
    made = asked(
        parsed, "--collective=all_reduce,ppermute,broadcast", "--dtype=bfloat16,int32", "--reduction=max,min",
        "--pattern=shift:1", "--pattern=pairs:0>1,1>0", "--root=1", "--placement=out_of_place,in_place",
        "--mode=process", "--transport=gloo,mpi", "--sizes=1MiB,3MiB", "--margin=0.1", "--seed=3",
    )  # fmt: skip
    assert made.patterns == ("shift:1", "pairs:0>1,1>0") and made.reductions == ("max", "min")
    assert made.placements == ("out_of_place", "in_place") and made.root == 1 and made.seed == 3
    assert made.dtypes == ("bfloat16", "int32") and made.modes == ("process",) and made.margin == 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--collective=all_reduze"], "no collective 'all_reduze'"),
        (["--sizes=1KiB:3"], "first must be positive and at most last"),
        (["--sizes=many"], "'many'"),
        (["--sizes=0"], "0 bytes"),
        (["--transport=wifi"], "unknown transport 'wifi'"),
        (["--mode=fast"], "unknown mode 'fast'"),
        (["--dtype=float8"], "unknown dtype 'float8'"),
        (["--reduction=product"], "unknown reduction"),
        (["--placement=sideways"], "unknown placement"),
        (["--axis=0"], "needs a mesh of two axes"),
        (["--mesh=2x2", "--axis=2"], "is 0 or 1"),
        (["--mesh=2x2x2"], "is no mesh"),
        (["--mesh=2x2", "--num_devices=3"], "give one of them"),
        (["--num_devices=0"], "the least is 1"),
        (["--root=2"], "--root=2"),
        (["--collective=ppermute", "--pattern=star"], "'star' is no pattern"),
        (["--collective=ppermute", "--pattern=pairs:0>1,1>1"], "destination twice"),
        (["--launches=-1"], "--launches=-1"),
        (["--deadline_s=0"], "--deadline_s=0"),
        (["--num_cores=9999"], "--num_cores=9999"),
        (["--framework=jax,jax"], "named twice"),
        (["--workload=mlp"], "--workload is of training steps"),
        (["--compiler=eager"], "--compiler is of training steps"),
        (["--pjrt_plugin=x"], "--pjrt_plugin is of training steps"),
        (["--replay"], "--replay is of training steps"),
    ],
)
def test_bad_input(parsed, arguments, says):
    with pytest.raises(errors.BadInputError, match=says.replace("?", r"\?")) as raised:
        asked(parsed, *arguments)
    assert "\n" not in str(raised.value) and raised.value.exit_code == errors.EXIT_BAD_INPUT


@pytest.mark.parametrize("flag", [f"--{name}=1" for name in run_collectives.ONLY_HERE] + ["--format=nccl"])
def test_flags_of_collectives_are_refused_without_one(parsed, flag):
    parsed(flag)
    with pytest.raises(errors.BadInputError, match="is of collectives; give --collective="):
        run_steps.check_flags()


def command(folder: pathlib.Path, *arguments: str) -> list[str]:
    own = ["--framework=standin", "--num_devices=2", f"--output_dir={folder}", *QUICK]
    return ["-m", "xlacompare.run", *own, *arguments]


def test_from_flags_to_report(tmp_path):
    """Records, a report on standard output and nothing else there; unsupported rows with the reason."""
    collectives = "--collective=all_reduce,ppermute,broadcast,barrier"
    child = conftest.run_child(command(tmp_path, collectives, "--format=json"), env=STANDIN, timeout=120)
    assert child.returncode == errors.EXIT_OK, child.stderr
    screen = json.loads(child.stdout)
    assert screen["ending"] == "complete" and screen["command"].startswith("python -m xlacompare.run")
    statuses = {cell["cell"]["collective"]: (cell["status"], cell["reason"]) for cell in screen["cells"]}
    assert statuses["broadcast"] == ("unsupported", "the stand-in has no broadcast")
    assert {statuses[name][0] for name in ("all_reduce", "ppermute", "barrier")} == {"ok"}
    for cell in screen["cells"]:
        if cell["cell"]["collective"] in ("all_reduce", "ppermute"):
            assert cell["wrong"] == 0 and cell["checked"] > 0 and cell["time"]["mean"] > 0 and cell["busbw"] > 0
    assert len([r for r in record.read(tmp_path).records if r["kind"] == "collective"]) == len(screen["cells"])
    text = conftest.run_child(["-c", _AGAIN, str(tmp_path)])
    assert "all_reduce sum, float32, 2 ranks, over gloo" in text.stdout, text.stderr


_AGAIN = """\
import pathlib, sys
from xlacompare.core import record
from xlacompare.report import render
print(render.of_records(record.read(pathlib.Path(sys.argv[1])).records, "text", False))
"""


def test_bad_input_of_the_command_is_one_line(tmp_path):
    for arguments in (["--collective=all_reduze"], ["--collective=all_reduce", "--axis=0"]):
        child = conftest.run_child(command(tmp_path, *arguments), env=STANDIN)
        assert child.returncode == errors.EXIT_BAD_INPUT
        assert len(child.stderr.splitlines()) == 1 and child.stderr.startswith("xlacompare: "), child.stderr
        assert child.stdout == ""


def test_the_same_command_under_a_launcher(tmp_path):
    """Two processes as torchrun would start them: both join, rank 0's prints, both end."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "LOCAL_WORLD_SIZE": "2"}
    arguments = [a for a in command(tmp_path, "--collective=all_reduce", "--format=nccl") if "num_devices" not in a]
    code = f"""
import os, subprocess, sys
shared = {shared!r}
ranks = [
    subprocess.Popen([sys.executable, *{arguments!r}], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                     env=os.environ | shared | {{"RANK": str(rank), "LOCAL_RANK": str(rank)}})
    for rank in (1, 0)
]
outs = [child.communicate(timeout=100) for child in ranks]
assert [child.returncode for child in ranks] == [0, 0], outs
assert outs[0] == ("", ""), outs[0]
print(outs[1][0])
"""
    child = conftest.run_child(code, env=STANDIN, timeout=120)
    assert child.returncode == 0, child.stderr
    assert "# Collective test starting: all_reduce_perf" in child.stdout and "# nRanks 2" in child.stdout
    made = [r for r in record.read(tmp_path).records if r["kind"] == "collective"]
    assert made and {(r["status"], r["launcher"]) for r in made} == {("ok", "torchrun")}
