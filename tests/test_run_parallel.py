"""`python -m xlacompare.run --strategy=...`: bad input is one line, from flags to report, under a launcher."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests import conftest
from tests.test_run_collectives import STANDIN, parsed  # noqa: F401 (a fixture)
from xlacompare import run_collectives, run_parallel, run_steps
from xlacompare.core import errors, record

QUICK = ["--cell_s=0.01", "--min_block_s=0.002", "--batch_size=8", "--deadline_s=60", "--launches=1"]


def asked(parsed, *arguments: str, started: int | None = None):  # noqa: F811
    """Configuration that these flags ask for, or the error that refuses them."""
    parsed("--strategy=dp", *arguments)
    run_steps.check_flags()
    return run_parallel.read_config(started)


def test_the_command_of_the_issue(parsed):  # noqa: F811
    made = asked(
        parsed, "--framework=jax,torch", "--workload=transformer", "--num_devices=2", "--transport=gloo",
        "--compiler=compiled,eager", "--communication=real,elided,token,serial,alone",
    )  # fmt: skip
    assert made.frameworks == ("jax", "torch") and made.strategies == ("dp",) and made.num_ranks == 2
    assert made.compilers == ("compiled", "eager") and made.transports == ("gloo",) and made.launches == 3
    assert made.communications == ("real", "elided", "token", "serial", "alone")


def test_defaults(parsed):  # noqa: F811
    made = asked(parsed)
    assert made.compilers == () and made.modes == (), "each framework's first"
    assert made.communications == run_parallel.DEFAULTS.communications and made.launches == 2
    assert (made.cell_s, made.num_cores) == (run_parallel.DEFAULTS.cell_s, None)
    assert asked(parsed, started=4).num_ranks == 4
    made = asked(parsed, "--bucket_mb=1", "--planted=slow_rank=1:0.1", "--planted=sleep_s=0.1,repeat_every=2")
    assert made.settings == (("bucket_mb", 1.0),)
    assert made.planted == ("slow_rank=1:0.1", "sleep_s=0.1,repeat_every=2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy=zero"], "unknown strategy 'zero'; known: dp"),
        (["--communication=mute"], "unknown communication arm 'mute'"),
        (["--transport=wifi"], "unknown transport 'wifi'"),
        (["--mode=fast"], "unknown mode 'fast'"),
        (["--compiler=fast"], "unknown compiler 'fast'"),
        (["--dtype=int32"], "unknown dtype 'int32'"),
        (["--num_devices=1"], "--num_devices=1: a strategy is for two ranks"),
        (["--num_devices=0"], "the least is 1"),
        (["--bucket_mb=0"], "--bucket_mb=0"),
        (["--num_cores=9999"], "--num_cores=9999"),
        (["--framework=jax,jax"], "named twice"),
        (["--collective=all_reduce"], "two jobs; give one"),
        (["--sizes=1KiB"], "--sizes is of collectives; it means nothing with --strategy"),
        (["--mesh=2x2"], "--mesh is of collectives; it means nothing with --strategy"),
        (["--replay"], "--replay is of steps on one device"),
        (["--settings=both"], "--settings is of steps on one device"),
        (["--format=nccl"], "--format=nccl is of collectives"),
    ],
)
def test_bad_input(parsed, arguments, says):  # noqa: F811
    with pytest.raises(errors.BadInputError, match=says) as raised:
        asked(parsed, *arguments)
    assert "\n" not in str(raised.value) and raised.value.exit_code == errors.EXIT_BAD_INPUT


@pytest.mark.parametrize("flag", ["--communication=real", "--bucket_mb=1", "--planted=a=1"])
def test_flags_of_this_job_are_refused_without_it(parsed, flag):  # noqa: F811
    for job, says in (("", "give --strategy=dp"), ("--collective=all_reduce", "means nothing with --collective")):
        parsed(*filter(None, [flag, job]))
        with pytest.raises(errors.BadInputError, match=f"is of training over ranks; .*{says}"):
            run_steps.check_flags()


@pytest.mark.parametrize("flag", [f"--{name}=1" for name in run_steps.OVER_RANKS])
def test_flags_of_ranks_are_refused_on_one_device(parsed, flag):  # noqa: F811
    parsed(flag)
    with pytest.raises(errors.BadInputError, match=r"is of several ranks; give --collective=.* or --strategy=dp"):
        run_steps.check_flags()


def test_every_flag_belongs_to_a_job(parsed):  # noqa: F811
    """Those that no list names are of all jobs."""
    parsed()
    listed = [
        *(*run_steps.OF_STEPS, *run_steps.ONE_DEVICE, *run_steps.OVER_RANKS),
        *(*run_collectives.ONLY_HERE, *run_parallel.ONLY_HERE, "collective", "strategy"),
    ]
    assert len(listed) == len(set(listed))
    everybodys = {"framework", "dtype", "launches", "target_ci", "budget_s", "margin", "cell_s", "min_block_s"} | {
        *("platform", "num_cores", "deadline_s", "seed", "output_dir", "format", "expert"),
    }
    assert set(run_steps.flags.FLAGS) - set(listed) - {"help", "helpfull", "helpshort", "helpxml"} == everybodys


def command(folder: pathlib.Path, *arguments: str) -> list[str]:
    own = ["--framework=standin", "--strategy=dp", f"--output_dir={folder}", *QUICK]
    return ["-m", "xlacompare.run", *own, *arguments]


def test_from_flags_to_records(tmp_path):
    arguments = ("--num_devices=2", "--compiler=compiled,opt0", "--communication=elided,alone", "--format=json")
    child = conftest.run_child(command(tmp_path, *arguments), env=STANDIN, timeout=150)
    assert child.returncode == errors.EXIT_OK, child.stderr
    json.loads(child.stdout)
    made = [r for r in record.read(tmp_path).records if r["kind"] == "parallel"]
    found = {(r["cell"]["compiler"], r["cell"]["communication"]): r["status"] for r in made}
    assert found == {("compiled", arm): "ok" for arm in ("real", "elided", "alone")} | {
        ("opt0", "elided"): "unsupported"
    }


def test_a_failed_gate_has_its_exit_code(tmp_path):
    faults = {**STANDIN, "STANDIN_STEP_FAULT": "1:sum:real:compiled"}
    arguments = ("--communication=real", "--compiler=compiled")
    child = conftest.run_child(command(tmp_path, *arguments), env=faults, timeout=150)
    assert child.returncode == errors.EXIT_MISMATCH, child.stderr
    assert "rank 1: gate failed at gradient" in child.stderr.replace("\n", " ")


def test_bad_input_of_the_command_is_one_line(tmp_path):
    for arguments in (["--batch_size=9"], ["--num_devices=1"], ["--planted=slow_rank=x"]):
        child = conftest.run_child(command(tmp_path, *arguments), env=STANDIN)
        assert child.returncode == errors.EXIT_BAD_INPUT
        assert len(child.stderr.splitlines()) == 1 and child.stderr.startswith("xlacompare: "), child.stderr
        assert child.stdout == "" and not list(tmp_path.iterdir())


def test_the_same_command_under_a_launcher(tmp_path):
    """Two processes as torchrun would start them: both join, rank 0's prints, both end."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "LOCAL_WORLD_SIZE": "2"}
    code = f"""
import os, subprocess, sys
shared = {shared!r}
ranks = [
    subprocess.Popen([sys.executable, *{command(tmp_path, "--communication=real,alone", "--format=json")!r}],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                     env=os.environ | shared | {{"RANK": str(rank), "LOCAL_RANK": str(rank)}})
    for rank in (1, 0)
]
outs = [child.communicate(timeout=140) for child in ranks]
assert [child.returncode for child in ranks] == [0, 0], outs
assert outs[0] == ("", ""), outs[0]
"""
    child = conftest.run_child(code, env=STANDIN, timeout=150)
    assert child.returncode == 0, child.stderr
    made = [r for r in record.read(tmp_path).records if r["kind"] == "parallel"]
    assert made and {(r["status"], r["launcher"], len(r["ranks"])) for r in made} == {("ok", "torchrun", 2)}
