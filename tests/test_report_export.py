"""What programs get of a run (JSON, CSV), what is suggested next, and numbers as text."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re

import pytest

from tests import report_samples as made
from xlacompare.core import errors, estimates, record, results
from xlacompare.report import advice, data, export, render, words

RUNS, GATE = made.RUNS, made.GATE


def steps(**options) -> dict[str, str]:
    return {step.flags: step.why for step in advice.next_steps(data.ordered(made.summary(**options)), False)}


def test_next_steps() -> None:
    assert "--launches=3" in steps(**RUNS["noisy"])
    assert "--launches=6" in steps(noise=0.001)
    assert "--launches=6" not in steps(noise=0.001, launches=6)
    assert "--settings=both" in steps()
    assert "--settings=both" not in steps(**RUNS["settings"])
    assert "--settings=both --itemise" in steps(labels=("matched", "shipped"), settings="both")
    assert "--compiler=eager,compiled" in steps(**RUNS["compiled"])
    assert "python -m xlacompare.doctor" in steps(**RUNS["one"])
    failed = steps(**RUNS["failed"])
    assert "--framework=torch --workload=transformer --compiler=compiled --launches=1" in failed
    assert "--framework=torch_xla --compiler=captured" in failed


def test_the_number_of_launches_that_would_decide() -> None:
    options = {"noise": 0.06, "launches": 6, "frameworks": ("jax", "torch"), "workloads": ("mlp",), "seed": 3}
    (pair,) = data.lead_pairs(made.summary(**options))
    assert pair.verdict is not None
    assert pair.verdict.kind == "inconclusive"
    assert pair.verdict.launches_needed is not None
    assert f"--launches={pair.verdict.launches_needed}" in steps(**options) or pair.verdict.launches_needed > 50


def test_break_even_needs_a_saving_that_is_a_difference() -> None:
    summary = made.summary(**RUNS["single"])
    cell = next(r for r in summary.cells if r.cell.compiler == "compiled")
    assert data.break_even(summary, cell) == words.seconds(cell.break_even_step)
    pair = summary.arms[0]
    assert pair.verdict is not None

    def after(**changes) -> str:
        judged = dataclasses.replace(pair.verdict, **changes)
        return data.break_even(dataclasses.replace(summary, arms=[dataclasses.replace(pair, verdict=judged)]), cell)

    assert after(kind="inconclusive") == "unclear"
    assert after(estimate=pair.verdict.estimate.inverse()) == "never"
    assert data.break_even(dataclasses.replace(summary, arms=[]), cell) == "-"


def test_the_command_of_a_run() -> None:
    config = made.summary(workloads=("mlp",), compilers=("compiled",), margin=0.1, itemise=True, settings="both").config
    assert advice.command(config, made.MACHINE) == (
        "python -m xlacompare.run --framework=jax,torch_xla,torch --compiler=compiled --workload=mlp --margin=0.1 "
        "--settings=both --itemise"
    )
    three = "python -m xlacompare.run --framework=jax,torch_xla,torch --workload=mlp,convnet,transformer"
    assert advice.command(made.summary().config, made.MACHINE) == three
    assert advice.command({**made.summary().config, "num_cores": 2}, made.MACHINE) == f"{three} --num_cores=2"
    one = made.summary(frameworks=("jax",), workloads=("mlp",), launches=3).config
    assert advice.command(one, made.MACHINE) == "python -m xlacompare.run --framework=jax --workload=mlp --launches=3"
    usual = advice.command({**one, "launches": 2}, made.MACHINE)
    assert usual == "python -m xlacompare.run --framework=jax --workload=mlp"


def test_the_margin_is_no_advice_for_arms_of_one_framework() -> None:
    for name in RUNS:
        summary = made.summary(**RUNS[name])
        if len(data.frameworks(summary)) == 1:
            assert not any(step.flags.startswith("--margin") for step in advice.next_steps(summary, False))
    arms = made.summary(**RUNS["single"])
    judged = arms.arms[0].verdict
    assert judged is not None
    too_close = dataclasses.replace(judged, kind="inconclusive", launches_needed=None, p_value=0.5)
    pair = dataclasses.replace(arms.arms[0], verdict=too_close)
    found = [step.flags for step in advice._more(arms, [pair])]
    assert found == [f"--cell_s={2 * float(arms.config['cell_s']):g}"]


@pytest.mark.parametrize("name", RUNS)
def test_json_holds_everything_and_nothing_that_json_has_not(name) -> None:
    summary = made.summary(**RUNS[name])

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in JSON")

    found = json.loads(render.render(summary, "json", expert=False), parse_constant=refuse)
    assert found["schema"] == export.SCHEMA
    assert {field.name for field in dataclasses.fields(summary)} <= set(found)
    assert len(found["cells"]) == len(summary.cells)
    assert len(found["headlines"]) == len(data.lead_pairs(summary))
    for pair in found["pairs"]:
        assert (pair["ratio"] is None) == (pair["verdict"] is None)
        assert pair["a"]["framework"] in pair["sentence"]


def test_json_keeps_the_sentences_with_their_reservations() -> None:
    found = json.loads(render.render(made.summary(), "json", expert=False))
    first = found["headlines"][0]
    assert re.match(
        r"mlp: torch_xla 1\.\d+x \[.*\] slower than jax on cpu; gate passed; not transferable$", first["sentence"]
    )
    assert first["kind"] == "difference"
    pair = found["pairs"][0]
    assert pair["ratio"][0] == pytest.approx(math.exp(pair["verdict"]["estimate"]["mean"]))


def test_infinite_becomes_null() -> None:
    assert record.finite({"a": [math.inf, (math.nan, 1.5)], "b": "inf"}) == {"a": [None, [None, 1.5]], "b": "inf"}


def table(**options) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render.render(made.summary(**options), "csv", expert=False))))


def test_csv_is_one_tidy_table() -> None:
    rows = table(**RUNS["settings"])
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(r["kind"] for r in rows)}
    summary = made.summary(**RUNS["settings"])
    assert {kind: len(group) for kind, group in kinds.items()} == {
        "cell": len(summary.cells),
        "pair": len(summary.pairs),
        "arm": len(summary.arms),
        "setting": len(summary.settings),
        "gap": 12,
        "settings_bar": 9,
        "bar": 33,
    }
    assert all(tuple(row) == export.COLUMNS for row in rows)
    cell = kinds["cell"][0]
    assert (cell["framework"], cell["compiler"], cell["unit"], cell["status"]) == ("jax", "eager", "s", "ok")
    assert float(cell["low"]) < float(cell["value"]) < float(cell["high"])
    pair = kinds["pair"][0]
    assert pair["unit"] == "ratio"
    verdict = summary.pairs[0].verdict
    assert verdict is not None
    assert [float(pair[key]) for key in ("value", "low", "high")] == pytest.approx(verdict.estimate.ratio())
    gap, bars = float(kinds["gap"][0]["value"]), kinds["bar"]
    assert kinds["gap"][0]["name"] == "total by threads"
    assert sum(float(row["value"]) for row in bars[:2]) == pytest.approx(gap)
    assert sum(float(row["value"]) for row in bars[2:5]) == pytest.approx(gap)


def test_csv_of_failures_and_unknown_values() -> None:
    rows = table(**RUNS["failed"])
    (bad,) = [row for row in rows if row["kind"] == "cell" and row["status"] == "mismatch"]
    assert (bad["reason"], bad["value"]) == (GATE, "")
    assert [row["status"] for row in rows if row["kind"] == "pair" and "torch/compiled has no time" in row["reason"]]
    (one,) = [row for row in table(launches=1, frameworks=("jax", "torch"), workloads=("mlp",)) if row["kind"] == "gap"]
    assert (one["low"], one["high"]) == ("", "")
    assert one["value"]


def test_an_unknown_format() -> None:
    with pytest.raises(errors.BadInputError, match="text, json, csv"):
        render.render(made.summary(**RUNS["single"]), "yaml", expert=False)


def estimate(mean: float, half: float) -> estimates.Estimate:
    return estimates.Estimate(mean, mean - half, mean + half, 0.95, 3, 2, "linear", "test", half)


def test_words() -> None:
    assert words.signed_ms(estimate(1.5e-3, 0.25e-3), 2) == "+1.50 [+1.25, +1.75]"
    assert words.step_ms(estimate(0.0142, 0.0003)) == "14.2 [13.9, 14.5]"
    assert words.step_ms(estimate(0.0142, 0.0100)) == "14.2 [4.2, 24.2] wide"
    assert words.step_ms(estimate(0.0142, math.inf)) == "14.2 [-inf, inf] wide"
    assert words.bar(2.0, 4.0, 10) == "+++++"
    assert words.bar(-0.001, 4.0, 10) == "-"
    assert words.bar(0.0, 4.0, 10) == ""
    assert words.places_ms(1.04e-3, [28.1e-3]) == 2
    assert words.places_ms(0.0488e-3, [7.25e-3]) == 4
    assert words.gain(0.34, estimate(1.0, 0.1)) == "gain 34%"
    assert words.gain(3.4, estimate(1.0, 0.1)) == "gain >100%"
    assert words.gain(0.34, estimate(1.0, 1.1)) == "unclear"
    assert [words.number_of(n, "launch") for n in (1, 3)] == ["1 launch", "3 launches"]
    assert words.cut("a  b\nc", 80) == "a b c"
    assert len(words.cut("x" * 200, 80)) <= 80


def test_names_tell_comparisons_apart() -> None:
    cells = [made.make_cell("jax"), made.make_cell("jax", workload="convnet")]
    found = [results.CellResult(cell, "ok", "") for cell in cells]
    assert list(data.names(found).values()) == ["mlp", "convnet"]
    found.append(results.CellResult(dataclasses.replace(cells[0], dtype="bfloat16"), "ok", ""))
    assert list(data.names(found).values()) == ["mlp float32", "mlp bfloat16", "convnet"]
