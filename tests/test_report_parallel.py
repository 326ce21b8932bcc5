"""The report of a parallel run: words first, what it refuses to say, that it fits, JSON and CSV, the command."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import subprocess
import sys

import pytest

from experiments.effect_truth import more
from tests import parallel_samples as ps
from xlacompare.core import errors
from xlacompare.parallel import config
from xlacompare.report import __main__ as command
from xlacompare.report import page, parallel_advice, parallel_data, parallel_export, render

JAX = ps.TRUTHS["jax", "compiled"]
CONTENDING = more(JAX, bytes=9e-3)
LONG = "jax has no strategy 'cp' here: " + "because " * 60
RUNS: dict[str, dict] = {
    "two": {},
    "one": {"truths": {("jax", "compiled"): JAX}},
    "launch": {"launches": 1},
    "noisy": {"noise": 0.4, "launches": 2, "ending": "interrupted"},
    "planted": {"labels": {("jax", "compiled"): {"planted:matmul": more(JAX, compute=2e-3)}}},
    "lost": {"failed": {("jax", "compiled", "token"): ("hang", LONG), ("torch", "eager", "real"): ("mismatch", "x")}},
    "strange": {"truths": {("jax", "compiled"): more(JAX, distortion=9e-3), ("torch", "compiled"): CONTENDING,
                           ("jax", "eager"): more(JAX, unexplained=3e-3)}},
    "few": {"arms": ("real", "elided"), "launches": 2},
    "tiny": {"preset": "tiny", "changes": {"oversubscribed": True}},
    "nothing": {"truths": {("jax", "compiled"): JAX}, "launches": 1, "ending": None,
                "failed": {("jax", "compiled", arm): ("unsupported", LONG) for arm in ps.ARMS}},
}  # fmt: skip


def shown(expert: bool = False, **options) -> str:
    return render.parallel_to_text(ps.summary(**options), expert, width=page.WIDTH)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: shown(**options) for name, options in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_it_fits_and_is_ascii(name, texts):
    for text in (texts[name], shown(True, **RUNS[name]) if name in ("two", "strange", "nothing") else texts[name]):
        assert max(map(len, text.splitlines())) <= page.WIDTH
        assert text.isascii() and text.endswith("\n") and not text.endswith("\n\n")
        assert not re.search(r"\b(nan|None)\b", text)


def test_verdicts_come_first_in_words(texts):
    head = flat(texts["two"])[:1800]
    assert "jax, torch on cpu: dp transformer, 2 ranks over gloo; preset small; 6 launches" in head
    assert re.search(r"eager: jax 1\.\d+x \[1\.\d+, 1\.\d+\] slower than torch on cpu; gate passed", head)
    exposed = r"jax compiled: 5\.\d+ ms \[5\.\d+, 5\.\d+\] of 26\.\d ms a step is exposed communication: "
    assert re.search(exposed + r"1\.\d+ waiting and latency, [34]\.\d+ bytes; 4\d(\.\d)?% \[.*?\] of the wire", head)
    faster = r"jax compiled 1\.6\dx \[1\.\d+, 1\.\d+\] faster than eager on cpu; gate passed: less by "
    assert re.search(faster + r"1[34]\.\d ms \[.*?\] of compute, 2\.\d+ ms \[.*?\] of exposed", head)
    assert "family: framework pairs (Holm, 2)" in head


def test_the_bars_and_the_tables(texts):
    text = texts["two"]
    bars = [line for line in text.splitlines() if re.match(r" {4}(exposed: bytes|compute of the fastest rank) ", line)]
    assert len(bars) == 4 and all("[" in line for line in bars)
    for label in parallel_data.LABELS.values():
        if "capture" not in label and "optimisation" not in label:
            assert label in text
    row = next(line for line in text.splitlines() if line.startswith("  imbalance"))
    assert row.split()[5:7] == ["1.00", "[0.98,"] or float(row.split()[5]) == pytest.approx(1.0, abs=0.05)
    assert re.search(r"rank 0 0\.00 \[0\.00, 0\.00\]; rank 1 (1\.0|0\.9)\d \[.*?\]; compute is rank 1's", flat(text))
    arms = next(line for line in text.splitlines() if line.startswith("  real  "))
    assert arms.split()[-6:] == ["2", "12.0", "MiB", "6", "x", "12"]
    assert text.count("\nArms: ") == 4 and "Arms: torch eager" in text
    assert "straggler: rank 0 computes" in flat(text) and "remedy: " in text


def test_what_is_withheld_says_why(texts):
    text = flat(texts["strange"])
    assert "elision changed the compute (fusion, layout or cache)" in text
    assert "is unexplained by the arms: no hidden time is claimed" in text
    assert "contention: overlap costs more than it saves" in text
    assert "no bars: jax compiled: withheld" in text or "jax - torch" not in text
    rows = [line.split() for line in texts["strange"].splitlines() if line.startswith("  exposed communication ")]
    assert ["exposed", "communication", "-", "withheld"] in rows


def test_a_missing_arm_is_named_with_its_reason(texts):
    text = texts["lost"]
    assert "jax compiled: token: hang: jax has no strategy" in text
    assert "needs compiled/token: hang" in flat(text)
    assert "eager: jax and torch: no ratio: torch/eager/real has no time: mismatch: x" in flat(text)


def test_one_launch_has_no_interval_between_frameworks(texts):
    assert re.search(r"exposed: bytes +\+\d\.\d+ \[\?\]", texts["launch"])
    assert "--launches=3" in texts["launch"]


def test_reservations_stand_on_top(texts):
    head = texts["tiny"].splitlines()[:5]
    assert any("WARNING: more ranks than cores" in line for line in head)
    assert any("WARNING: preset tiny: not transferable" in line for line in head)
    assert texts["noisy"].startswith("INTERRUPTED")


def test_a_planted_cause_is_a_headline_and_its_own_table_for_experts(texts):
    said = re.search(r"jax compiled planted:matmul: moved (.*?)(;|$)", texts["planted"], re.M)[1]
    assert re.match(r"compute of the fastest rank (2\.0\d|1\.9\d) ms", said)
    assert "jax compiled planted:matmul - compiled: ms a step" in texts["planted"]
    assert "jax compiled planted:matmul: ms a step" not in texts["planted"]
    assert "jax compiled planted:matmul: ms a step" in shown(True, **RUNS["planted"])


def test_experts_get_the_definitions():
    text = flat(shown(True))
    for part in ("arm token: each collective moves one element", "dp: data parallel", "closure: what the arms do not"):
        assert part in text


def test_next_steps_name_the_arm_that_is_missing(texts):
    assert "--communication=real,elided,serial" in texts["few"] and "--communication" not in texts["two"]


def test_the_command_of_the_run_is_shown(texts):
    said = "python -m xlacompare.run --framework=jax,torch --strategy=dp --workload=transformer --transport=gloo"
    assert f"{said} --num_devices=2 --launches=6" in flat(texts["two"])
    chosen = config.ParallelConfig(("jax",), settings=(("bucket_mb", 1),), planted=("slow_rank=1:0.005",), cell_s=2.0)
    expected = "python -m xlacompare.run --framework=jax --strategy=dp --workload=mlp --transport=gloo --num_devices=2"
    expected += " --cell_s=2.0 --bucket_mb=1 --planted=slow_rank=1:0.005"
    assert parallel_advice.command(chosen.to_dict()) == expected
    assert parallel_advice.command(json.loads(json.dumps(chosen.to_dict()))) == expected


def test_a_busy_machine_is_said():
    records = ps.run_records(launches=1)
    for record in records:
        if record["kind"] == "parallel":
            record["blocks"]["disturbed"] = [True] * len(record["blocks"]["n"])
    text = flat(render.of_records(records, "text", False))
    assert "288 visits disturbed by other processes and left out, but for 288 where too few others are left" in text


def test_json_holds_everything():
    made = json.loads(parallel_export.to_json(ps.summary()))
    assert made["mode"] == "parallel" and len(made["arms"]) == 24 and len(made["pairs"]) == 2
    pair = made["pairs"][1]
    assert pair["ratio"][0] > 1 and pair["a"]["framework"] == "jax"
    total = sum(bar["seconds"]["mean"] for bar in pair["bars"])
    assert total == pytest.approx(pair["total"]["mean"])
    assert {e["name"] for e in made["frameworks"][0]["effects"]} >= {"exposed", "hidden_share", "compiler"}
    assert made["headlines"][0]["sentence"] and made["frameworks"][0]["waiting"]["compiled"][1]["mean"] > 0


def test_json_has_no_numbers_that_json_lacks():
    assert "Infinity" not in parallel_export.to_json(ps.summary(launches=1))


def test_csv_is_one_tidy_table():
    rows = list(csv.DictReader(io.StringIO(parallel_export.to_csv(ps.summary(**RUNS["lost"])))))
    assert {row["kind"] for row in rows} == {"arm", "effect", "waiting", "pair", "gap", "bar", "finding"}
    assert all(set(row) == set(parallel_export.COLUMNS) for row in rows)
    lost = next(r for r in rows if r["kind"] == "arm" and r["communication"] == "token" and r["status"] == "hang")
    assert lost["value"] == "" and lost["reason"] == LONG
    missing = next(r for r in rows if r["kind"] == "effect" and r["name"] == "exposed_latency" and not r["value"])
    assert missing["status"] == "missing" and "needs compiled/token" in missing["reason"]
    real = next(r for r in rows if r["kind"] == "arm" and r["communication"] == "real" and r["framework"] == "jax")
    assert (real["collectives"], real["wire_bytes"]) == ("2", str(float(12 << 20)))
    share = next(r for r in rows if r["name"] == "hidden_share" and r["value"])
    assert share["unit"] == "ratio" and 0 < float(share["value"]) < 1


def test_the_command_shows_a_folder(tmp_path: pathlib.Path):
    records = [{"schema": 1, "run": "r1", **record} for record in ps.run_records(launches=2)]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    asked = [sys.executable, "-m", "xlacompare.report", str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, render.of_records(records, "text", False))


def test_an_unknown_format_is_refused():
    with pytest.raises(errors.BadInputError, match="unknown format 'nccl'"):
        render.of_records(ps.run_records(launches=1), "nccl", False)


def test_runs_of_unlike_machines_are_not_shown_together():
    one = ps.run_records(launches=1)
    other = ps.run_records(launches=1, changes={"environment": {"checked": ps.CHECKED | {"machine": "other"}}})
    with pytest.raises(errors.RecordError, match="machine is 'box'"):
        command.check_alike([one, other])
