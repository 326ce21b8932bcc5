"""The second opinion in the analysis and in the report of records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.effect_truth import Truth
from tests import parallel_samples
from xlacompare.core import effects, parallel_analysis, timeline
from xlacompare.report import page, parallel_export, render

TRUTH = Truth()
STEPS = 12


def profile(exposed_s: float, hidden_s: float, launch: int, reason: str = "") -> dict:
    """Of two ranks, of which 1 waits 1 ms for 0."""
    rng = np.random.default_rng(launch)
    length, steps = TRUTH.arms()[effects.REAL], []
    for rank in (0, 1):
        for step in range(STEPS):
            exposed = exposed_s + 1e-3 * rank + 1e-5 * rng.standard_normal()
            operations = {"all-reduce": timeline.Operation(timeline.COMMUNICATION, 2, exposed + hidden_s)}
            rest = length - hidden_s - exposed - 1e-3
            steps.append(timeline.Totals(step, rank, length, rest, exposed, hidden_s, 1e-3, operations))
    kept = [] if reason else [json.loads(json.dumps(step.to_dict())) for step in steps]
    return {"steps": kept, "folder": f"traces/launch{launch}", "files": [], "notes": ["a note"], "reason": reason}


def summary(exposed: float = 0.0, hidden: float = 0.0, reason: str = ""):
    """Of a run whose traces differ from the arms by so many seconds."""
    truth = TRUTH.effects()
    records = parallel_samples.run_records({("jax", "compiled"): TRUTH}, launches=3)
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["communication"] == "real":
            sides = truth[effects.EXPOSED] + exposed, truth[effects.HIDDEN] + hidden
            record["profile"] = profile(*sides, record["launch"], reason)
    return parallel_analysis.summarise(records)


def opinions(of) -> dict[str, bool]:
    """Figure -> whether both disagree, by more than is negligible."""
    found = of.frameworks[0].traced["compiled"].opinion.opinions
    return {o.figure: o.kind == "disagree" and not o.negligible for o in found}


def shown(of) -> str:
    return " ".join(render.parallel_to_text(of, False, width=page.WIDTH).split())


def test_they_agree():
    made = summary()
    assert opinions(made) == {"exposed communication": False, "hidden communication": False}
    text = shown(made)
    assert "a second opinion from traces of `real`" in text and "DISAGREE" not in text
    assert "communication by type, a step: all-reduce 2x" in text and "traces/launch2" in text and "a note" in text
    assert "compared is rank 0, for which the others wait; waiting in a traced step: rank 0 0.00 s; rank 1" in text


@pytest.mark.parametrize(("exposed", "hidden", "which"), [(0.004, 0, "exposed"), (0, -0.004, "hidden")])
def test_they_disagree(exposed, hidden, which):
    made = summary(exposed, hidden)
    assert [name for name, disagrees in opinions(made).items() if disagrees] == [f"{which} communication"]
    assert "they DISAGREE: the trace has" in shown(made) and "usual cause" in shown(made)


def test_what_could_not_be_traced():
    made = summary(reason="the profiler sees nothing")
    assert made.frameworks[0].traced["compiled"].opinion is None
    assert "no second opinion: the profiler sees nothing" in shown(made)


def test_without_traces_nothing_is_said():
    made = parallel_samples.summary()
    assert made.frameworks[0].traced == {} and "second opinion" not in shown(made)


def test_in_json():
    made = json.loads(parallel_export.to_json(summary()))
    opinion = made["frameworks"][0]["traced"]["compiled"]["opinion"]["opinions"][0]
    assert opinion["figure"] == "exposed communication" and opinion["trace"]["mean"] > 0
