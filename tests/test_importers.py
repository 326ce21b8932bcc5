"""Other tools' outputs as records: units, conventions of size, their quirks, and what is refused."""

from __future__ import annotations

import pathlib

import pytest

from tests import conftest
from xlacompare.collectives import analysis
from xlacompare.collectives.importers import common, nccl_tests, osu, param
from xlacompare.core import collective_cell, errors, record

DATA = pathlib.Path(__file__).parent / "data"
HEADER = "#       size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def told(name: str = "file", **said) -> common.Told:
    return common.Told(name, **said)


def results_of(records) -> list:
    return analysis.summarise(records).cells


def by_cell(records) -> dict[tuple, dict]:
    """(collective, size, placement) -> record."""
    made = {}
    for item in records:
        cell = collective_cell.CollectiveCell.from_dict(item["cell"])
        made[cell.collective, cell.size_bytes, cell.placement] = item
    return made


def test_nccl_text():
    """Both placements; rates made again from the times agree with the tool's own columns."""
    made = nccl_tests.read(text_of("nccl_all_reduce.txt"), told())
    assert len(made) == 6
    for result, algbw, busbw in zip(results_of(made)[::2], (0.08, 2.62, 83.89), (0.12, 3.93, 125.83), strict=True):
        assert result.imported == "nccl-tests" and result.wrong == 0
        assert result.cell.mesh == (4,) and result.cell.transport == "nccl" and result.cell.reduction == "sum"
        assert round(result.algbw / 1e9, 2) == algbw and round(result.busbw / 1e9, 2) == busbw
    assert {r.cell.placement for r in results_of(made)} == {"out_of_place", "in_place"}


def test_nccl_text_without_a_name():
    """Versions before 2.17 do not say which collective they ran."""
    text = text_of("nccl_alltoall.txt")
    with pytest.raises(errors.BadInputError, match="--collective"):
        nccl_tests.read(text, told())
    made = results_of(nccl_tests.read(text, told(collective="all_to_all")))
    assert [r.cell.size_bytes for r in made] == [4096, 4096]
    assert made[0].busbw == pytest.approx(4096 / 8e-6 / 2)
    assert [r.wrong for r in made] == [0, None]  # N/A is not 0


def test_nccl_json_quirks():
    """Defect 11: strings for booleans and for nan, six decimals, null for what was not checked."""
    made = by_cell(nccl_tests.read(text_of("nccl_all_gather.json"), told()))
    assert set(made) == {("all_gather", 2048, "out_of_place"), ("all_gather", 4096, "in_place")}
    first, wrong = made["all_gather", 2048, "out_of_place"], made["all_gather", 4096, "in_place"]
    assert first["blocks"]["total_s"] == [pytest.approx(9.5e-6)]
    assert first["imported"]["p95_s"] == pytest.approx(11.5e-6) and first["cell"]["count"] == 256
    assert (wrong["status"], wrong["blocks"]) == ("mismatch", {}) and "3 wrong" in wrong["reason"]
    assert nccl_tests.boolean("true") and not nccl_tests.boolean("false") and not nccl_tests.boolean(False)


def test_osu():
    """Sizes of allgather and alltoall are per rank there; the largest rank's mean is the time where it is printed."""
    made = by_cell(osu.read(text_of("osu.txt"), told(num_devices=4)))
    reduced = made["all_reduce", 1 << 20, "out_of_place"]
    assert reduced["blocks"]["total_s"] == [pytest.approx(520e-6)] and reduced["cell"]["dtype"] == "float32"
    assert made["all_gather", 4 * 1024, "out_of_place"]["cell"]["count"] == 1024
    assert made["all_gather", 4 * 2048, "out_of_place"]["status"] == "mismatch"
    exchanged = made["all_to_all", 4 * 4096, "out_of_place"]
    assert exchanged["imported"]["version"] == "5.8" and exchanged["cell"]["dtype"] == "int8"
    assert made["barrier", 0, "out_of_place"]["blocks"]["total_s"] == [pytest.approx(3.25e-6)]
    with pytest.raises(errors.BadInputError, match="--num_devices"):
        osu.read(text_of("osu.txt"), told())


def test_param():
    """Its percentiles are over ranks: none is taken for one of iterations (defect 6)."""
    records = param.read(text_of("param.txt"), told())
    made = by_cell(records)
    assert made["all_reduce", 1024, "out_of_place"]["blocks"]["total_s"] == [pytest.approx(43e-6)]
    assert made["reduce_scatter", 4096, "out_of_place"]["cell"]["dtype"] == "bfloat16"
    assert made["all_to_all", 4096, "out_of_place"]["cell"]["dtype"] == "float32"
    for result in results_of(records):
        assert result.cell.transport == "gloo" and result.cell.mesh == (4,)
        assert result.p50_s is None and result.time.df == 0
    assert results_of(records)[0].busbw / 1e9 == pytest.approx(1024 * 1.5 / 43e-6 / 1e9)


@pytest.mark.parametrize(
    ("reader", "text", "says"),
    [
        (nccl_tests.read, "hello", "no '# Rank' line"),
        (nccl_tests.read, '{"results": 3}', "not that of nccl-tests"),
        (nccl_tests.read, '{"results": [', "not JSON"),
        (nccl_tests.read, "#  Rank  0 Group\n#  Rank  1 Group\n", "no table of nccl-tests"),
        (nccl_tests.read, f"#  Rank  0 Group\n{HEADER} 8 2 float sum -1 1.0 0.1", "columns"),
        (nccl_tests.read, f"#  Rank  0 Group\n{HEADER} 8 2 f8 sum -1" + " 1.0 0.1 0.1 0" * 2, "has no counterpart"),
        (nccl_tests.read, "# Collective test starting: gather_perf\n#  Rank  0 Group", "not among"),
        (osu.read, "hello", "no output of an OSU"),
        (osu.read, "# OSU MPI Gather Latency Test v7.4\n", "is none of"),
        (osu.read, "# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8 x\n", "no positive number"),
        (
            osu.read,
            "# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_LONG.\n# Size  Avg Latency(us)\n8 1\n",
            "type",
        ),
        (param.read, "hello", "no line COMMS-RES"),
        (param.read, "\tCOMMS-RES-pt2pt 8 9\n", "not a result of one collective"),
        (param.read, "\tCOMMS-RES-gather 8 2 1 1 1 1 1 1 1\n", "has no counterpart"),
        (param.read, "\tCOMMS-RES-all_reduce 8 2 1 1 1 1 0 1 1\n", "no positive number"),
    ],
)
def test_anything_else_is_one_line(reader, text, says):
    said = told(num_devices=2, transport="gloo") if reader is not nccl_tests.read else told(collective="all_reduce")
    with pytest.raises(errors.BadInputError, match=says) as raised:
        reader(text, said)
    assert "\n" not in str(raised.value)


def test_the_command(tmp_path):
    """Several files into one folder, beside each other; then a file that is something else."""
    files = f"--input={DATA / 'nccl_all_reduce.txt'},{DATA / 'nccl_all_gather.json'}"
    command = ["-m", "xlacompare.importer", "--kind=nccl_tests", f"--output_dir={tmp_path}"]
    child = conftest.run_child([*command, files])
    assert child.returncode == errors.EXIT_OK, child.stderr
    assert "imported, one figure each" in child.stdout and "3 wrong values" in child.stdout
    assert len(record.read(tmp_path).records) == 8
    wrong = conftest.run_child([*command, f"--input={DATA / 'osu.txt'}"])
    assert wrong.returncode == errors.EXIT_BAD_INPUT and len(wrong.stderr.splitlines()) == 1
