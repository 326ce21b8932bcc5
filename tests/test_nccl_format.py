"""`--format=nccl`, read back by parsers that know the layout of nccl-tests and nothing of us. Defects 4 and 11."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests import collective_samples as cs
from xlacompare.collectives import analysis, table
from xlacompare.collectives.importers import common, nccl_tests
from xlacompare.report import nccl_format, render

PLACES = ("out_of_place", "in_place")
NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?|N/A)"
# Written from the tool's own output, not from our code: size count type redop root, then twice time algbw busbw #wrong.
ROW = re.compile(
    r"^\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>\w+)\s+(?P<redop>\w+)\s+(?P<root>-?\d+)"
    + "".join(rf"\s+{NUMBER}" for _ in range(8)) + r"\s*$"
)  # fmt: skip
AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([\d.e+-]+)\s*$", re.MULTILINE)


def parse(text: str) -> list[dict]:
    """Rows, as a parser of nccl-tests reads them; every line without a # must be one."""
    rows = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        match = ROW.match(line)
        assert match, f"no parser would read {line!r}"
        figures = [None if word == "N/A" else float(word) for word in match.groups()[5:]]
        rows.append({**match.groupdict(), "out_of_place": figures[:4], "in_place": figures[4:]})
    return rows


def both_places(collectives=("all_reduce",), **options) -> list[dict]:
    """Records of both placements."""
    first = cs.run_records(collectives=collectives, **options)
    second = cs.run_records(collectives=collectives, placement="in_place", **options)
    return first + [record for record in second if record["kind"] == "collective"]


def printed(records) -> str:
    return render.of_records(records, "nccl", expert=False)


def test_a_parser_reads_what_was_measured():
    records = both_places(frameworks=("torch",))
    rows, cells = parse(printed(records)), analysis.summarise(records).cells
    assert [int(row["size"]) for row in rows] == list(cs.SIZES)
    for row in rows:
        assert (row["type"], row["redop"], row["root"]) == ("float", "sum", "-1")
        for place in PLACES:
            of_place = next(r for r in cells if r.cell.placement == place and r.cell.size_bytes == int(row["size"]))
            time, algbw, busbw, wrong = row[place]
            assert time == pytest.approx(of_place.time.mean * 1e6, rel=1e-3)
            assert algbw == pytest.approx(of_place.algbw / 1e9, rel=0.01)
            assert busbw == pytest.approx(of_place.busbw / 1e9, rel=0.01)
            assert wrong == 0


def test_the_columns_stand_where_they_stand_there():
    """The header's words, and widths 12 12 8 6 6, then 7 6 6 6 twice, two blanks between."""
    lines = printed(both_places(frameworks=("torch",))).splitlines()
    header = next(line for line in lines if "algbw" in line)
    assert header.lstrip("# ").split() == ["size", "count", "type", "redop", "root"] + 2 * [
        "time",
        "algbw",
        "busbw",
        "#wrong",
    ]
    ends = np.cumsum([12, 14, 10, 8, 8, 9, 8, 8, 8, 9, 8, 8, 8])
    for line in [*(line for line in lines if not line.startswith("#")), header]:
        assert [match.end() for match in re.finditer(r"\S+", line.replace("# ", "  ", 1))] == list(ends)


@pytest.mark.parametrize(
    ("collective", "count", "redop", "root"),
    [
        ("all_reduce", 1024, "sum", "-1"), ("all_gather", 512, "none", "-1"), ("reduce_scatter", 512, "sum", "-1"),
        ("all_to_all", 512, "none", "-1"), ("broadcast", 1024, "none", "1"), ("ppermute", 1024, "none", "-1"),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_call(collective, count, redop, root):
    """4096 bytes of float on 2 ranks: the tool prints the count of the NCCL call, which is per rank."""
    record = cs.make_record(cs.make_cell("torch", 4096, collective, root=1), 0, [1e-4] * 6)
    (row,) = parse(printed([record]))
    assert (int(row["count"]), row["redop"], row["root"]) == (count, redop, root)
    assert row["in_place"] == [None] * 4


def test_our_own_importer_reads_it_back():
    """And gets the same times: our writer and our reader agree on what the layout means."""
    records = both_places(("all_to_all",), frameworks=("torch",))
    told = common.Told("x", transport="gloo", num_devices=2)
    back = {(r["cell"]["size_bytes"], r["cell"]["placement"]): r for r in nccl_tests.read(printed(records), told)}
    for result in analysis.summarise(records).cells:
        read = back[result.cell.size_bytes, result.cell.placement]
        assert read["blocks"]["total_s"][0] == pytest.approx(result.time.mean, rel=1e-3)
        assert read["cell"]["count"] == result.cell.count and read["cell"]["collective"] == "all_to_all"


def test_the_average_is_what_the_tool_means_and_is_called_what_it_is():
    """Defect 4: a mean of rates. The line is there because parsers want it, once, and last on it is the number."""
    records = both_places(frameworks=("jax",))
    text = printed(records)
    busbw = [result.busbw / 1e9 for result in analysis.summarise(records).cells]
    assert [float(value) for value in AVERAGE.findall(text)] == [pytest.approx(np.mean(busbw), rel=1e-4)]
    assert len([line for line in text.splitlines() if "Avg bus bandwidth" in line]) == 1
    assert "a mean of rates" in text
    total = float(re.search(r"Total over total\s*: ([\d.e+-]+)", text)[1])
    assert total > 1.4 * np.mean(busbw)  # the small sizes weigh in the mean as the large ones do


def test_a_cell_without_a_time_is_no_row():
    records = cs.run_records(of_sizes=(cs.KIB, cs.MIB))
    lost = cs.make_record(cs.make_cell("torch", cs.MIB), 1, status="mismatch", reason="rank 1, index 3: got 0")
    text = printed([*records, lost])
    assert len(parse(text)) == 3
    assert "# 1048576 B out_of_place: mismatch: rank 1, index 3: got 0" in text


def test_one_table_for_each_framework():
    text = printed(cs.run_records(frameworks=("jax", "torch"), collectives=("all_reduce", "ppermute")))
    starts = re.findall(r"^# Collective test starting: (\w+)$", text, re.MULTILINE)
    assert starts == ["all_reduce_perf"] * 2 + ["sendrecv_perf"] * 2
    assert len(AVERAGE.findall(text)) == 4


def test_wrong_values_and_barriers():
    cell = cs.make_cell("torch", cs.KIB)
    values = {"checked": 512, "wrong": 2, "message": ""}
    text = printed([cs.make_record(cell, 0, [1e-4] * 6, values=values)])
    assert "Out of bounds values : 2 FAILED" in text
    barrier = cs.make_record(cs.make_cell(size=0, collective=table.BARRIER.name), 0, [1e-5] * 6)
    assert printed([barrier]) == ""


@pytest.mark.parametrize(
    "value", [1.23456e-5, 0.0123456, 0.99996, 1.0, 9.99996, 123.456, 99999.96, 123456.7, 9.9e6, 3.2e8]
)
@pytest.mark.parametrize("width", [6, 7])
def test_no_number_leaves_its_column(value, width):
    """Too wide a number runs into its neighbour; a rounded one must not lose its size."""
    text = nccl_format.fitted(value, width)
    assert len(text) <= width
    if len(f"{value:.1e}") <= width or value < 10 ** (width - 1):
        assert float(text) == pytest.approx(value, rel=0.02, abs=5e-5)


def test_json_is_json():
    """Defect 11: our booleans are booleans, times have their digits, what is not a number is null."""
    import json

    records = [cs.make_record(cs.make_cell("torch", cs.KIB), 0, [1.23456789e-7] * 6)]
    made = json.loads(render.of_records(records, "json", expert=False))
    (cell,) = made["cells"]
    assert cell["oversubscribed"] is False and cell["fence_ok"] is True
    assert cell["time"]["mean"] == pytest.approx(1.23456789e-7, rel=1e-9)
    imported = nccl_tests.read('{"args": ["all_reduce_perf"], "config": {"devices": [1, 2]}, "results": [{"size": 8, '
                               '"type": "float", "redop": "sum", "root": "-1", "in_place": {"time": 3.5}}]}',
                               common.Told("x"))  # fmt: skip
    (cell,) = json.loads(render.of_records(imported, "json", expert=False))["cells"]
    assert cell["time"]["high"] is None and cell["wrong"] is None
