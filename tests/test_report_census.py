"""What the report says of the census: what agrees, what was not checked, what it cost."""

from __future__ import annotations

from tests import report_samples as made
from xlacompare.report import data, render


def test_the_census_is_said_with_its_cost_and_what_it_left_out() -> None:
    summary = made.summary(**made.RUNS["single"])
    marks = {"ok": "", "unsupported": "no parser"}
    for result, (status, reason) in zip(summary.cells, marks.items(), strict=True):
        result.census.update(status=status, reason=reason, seconds=0.25, findings=["in halves"])
    plain, expert = (render.render(summary, "text", expert=value) for value in (False, True))
    said = " ".join(plain[plain.index("How it was measured") :].split())
    assert "the workload's in 1 of 2 cells; it took 0.5" in said
    assert f"FLOPs not checked: {data.side(summary.cells[1].cell)}: no parser" in said
    assert "in halves" in expert and "in halves" not in plain
    assert "census of operations" not in render.render(made.summary(**made.RUNS["single"]), "text", expert=False)
