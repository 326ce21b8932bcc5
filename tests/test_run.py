"""`python -m xlacompare.run` end to end on the stand-in: what it writes, every way it can end, nothing left behind."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from xlacompare.core import cell as cells_of_core
from xlacompare.core import config, errors, record
from xlacompare.launch import pool

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUICK = ["--workload=mlp", "--batch_size=16", "--cell_s=0.1", "--min_block_s=0.002", "--launches=2", "--num_cores=1"]


def command(folder: pathlib.Path, *flags: str) -> list[str]:
    return ["-m", "xlacompare.run", "--framework=standin", *QUICK, f"--output_dir={folder}", *flags]


def environment(**extra: str) -> dict[str, str]:
    return {"XLACOMPARE_FRAMEWORKS": "standin=tests.standin", **extra}


def cells(folder: pathlib.Path) -> dict[str, list[dict]]:
    """Records of kind `cell` by arm."""
    found: dict[str, list[dict]] = {}
    for item in record.read(folder).records:
        if item["kind"] == "cell":
            found.setdefault(item["cell"]["compiler"], []).append(item)
    return found


def workers() -> list[psutil.Process]:
    """Worker processes of this test's runs on the stand-in; tests of other groups have theirs at the same time."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        ours = variables.get("PYTEST_CURRENT_TEST") == os.environ.get("PYTEST_CURRENT_TEST")
        if ours and "xlacompare.launch.worker" in words and "standin" in variables.get("XLACOMPARE_FRAMEWORKS", ""):
            found.append(process)
    return found


def test_a_run_ends_with_records_and_a_screen(run_python, tmp_path):
    child = run_python(command(tmp_path, "--format=json"), env=environment(), timeout=120)
    assert child.returncode == errors.EXIT_OK, child.stderr
    screen = json.loads(child.stdout)
    assert screen["ending"] == "complete"
    made = cells(tmp_path)
    assert {arm: [r["launch"] for r in rs] for arm, rs in made.items()} == {"eager": [0, 1], "compiled": [0, 1]}
    for item in made["compiled"]:
        blocks = item["blocks"]
        assert item["status"] == "ok" and item["gate"]["exact"]["passed"] and item["gate"]["arm"]["passed"]
        assert len(blocks["total_s"]) == len(blocks["n"]) == len(blocks["compiles"]) >= 12
        assert set(blocks["mode"]) == {"block", "stepwise"} and set(blocks["series"]) == {"main", "stepwise"}
        assert item["environment"]["checked"]["data_sha256"]
        assert item["environment"]["variables"]["OMP_NUM_THREADS"] == "1"
    # Arms of one framework share a process within a launch, and no process serves two launches.
    pids = {arm: [r["start"]["pid"] for r in rs] for arm, rs in made.items()}
    assert pids["eager"] == pids["compiled"] and len(set(pids["eager"])) == 2
    kinds = [r["kind"] for r in record.read(tmp_path).records]
    assert kinds[0] == "run" and kinds[-1] == "end" and kinds.index("plan") < len(kinds) - 2


def test_compiler_caches_have_absolute_paths(tmp_path, monkeypatch):
    """The default folder is relative, and a compiler may run elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLACOMPARE_FRAMEWORKS", "standin=tests.standin")
    cell = cells_of_core.Cell("standin", "eager", "mlp", "tiny", "float32", 16, "sgd")
    workers = pool.Pool(config.RunConfig(("standin",)), pathlib.Path("runs"), pathlib.Path("runs/cache"), "x")
    assert pathlib.Path(workers._cache_of(cell)).is_absolute()


def test_arms_run_forwards_and_backwards(run_python, tmp_path):
    run_python(command(tmp_path), env=environment(), timeout=120)
    made = cells(tmp_path)
    first = {arm: rs[0]["blocks"] for arm, rs in made.items()}
    visits: dict[int, list[tuple[int, str]]] = {}
    for arm, blocks in first.items():
        for visit, position, series in zip(blocks["visit"], blocks["position"], blocks["series"], strict=True):
            if series == "main":
                visits.setdefault(visit, []).append((position, arm))
    orders = {"".join(arm[0] for _, arm in sorted(order)) for order in visits.values()}
    assert orders == {"ecce", "ceec"}


BAD_INPUT = [
    (["--framework=caffe"], "unknown framework 'caffe'"),
    (["--compiler=magic"], "unknown compiler 'magic'"),
    (["--compiler=captured"], "standin has no compiler arm 'captured': NumPy captures nothing"),
    (["--workload=resnext"], "unknown workload 'resnext'"),
    (["--dtype=float8"], "unknown dtype 'float8'"),
    (["--preset=huge"], "unknown preset 'huge'"),
    (["--batch_size=0"], "batch_size=0"),
    (["--target_ci=0"], "target_ci=0"),
    (["--launches=-1"], "launches=-1"),
    (["--optimizer=lion"], "unknown optimizer 'lion'"),
    (["--num_cores=4096"], "num_cores=4096"),
    (["--itemise"], "--itemise needs --settings=both"),
    (["--framework="], "--framework is empty"),
    (["--nonsense=1"], "nonsense"),
    (["--settings=mixed"], "settings"),
    (["stray"], "unexpected arguments: stray"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_INPUT, ids=lambda value: str(value)[:30])
def test_bad_input_is_one_line(run_python, tmp_path, flags, message):
    child = run_python(command(tmp_path, *flags), env=environment())
    assert child.returncode == errors.EXIT_BAD_INPUT
    assert message in child.stderr and "Traceback" not in child.stderr
    assert len(child.stderr.strip().splitlines()) == 1, child.stderr


def test_a_framework_that_is_not_installed_names_the_extra(run_python, tmp_path):
    hide = "import sys; sys.modules['flax'] = None; sys.argv[0] = 'run'; import importlib.util as u\n"
    code = hide + (
        "find = u.find_spec\nu.find_spec = lambda n, *a: None if n == 'flax' else find(n, *a)\n"
        f"sys.argv = ['run', '--framework=jax', '--output_dir={tmp_path}']\n"
        "import runpy; runpy.run_module('xlacompare.run', run_name='__main__')"
    )
    child = run_python(code)
    assert child.returncode == errors.EXIT_BAD_INPUT
    assert "needs flax, not installed here; install with: pip install -e '.[jax]'" in child.stderr


@pytest.mark.parametrize("when", ["xlacompare.run_steps", "scipy", "rich.console", "absl.flags"])
def test_ctrl_c_while_modules_are_imported_is_one_line(run_python, when):
    """The first second or two of a run is imports, and an impatient user is quicker."""
    code = (
        "import runpy, sys, types\n"
        "def find(name, *rest):\n"
        f"    if name == {when!r}:\n"
        "        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, types.SimpleNamespace(find_spec=find))\n"
        "sys.argv = ['run', '--framework=jax']\n"
        "runpy.run_module('xlacompare.run', run_name='__main__')"
    )
    child = run_python(code)
    assert child.returncode == errors.EXIT_INTERRUPTED
    assert child.stderr == "xlacompare: interrupted before anything was run\n"


def test_a_folder_that_cannot_be_written(run_python, tmp_path):
    (tmp_path / "file").write_text("")
    child = run_python(command(tmp_path / "file"), env=environment())
    assert child.returncode == errors.EXIT_BAD_INPUT
    assert "choose another --output_dir" in child.stderr and "Traceback" not in child.stderr


def test_a_full_disk_is_one_line(tmp_path):
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    writer = record.Writer(tmp_path)
    writer.append({"kind": "run"})
    with open("/dev/full", "ab", buffering=0) as full:
        writer._file = full
        with pytest.raises(errors.RecordError, match="No space left on device"):
            writer.append({"kind": "cell"})
    assert len(record.read(tmp_path).records) == 1


FAULTS = [
    ("compiled:crash_in_build", "crash", "exited with code 17", errors.EXIT_FAILED_CELL),
    ("compiled:crash_in_block", "crash", "SIGSEGV", errors.EXIT_FAILED_CELL),
    ("compiled:raise", "crash", "planted: a step that raises", errors.EXIT_FAILED_CELL),
    ("compiled:stop_in_block", "hang", "no answer to 'visit'", errors.EXIT_FAILED_CELL),
    ("compiled:out_of_memory", "out_of_memory", "out of memory: planted", errors.EXIT_FAILED_CELL),
    ("compiled:out_of_memory_in_visit", "out_of_memory", "planted in a visit", errors.EXIT_FAILED_CELL),
    ("compiled:wrong", "mismatch", "gate failed at", errors.EXIT_MISMATCH),
    ("compiled:unsupported", "unsupported", "planted: this arm cannot be built", errors.EXIT_OK),
    ("compiled:always_recompile", "unsupported", "still compiling after 30 steps", errors.EXIT_OK),
]


@pytest.mark.parametrize(("fault", "status", "reason", "code"), FAULTS, ids=lambda value: str(value)[:25])
def test_a_faulty_cell_is_named_and_the_others_go_on(run_python, tmp_path, fault, status, reason, code):
    deadline = "--deadline_s=8" if status == "hang" else "--deadline_s=60"
    child = run_python(command(tmp_path, deadline, "--format=csv"), env=environment(STANDIN_FAULT=fault), timeout=180)
    assert child.returncode == code, child.stderr
    assert "Traceback" not in child.stderr
    made = cells(tmp_path)
    assert [r["status"] for r in made["compiled"]] == [status]  # blamed once, not tried in every launch
    assert reason in made["compiled"][0]["reason"]
    assert [r["status"] for r in made["eager"]] == ["ok", "ok"]
    assert not workers()


def test_the_others_start_anew_after_an_error_that_the_worker_survives(run_python, tmp_path):
    fault = environment(STANDIN_FAULT="compiled:out_of_memory_in_visit")
    run_python(command(tmp_path, "--launches=1"), env=fault, timeout=120)
    (eager,) = cells(tmp_path)["eager"]
    partial = [r for r in record.read(tmp_path).records if r["kind"] == "partial"]
    assert {r["cell"]["compiler"] for r in partial} == {"eager", "compiled"}
    blocks = eager["blocks"]
    main = [v for v, series in zip(blocks["visit"], blocks["series"], strict=True) if series == "main"]
    assert set(collections.Counter(main).values()) == {2}  # nothing of the visits before
    assert set(blocks["position"]) <= {0, 1, 2, 3} and eager["status"] == "ok"
    log = (tmp_path / "logs").glob("*")
    assert len(list(log)) >= 3, "the gate's worker, the first, and a fresh one"


def test_a_cell_that_failed_its_gate_has_no_time(run_python, tmp_path):
    child = run_python(command(tmp_path, "--format=json"), env=environment(STANDIN_FAULT="compiled:wrong"), timeout=120)
    failed = next(c for c in json.loads(child.stdout)["cells"] if c["cell"]["compiler"] == "compiled")
    assert failed["status"] == "mismatch" and failed["step"] is None and failed["first_step_s"] == {}


def test_a_block_with_a_compilation_is_no_sample(run_python, tmp_path):
    child = run_python(
        command(tmp_path, "--format=json"), env=environment(STANDIN_FAULT="compiled:recompile"), timeout=120
    )
    cell = next(c for c in json.loads(child.stdout)["cells"] if c["cell"]["compiler"] == "compiled")
    blocks = [r["blocks"] for r in cells(tmp_path)["compiled"]]
    compiled = sum(count > 0 for b in blocks for count in b["compiles"])
    assert compiled > 0 and cell["num_compiled"] == compiled


@pytest.mark.quiet
def test_an_effect_inside_one_process_is_found(run_python, tmp_path):
    flags = ["--format=json", "--launches=1", "--cell_s=1"]
    child = run_python(command(tmp_path, *flags), env=environment(STANDIN_SLOW="compiled:2"), timeout=120)
    arm = json.loads(child.stdout)["arms"][0]
    assert arm["how"] == "blocks" and arm["verdict"]["kind"] == "difference"
    assert 0.35 < 2.718281828 ** arm["verdict"]["estimate"]["mean"] < 0.75  # the work is twice, the update is not


def test_an_arm_with_flags_of_its_own_has_a_process_of_its_own(run_python, tmp_path):
    child = run_python(
        command(tmp_path, "--compiler=eager,nofusion"), env=environment(STANDIN_FLAGS="--mine"), timeout=120
    )
    assert child.returncode == errors.EXIT_OK, child.stderr
    made = cells(tmp_path)
    assert made["eager"][0]["start"]["pid"] != made["nofusion"][0]["start"]["pid"]


def test_settings_are_compared_one_at_a_time(run_python, tmp_path):
    flags = ["--settings=both", "--itemise", "--compiler=compiled", "--format=json"]
    child = run_python(command(tmp_path, *flags), env=environment(), timeout=180)
    changed = json.loads(child.stdout)["settings"]
    assert [item["label"] for item in changed] == ["shipped", "shipped:twice"]
    for item in changed:
        assert item["settings"] == {"twice": True}
        assert item["effect"]["verdict"]["estimate"]["mean"] > 0.25


def _interrupted(tmp_path: pathlib.Path, how: signal.Signals) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, *command(tmp_path, "--launches=50", "--cell_s=0.5")],
        env={**os.environ, **environment()},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 90
    while time.monotonic() < end and not _has_cells(tmp_path):
        time.sleep(0.1)
    process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def _has_cells(folder: pathlib.Path) -> bool:
    return (folder / record.FILE_NAME).exists() and bool(cells(folder))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_and_leaves_nobody(tmp_path, how):
    code, stderr = _interrupted(tmp_path, how)
    assert code == errors.EXIT_INTERRUPTED
    assert "Traceback" not in stderr and "records so far are kept" in stderr
    found = record.read(tmp_path)
    assert found.records[-1]["kind"] == "end" and found.records[-1]["ending"] == "interrupted"
    assert cells(tmp_path)
    assert not workers()


def test_a_killed_run_leaves_nobody(tmp_path):
    code, _ = _interrupted(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    end = time.monotonic() + 10
    while workers() and time.monotonic() < end:
        time.sleep(0.1)
    assert not workers()
    assert cells(tmp_path)
