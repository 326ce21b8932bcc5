"""`python -m xlacompare.run --save_program=DIR`: what each cell's record says of it, and that no time depends on it."""

from __future__ import annotations

import pytest

from tests import conftest
from xlacompare.core import errors, record

QUICK = ["--workload=mlp", "--batch_size=16", "--cell_s=0.05", "--min_block_s=0.002", "--launches=2", "--num_cores=1"]


def measured(framework: str, folder, *flags: str) -> tuple:
    """The child, and its cells' records by arm and launch."""
    words = ["-m", "xlacompare.run", f"--framework={framework}", f"--output_dir={folder / 'run'}", *QUICK, *flags]
    child = conftest.run_child(words, env={"XLACOMPARE_FRAMEWORKS": "standin=tests.standin"}, timeout=240)
    found = [item for item in record.read(folder / "run").records if item["kind"] == "cell"]
    return child, {(item["cell"]["compiler"], item["launch"]): item for item in found}


def test_a_framework_without_programs_says_so_and_is_measured(tmp_path):
    child, made = measured("standin", tmp_path, f"--save_program={tmp_path / 'programs'}")
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert all(item["status"] == "ok" and item["memory"] for item in made.values())
    for arm in ("eager", "compiled"):
        assert made[arm, 0]["program"]["status"] == "unsupported"
        assert "no program.py" in made[arm, 0]["program"]["reason"]
        assert made[arm, 1]["program"] is None, "the first launch only"


def test_bad_folders_and_the_other_job(tmp_path):
    (tmp_path / "file").write_text("")
    for flags, words in (
        ([f"--save_program={tmp_path / 'file' / 'below'}"], "--save_program"),
        (["--save_program=x", "--collective=all_reduce"], "--save_program is of training steps"),
    ):
        command = ["-m", "xlacompare.run", "--framework=standin", f"--output_dir={tmp_path / 'run'}", *flags]
        child = conftest.run_child(command, env={"XLACOMPARE_FRAMEWORKS": "standin=tests.standin"})
        assert child.returncode == errors.EXIT_BAD_INPUT and words in child.stderr
        assert len(child.stderr.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.framework("jax")
def test_jax_writes_what_the_program_command_reads(tmp_path):
    child, made = measured("jax", tmp_path, f"--save_program={tmp_path / 'programs'}")
    assert child.returncode == errors.EXIT_OK, child.stderr
    said = made["compiled", 0]["program"]
    assert said["status"] == "ok" and said["fingerprint"]
    assert made["eager", 0]["program"]["status"] == "unsupported" and made["eager", 0]["status"] == "ok"
    read = conftest.run_child(["-m", "xlacompare.program", "census", said["folder"]], timeout=120)
    assert read.returncode == 0 and "dot" in read.stdout, read.stdout + read.stderr
