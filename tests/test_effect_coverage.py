"""The simulation behind the coverage of effects: its noise keeps what it claims, its truths are those of the arms."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from experiments import arm_noise, effect_coverage, effect_truth
from tests import parallel_samples as ps
from tests import test_error_rates
from xlacompare.core import effects, errors, pairs


def source(rho: float = 0.5) -> arm_noise.ArmNoise:
    return next(s for s in arm_noise.synthetic() if f"AR({rho})" in s.name)


def written(folder: pathlib.Path, records: list[dict]) -> str:
    folder.mkdir()
    lines = [json.dumps({"schema": 1, "run": "r", **record}) + "\n" for record in records]
    (folder / "records.jsonl").write_text("".join(lines))
    return str(folder)


def test_noise_of_parallel_records_has_all_arms(tmp_path: pathlib.Path):
    found = arm_noise.load([written(tmp_path / "a", ps.run_records(launches=4))])
    assert found.name == "of parallel records" and len(found.own) == 8  # two frameworks
    assert {own.shape for own in found.own} == {(ps.VISITS, 12)}
    assert [x.size for x in found.launches] == [4] * 24
    assert "launches" in found.describe()


def test_noise_of_main_job_records_is_made_of_pairs(tmp_path: pathlib.Path):
    found = arm_noise.load([test_error_rates.written(tmp_path, 4)])
    assert found.name == "of main-job records" and {own.shape for own in found.own} == {(20, 2)}


def test_too_few_launches_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(errors.BadInputError, match="no arm with 4 launches"):
        arm_noise.load([written(tmp_path / "a", ps.run_records(launches=2))])


@pytest.mark.parametrize("k", [2, 6])
def test_a_difference_of_two_arms_keeps_its_variance(k):
    """Arms drawn independently again differ as much as the arms of the record did."""
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.05, 4000)
    series = 1 + shared[:, None] + rng.normal(0, 0.02, (4000, k))
    series /= series.mean(axis=0)
    common, own = arm_noise.split(series)
    noise = arm_noise.ArmNoise("", [common], [own], [])
    drawn = np.concatenate([arm_noise.draw(noise, 4, 64, rng) for _ in range(60)])
    assert (drawn[:, 0] - drawn[:, 3]).std() == pytest.approx(0.02 * np.sqrt(2), rel=0.05)
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1] == pytest.approx(0.86, abs=0.05)


def test_the_correlation_of_an_arm_is_kept():
    noise = source()
    rng = np.random.default_rng(1)
    kept = [pairs.autocorrelation(d[:, 0] - d[:, 1]) for d in (arm_noise.draw(noise, 2, 160, rng) for _ in range(60))]
    assert 0.35 < np.mean(kept) < 0.55


def test_truths_are_those_of_the_effects():
    """The changes that are planted, by the parts of the step and by the arms, agree."""
    old, new = effect_coverage.TRUTH.effects(), effect_coverage.CHANGED.effects()
    arms = effect_coverage.truths()
    for name, combination in effects.changes(effect_coverage.BASE, effect_coverage.PLANTED).items():
        by_arms = sum(weight * arms[variant][arm] for (variant, arm), weight in combination.items())
        assert by_arms == pytest.approx(new[name] - old[name]), name
    assert all(
        new[name] != old[name] for name in ("compute", "imbalance", "exposed_latency", "exposed_bytes", "hidden")
    )


def test_moved_is_what_the_plants_do():
    """The table of what each plant moves, against the truths."""
    base = effect_truth.Truth()
    for plant, change in effect_truth.PLANTS.items():
        old, new = base.effects(), change(base, 1e-3).effects()
        for name in effects.DEFINITIONS:
            expected = effect_truth.MOVED[plant].get(name, 0) * 1e-3
            assert new[name] - old[name] == pytest.approx(expected, abs=1e-12), (plant, name)


def test_coverage_of_a_short_simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setattr(effect_coverage, "RUNS", 40)
    rows = effect_coverage.simulate(source(0.0))
    summary = effect_coverage.summarise(rows)
    assert len(summary) == 2 * (len(effects.DEFINITIONS) + 4) + 4
    for row in summary:
        assert row["coverage"] >= 0.8 and row["runs"] == 40 and row["printed"] > 30
        assert row["mean"] == pytest.approx(row["truth"], abs=max(row["half_width"], 1e-4))
    assert rows == effect_coverage.simulate(source(0.0))  # seeds are fixed
    effect_coverage.write(tmp_path / "new", "table\n", summary)
    assert json.loads((tmp_path / "new" / "summary.json").read_text())[0]["effect"] == "exposed"


def test_fieller_is_the_textbook_interval_for_independent_visits():
    """One launch of few visits (no correlation is estimated): the roots of Fieller's quadratic."""
    rng = np.random.default_rng(5)
    top, bottom = rng.normal(3, 0.5, 7), rng.normal(10, 2, 7)
    launch = effects.Launch({("c", "top"): top, ("c", "bottom"): bottom})
    found = effect_coverage.fieller([launch], {("c", "top"): 1}, {("c", "bottom"): 1})
    t = 2.4469118511  # 97.5% of Student t with 6 degrees of freedom
    xx, yy, xy = (np.cov(a, b)[0, 1] / 7 * t * t for a, b in ((top, top), (bottom, bottom), (top, bottom)))
    a, b, c = bottom.mean() ** 2 - yy, top.mean() * bottom.mean() - xy, top.mean() ** 2 - xx
    root = np.sqrt(b * b - a * c)
    assert (found.low, found.high) == (pytest.approx((b - root) / a, rel=1e-3), pytest.approx((b + root) / a, rel=1e-3))


def test_a_ratio_that_is_not_printed_is_not_counted():
    """An interval that is not there neither covers nor misses."""
    shown = effect_coverage.Row("n", "one launch", "hidden_share", 0.5, 0.5, 0.4, 0.6)
    absent = effect_coverage.Row("n", "one launch", "hidden_share", 0.5, np.nan, np.nan, np.nan)
    row = effect_coverage.summarise([shown, absent])[0]
    assert (row["coverage"], row["printed"], row["runs"], row["mean"]) == (1.0, 1, 2, 0.5)
    assert effect_coverage.summarise([absent]) == []


def test_a_wrong_effect_is_not_covered(monkeypatch: pytest.MonkeyPatch):
    """The study can fail: an arm taken for another is seen in the coverage."""
    monkeypatch.setattr(effect_coverage, "RUNS", 20)
    monkeypatch.setitem(effects.DEFINITIONS, effects.EXPOSED, {effects.REAL: 1, effects.ELIDED: -1, effects.TOKEN: 0.5})
    summary = effect_coverage.summarise(list(effect_coverage.within(source(0.0), "launches")))
    shares = {row["effect"]: row["coverage"] for row in summary}
    assert shares["exposed"] < 0.2 and shares["exposed_bytes"] > 0.7
