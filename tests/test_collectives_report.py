"""The report of a collective run: what it says first, what it refuses to say, that it fits, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from tests import collective_samples as cs
from xlacompare.collectives import analysis
from xlacompare.core import errors
from xlacompare.report import collective_advice, page, render

LOST = "rank 1 hangs in all_reduce: no answer within 60 s; log: runs/x/logs/launch0-torch-gloo-rank1.log"
RUNS: dict[str, dict] = {
    "two": {},
    "all": {
        "frameworks": ("jax", "torch", "torch_xla"),
        "collectives": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute", "broadcast"),
        "of_sizes": tuple(8 << (2 * i) for i in range(13)),
        "failed": {"torch_xla": ("unsupported", "torch_xla has no transport 'gloo': " + "because " * 40)},
    },
    "one": {"frameworks": ("jax",)},
    "single": {"frameworks": ("torch",), "of_sizes": (cs.MIB,), "launches": 1},
    "launch": {"launches": 1},
    "noisy": {"noise": 0.5, "launches": 2, "ending": "interrupted"},
    "axis": {"mesh": (2, 2), "axis": 1, "config": {"mesh": [2, 2], "axis": 1}},
    "odd": {"collectives": ("reduce_scatter",), "of_sizes": (1001, 10001, 100001, 1000001)},
    "lost": {"failed": {"torch": ("hang", LOST)}},
    "nothing": {"frameworks": ("torch",), "failed": {"torch": ("hang", LOST)}, "ending": None},
}


def shown(expert: bool = False, **options) -> str:
    return render.collectives_to_text(cs.summary(**options), expert, width=page.WIDTH)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("expert", [False, True])
def test_it_fits_and_is_ascii(name, expert):
    text = shown(expert, **RUNS[name])
    assert max(map(len, text.splitlines())) <= page.WIDTH
    assert text.isascii() and text.endswith("\n") and not text.endswith("\n\n")
    assert not re.search(r"\b(nan|None)\b", text)


def test_the_first_screen_answers():
    """The ratio in words, for neighbouring sizes together, with the family, within the first lines."""
    head = " ".join(" ".join(shown(launches=6).splitlines()[:12]).split())
    assert "all_reduce sum, float32, 2 ranks, over gloo, jax and torch: 1 KiB to 64 KiB: jax 1.1" in head
    assert "slower than torch" in head
    assert "screening; family: collectives x sizes x framework pairs (Benjamini-Hochberg, 4)" in head


def test_one_launch_says_so():
    text = " ".join(shown(launches=1).split())
    assert "inconclusive: one launch" in text and "slower than" not in text
    assert "--launches=3" in text


def test_the_table_has_what_the_issue_asks_for():
    text = shown(frameworks=("torch",), launches=9)
    header = next(line for line in text.splitlines() if "algbw" in line)
    assert " ".join(header.split()) == "size count by time [95%] p50 p95 p99 disp algbw busbw #wrong"
    row = next(line for line in text.splitlines() if line.startswith("  16 MiB"))
    assert row.split()[2:4] == ["4194304", "torch"] and row.split()[-1] == "0"
    assert re.search(r"28\.\d ms \[2\d\.\d, 28\.\d\]", row)
    assert "all_reduce sum, float32, 2 ranks, over gloo; bandwidths in MB/s" in text


def test_lowered_bandwidth_is_shown_where_it_differs():
    assert " low" not in shown()
    records = cs.run_records(frameworks=("jax",), collectives=("all_gather",))
    for record in records:
        if record["kind"] == "collective":
            record["lowering"]["wire_bytes"] *= 2
            record["lowering"]["findings"] = ["other opcode: pad + all-reduce of the whole output"]
    text = render.of_records(records, "text", expert=False)
    assert " low" in text and text.count("jax: other opcode: pad + all-reduce") == 1


def test_what_is_not_measured_has_its_reason_once():
    text = shown(**RUNS["all"])
    line = " ".join(text.partition("Not measured")[2].split())
    assert line.count("unsupported") == 1 and "torch_xla over gloo, all_reduce sum, all_gather" in line
    assert "broadcast (8 B to 128 MiB): unsupported" in line
    assert "..." in text and text.count("because") < 40
    assert shown(True, **RUNS["all"]).count("because") == 40


def test_a_failed_cell_prints_no_time():
    text = " ".join(shown(**RUNS["lost"]).split())
    assert "no time: torch hang, see below" in text and LOST in text
    assert "slower" not in text and "--deadline_s=120" in text
    assert "no cell has a time" in shown(**RUNS["nothing"]) and "INCOMPLETE" in shown(**RUNS["nothing"])


def test_more_ranks_than_cores_is_said():
    """Defect 7: nothing warned."""
    records = [record | {"oversubscribed": True} for record in cs.run_records()]
    text = render.of_records(records, "text", expert=False)
    assert "WARNING: more ranks than cores" in text and "not transferable" in text
    assert "WARNING" not in shown()


def test_unlike_transports_are_named_and_not_compared():
    records = cs.run_records(frameworks=("jax",))
    others = cs.run_records(frameworks=("torch_xla",), transport="inprocess")
    records += [record for record in others if record["kind"] == "collective"]
    text = " ".join(render.of_records(records, "text", expert=False).split())
    assert "no ratio across transports: gloo and inprocess" in text and "slower than" not in text


def test_pads_caveats_and_fits():
    text = " ".join(shown(**RUNS["odd"]).split())
    assert "padded so that the ranks divide it: 1001 B + 7 B" in text
    assert "pytorch#149869" in text  # gloo's reduce_scatter moves more than busbw counts
    assert "Cost model" in text and "above torch (the floor here)" in text
    assert "Cost model" not in shown(of_sizes=(cs.KIB, cs.MIB))


def test_the_fit_finds_the_made_up_link():
    """Latency and bandwidth that the records were made from, inside their intervals."""
    for fit in cs.summary(launches=6, of_sizes=tuple(cs.KIB << i for i in range(0, 15, 2))).fits:
        value, low, high = fit.bandwidth
        bandwidth, latency_s = cs.BANDWIDTH[fit.framework], cs.LATENCY_S[fit.framework]
        assert low < bandwidth < high and value == pytest.approx(bandwidth, rel=0.03)
        assert fit.latency_s[0] == pytest.approx(latency_s, rel=0.1)
        assert fit.crossover_bytes[0] == pytest.approx(latency_s * bandwidth, rel=0.15)
        assert fit.floor == "" or fit.above_floor


def test_json_and_csv():
    summary = cs.summary(launches=6, failed={"torch_xla": ("unsupported", "no gloo")}, frameworks=cs.LATENCY_S)
    made = json.loads(render.render_collectives(summary, "json", expert=False))
    assert len(made["cells"]) == 12 and len(made["ratios"]) == 4 and len(made["headlines"]) == 1
    assert made["ratios"][0]["ratio"][0] == pytest.approx(1.56, abs=0.05)
    rows = list(csv.DictReader(io.StringIO(render.render_collectives(summary, "csv", expert=False))))
    assert [row["kind"] for row in rows] == ["cell"] * 12 + ["ratio"] * 4 + ["fit"] * 2
    first = next(row for row in rows if row["framework"] == "jax" and row["kind"] == "cell")
    assert float(first["busbw"]) == pytest.approx(float(first["size_bytes"]) / float(first["value"]))
    assert {row["status"] for row in rows if row["framework"] == "torch_xla"} == {"unsupported"}


def test_the_command_is_the_one_of_the_run():
    values = {
        "frameworks": ["jax", "torch", "torch_xla"], "collectives": ["all_reduce", "ppermute"], "transports": ["gloo"],
        "sizes": [1024, 4096, 16384], "mesh": [2, 2], "axis": 1, "root": 1, "patterns": ["shift:1"],
        "placements": ["in_place"],
    }  # fmt: skip
    command = collective_advice.command(values)
    assert command.startswith("python -m xlacompare.run --framework=jax,torch,torch_xla ")
    for flag in ("--collective=all_reduce,ppermute", "--sizes=1KiB:16KiB:4", "--mesh=2x2", "--axis=1", "--root=1"):
        assert flag in command.split()
    for flag in ("--pattern='shift:1'", "--placement=in_place"):
        assert flag in command.split()
    assert collective_advice.sizes_text((8, 1 << 20, 3000)) == "8,1MiB,3000"


def test_unknown_formats_and_other_records():
    with pytest.raises(errors.BadInputError, match="unknown format"):
        render.of_records(cs.run_records(), "yaml", expert=False)
    main = [{"kind": "run", "config": {"frameworks": ["jax"]}, "machine": {}}]
    assert not analysis.is_collective(main) and analysis.is_collective(cs.run_records())
    with pytest.raises(errors.BadInputError, match="unknown format"):
        render.of_records(main, "nccl", expert=False)
