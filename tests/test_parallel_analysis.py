"""From parallel records to effects, gaps and findings: alignment of visits, refusals, families, evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.effect_truth import more
from tests import parallel_samples as ps
from xlacompare.core import effects, parallel_analysis, parallel_gaps, plan
from xlacompare.core import parallel_samples as samples

JAX, TORCH = ps.TRUTHS["jax", "compiled"], ps.TRUTHS["torch", "compiled"]


def of(summary, framework):
    return next(entry for entry in summary.frameworks if entry.cell.framework == framework)


def found(summary, framework, name, variant="compiled", versus=""):
    chosen = [e for e in of(summary, framework).effects if (e.name, e.variant, e.versus) == (name, variant, versus)]
    assert len(chosen) == 1
    return chosen[0]


def without_timed(records, **changed):
    return [r | changed if r["kind"] == "parallel" else r for r in records]


@pytest.fixture(scope="module")
def summary():
    return ps.summary()


def test_effects_are_the_truth_of_each_framework_and_arm(summary):
    for (framework, compiler), truth in ps.TRUTHS.items():
        for name in ("exposed", "exposed_latency", "exposed_bytes", "wire", "hidden", "compute", "imbalance"):
            entry = found(summary, framework, name, compiler)
            assert entry.estimate.mean == pytest.approx(truth.effects()[name], rel=0.04, abs=0.1e-3), name


def test_waiting_is_by_rank(summary):
    waits = of(summary, "jax").waiting["compiled"]
    assert waits[0].mean == pytest.approx(0, abs=0.05e-3) and waits[1].mean == pytest.approx(1e-3, rel=0.1)
    assert of(summary, "jax").fastest == {"compiled": 1, "eager": 1}


def test_bars_sum_to_the_gap_and_are_the_truth(summary):
    pair = next(p for p in summary.pairs if p.variant == "compiled")
    sign = 1 if pair.a.framework == "jax" else -1
    assert sum(bar.seconds.mean for bar in pair.bars) == pytest.approx(pair.total.mean, abs=1e-15)
    bars = {bar.name: sign * bar.seconds.mean for bar in pair.bars}
    for name in ("exposed_latency", "exposed_bytes", "imbalance", "compute"):
        truth = JAX.effects()[name] - TORCH.effects()[name]
        assert bars[parallel_gaps.NAMES[name]] == pytest.approx(truth, abs=0.4e-3), name
    assert {bar.verdict.family for bar in pair.bars} == {"bars of the pair (Holm, 4)"}
    assert pair.total.method == "paired t over launches" and pair.total.n == 6


def test_the_slower_framework_stands_first(summary):
    pair = next(p for p in summary.pairs if p.variant == "eager")
    assert (pair.a.framework, pair.b.framework) == ("jax", "torch")
    assert pair.verdict.estimate.mean > 0 and pair.verdict.kind == "difference"
    assert pair.verdict.family == "framework pairs (Holm, 2)"


def test_a_planted_change_is_against_the_matched_variant_in_its_own_family():
    planted = {("jax", "compiled"): {"planted:matmul": more(JAX, compute=2e-3)}}
    made = ps.summary(truths={("jax", "compiled"): JAX}, labels=planted)
    variant = "compiled planted:matmul"
    moved = {e.name: e for e in of(made, "jax").effects if e.versus == "compiled"}
    assert set(moved) == set(effects.DEFINITIONS)
    kinds = {name: e.verdict.kind for name, e in moved.items()}
    assert {name for name, kind in kinds.items() if kind == "difference"} == {"compute"}
    assert moved["compute"].estimate.mean == pytest.approx(2e-3, rel=0.05)
    assert moved["compute"].verdict.family.startswith(f"effects of jax, {variant} (Holm")
    assert found(made, "jax", "exposed").verdict.family == "effects of jax (Holm, 4)"
    assert made.pairs == []  # nothing planted is compared with another framework


@pytest.mark.parametrize("plant", ["bytes", "latency", "wait", "work"])
def test_a_cause_planted_in_a_bar_is_found_in_it(plant):
    """Against the same pair without the cause: the bar moved by its size, the others stayed."""
    parts = {"bytes": {"bytes": 2e-3, "wire_bytes": 2e-3}, "latency": {"latency": 2e-3, "wire_latency": 2e-3},
             "wait": {"waiting": 2e-3}, "work": {"compute": 2e-3}}  # fmt: skip
    slow = more(TORCH, compute=4e-3)  # so that the sides stay in their order
    base, changed = ({("torch", "compiled"): t, ("jax", "compiled"): JAX} for t in (slow, more(slow, **parts[plant])))
    before, after = (ps.summary(truths=truths).pairs[0] for truths in (base, changed))
    assert before.a.framework == after.a.framework == "torch"
    moved = {a.name: a.seconds.mean - b.seconds.mean for a, b in zip(after.bars, before.bars, strict=True)}
    names = {"bytes": "exposed_bytes", "latency": "exposed_latency", "wait": "imbalance", "work": "compute"}
    for name, seconds in moved.items():
        expected = 2e-3 if name == parallel_gaps.NAMES[names[plant]] else 0.0
        assert seconds == pytest.approx(expected, abs=0.1e-3), name


def test_a_cell_that_failed_its_gate_has_no_time_anywhere():
    made = ps.summary(failed={("jax", "compiled", "real"): ("mismatch", "gradient block0.kernel differs")})
    arm = next(
        a for a in made.arms if (a.cell.framework, a.variant, a.cell.communication) == ("jax", "compiled", "real")
    )
    assert arm.time is None and arm.status == "mismatch"
    assert found(made, "jax", "exposed").reason == "needs compiled/real: mismatch: gradient block0.kernel differs"
    assert found(made, "jax", "wire").estimate is not None
    pair = next(p for p in made.pairs if p.variant == "compiled")
    assert pair.verdict is None and pair.total is None and pair.bars == []
    assert pair.problem == "jax/compiled/real has no time: mismatch: gradient block0.kernel differs"


def test_times_beside_a_failed_gate_are_not_used():
    """A record that says `ok` and has blocks, but whose gate did not pass: no time all the same."""
    records = ps.run_records(truths={("jax", "compiled"): JAX})
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["communication"] == "serial" and record["gate"]:
            record["gate"] = {"status": "mismatch", "passed": False}
    made = parallel_analysis.summarise(records)
    arm = next(a for a in made.arms if a.cell.communication == "serial")
    assert arm.time is None and (arm.status, arm.reason) == ("mismatch", "the gate failed")
    assert "closure not checked" in found(made, "jax", "hidden").notes[0]


def test_a_failure_in_one_launch_is_the_cells_failure():
    records = ps.run_records(truths={("jax", "compiled"): JAX})
    last = [r for r in records if r["kind"] == "parallel" and r["cell"]["communication"] == "token"][-1]
    last |= {"status": "hang", "reason": "no answer in 300 s", "blocks": {}, "ranks": []}
    made = parallel_analysis.summarise(records)
    assert found(made, "jax", "exposed_latency").reason == "needs compiled/token: hang: no answer in 300 s"
    assert found(made, "jax", "exposed").estimate is not None


def test_only_common_visits_count_and_disturbed_ones_stay_out():
    records = ps.run_records(truths={("jax", "compiled"): JAX}, launches=1)
    arms = {r["cell"]["communication"]: r for r in records if r["kind"] == "parallel"}
    elided, real, serial = (arms[name]["blocks"] for name in ("elided", "real", "serial"))
    elided["compiles"][10] = 1  # visit 5
    real["disturbed"][13] = True  # visit 6
    real["total_s"][13] *= 50
    serial["visit"] = [v + 2 for v in serial["visit"]]  # its visits 12 and 13 have no neighbours, 0 and 1 are not its
    world = samples.collect(records)[0]
    visits = [2, 3, 4, 7, 8, 9, 10, 11]
    assert world.used() == {0: visits}
    launch = world.launches()[0]
    assert {values.size for values in launch.arms.values()} == {8}
    expected = np.asarray(real["total_s"]).reshape(-1, 2)[visits].mean(axis=1) / ps.STEPS
    assert launch.arms["compiled", "real"] == pytest.approx(expected)
    made = parallel_analysis.summarise(records)
    result = {a.cell.communication: a for a in made.arms}
    assert (result["real"].num_disturbed, result["elided"].num_compiled, result["real"].num_visits) == (1, 1, 8)


def test_disturbed_visits_are_used_where_too_few_others_remain():
    records = ps.run_records(truths={("jax", "compiled"): JAX}, launches=1)
    for record in records:
        if record["kind"] == "parallel":
            record["blocks"]["disturbed"] = [i > 5 for i in range(2 * ps.VISITS)]  # 3 visits are left
    assert len(samples.collect(records)[0].used()[0]) == ps.VISITS


def test_arms_without_a_common_visit_are_a_problem():
    records = ps.run_records(truths={("jax", "compiled"): JAX}, launches=1, arms=("real", "elided"))
    blocks = [r["blocks"] for r in records if r["kind"] == "parallel"]
    blocks[1]["visit"] = [v + 100 for v in blocks[1]["visit"]]
    made = parallel_analysis.summarise(records)
    assert made.problems == ["jax, launch 0: its arms have no visit in common, so that nothing can be subtracted"]
    assert made.frameworks == [] and made.pairs == []


def test_arms_of_different_processes_are_no_pairs_of_visits():
    truths = {("jax", "compiled"): JAX, ("jax", "eager"): ps.TRUTHS["jax", "eager"]}
    records = ps.run_records(truths=truths, launches=1)
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["compiler"] == "eager":
            for rank in record["ranks"]:
                rank["pid"] += 10_000
    made = parallel_analysis.summarise(records)
    assert found(made, "jax", "compiler", versus="eager").estimate.df == 0  # one launch is one value
    together = ps.summary(truths=truths, launches=1)
    assert found(together, "jax", "compiler", versus="eager").estimate.df > 0
    assert found(made, "jax", "exposed").estimate.mean == pytest.approx(JAX.latency + JAX.bytes, rel=0.05)


def test_ranks_of_one_process_have_one_bar_of_compute():
    records = ps.run_records(launches=3)
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["framework"] == "jax":
            record["ranks"], record["cell"]["mode"] = record["ranks"][:1], "spmd"
    made = parallel_analysis.summarise(records)
    pair = next(p for p in made.pairs if p.variant == "compiled")
    assert [bar.name for bar in pair.bars][-1] == "compute of the slowest rank" and len(pair.bars) == 3
    assert sum(bar.seconds.mean for bar in pair.bars) == pytest.approx(pair.total.mean, abs=1e-15)
    assert any("in mode spmd" in note for note in pair.notes)
    assert "jax" not in [f.cell.framework for f in made.frameworks if f.waiting]


@pytest.mark.parametrize(
    ("changed", "unlike"),
    [
        ({"transport": "mpi"}, "unlike transports"),
        ({"mesh": (4,)}, "unlike ranks"),
        ({"strategy": "fsdp"}, "strategies"),
    ],
)
def test_unlike_work_is_refused(changed, unlike):
    records = ps.run_records(truths={("jax", "compiled"): JAX}, launches=2)
    records += ps.run_records(truths={("torch", "compiled"): TORCH}, launches=2, **changed)
    made = parallel_analysis.summarise(records)
    assert made.pairs == [] and len(made.refusals) == 1
    assert made.refusals[0].startswith("no ratio of jax and torch: ") and unlike in made.refusals[0]


def test_unlike_environments_are_refused():
    records = ps.run_records(launches=2)
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["framework"] == "torch":
            record["environment"] = {"checked": ps.CHECKED | {"threads": 2}}
    made = parallel_analysis.summarise(records)
    assert all("threads is" in pair.problem for pair in made.pairs) and len(made.pairs) == 2


def test_no_bars_where_the_exposed_time_is_withheld():
    made = ps.summary(truths=ps.TRUTHS | {("jax", "compiled"): more(JAX, distortion=9e-3)})
    pair = next(p for p in made.pairs if p.variant == "compiled")
    assert pair.bars == [] and "jax compiled: withheld: elided takes" in pair.no_bars
    assert pair.verdict is not None and pair.total is not None


def test_without_token_the_exposed_time_is_one_bar():
    made = ps.summary(arms=("real", "elided"))
    assert made.pairs[0].bars[0].name == "exposed communication" and len(made.pairs[0].bars) == 3


def test_frameworks_without_an_arm_in_common_are_compared_and_say_so():
    made = ps.summary(truths={("jax", "compiled"): JAX, ("torch", "eager"): TORCH})
    assert len(made.pairs) == 1 and "no arm in common" in made.pairs[0].notes[0]


def test_nothing_is_tested_between_looks():
    records = [r for r in ps.run_records() if r["kind"] != "plan"]
    records.append({"kind": "plan", "plan": plan.fixed(9).to_dict()})
    made = parallel_analysis.summarise(records)
    assert {pair.verdict.kind for pair in made.pairs} == {"inconclusive"}
    assert {bar.verdict.kind for pair in made.pairs for bar in pair.bars} == {"inconclusive"}
    assert made.pairs[0].verdict.launches_needed == 9


def test_launches_that_did_not_run_side_by_side_are_compared_by_welch():
    a, b = {0: 1.0, 1: 1.1}, {5: 2.0, 6: 2.2, 7: 2.1}
    assert parallel_gaps.difference(a, b, 0.95, "linear").method == "Welch t over launches"
    assert parallel_gaps.difference(a, {0: 2.0, 1: 2.2}, 0.95, "linear").method == "paired t over launches"
    assert parallel_gaps.difference(a, {}, 0.95, "linear") is None


def test_a_schedule_that_differs_is_said():
    records = ps.run_records(truths={k: v for k, v in ps.TRUTHS.items() if k[0] == "jax"})
    same = found(parallel_analysis.summarise(records), "jax", "hidden_change", versus="eager")
    assert "the same collectives" in same.notes[1]
    for record in records:
        if record["kind"] == "parallel" and record["cell"]["compiler"] == "eager":
            record["census"]["ops"] = [ps.op(size=1 << 20)] * 12
    other = found(parallel_analysis.summarise(records), "jax", "hidden_change", versus="eager")
    assert other.notes[1] == "the census shows another schedule: collectives 12 in eager, 2 in compiled"


def test_is_parallel():
    assert parallel_analysis.is_parallel(ps.run_records(launches=1))
    assert not parallel_analysis.is_parallel([{"kind": "run", "config": {}}, {"kind": "cell"}])


def test_an_empty_run_has_a_summary():
    made = parallel_analysis.summarise([{"kind": "run", "mode": "parallel", "config": {}, "machine": {}}])
    assert made.arms == [] and made.pairs == [] and made.ending == ""


def test_records_survive_json():
    records = json.loads(json.dumps(ps.run_records(launches=2)))
    assert len(parallel_analysis.summarise(records).pairs) == 2
