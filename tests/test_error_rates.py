"""The simulation behind the error rates: its noise keeps what it claims to keep, its procedures are the product's."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest

from experiments import error_rates, noise
from xlacompare.core import errors, pairs


def cell_record(compiler: str, launch: int, steps: np.ndarray, pid: int = 7) -> dict:
    count = len(steps)
    blocks = {
        "total_s": (2 * steps).tolist(), "n": [2] * count, "dispatch_s": [0.0] * count, "host_s": [0.0] * count,
        "compiles": [0] * count,
        "disturbed": [False] * count, "series": ["main"] * count, "mode": ["block"] * count,
        "visit": [i // 2 for i in range(count)],
    }  # fmt: skip
    cell = {"framework": "f", "compiler": compiler, "workload": "mlp", "preset": "tiny", "dtype": "float32"}
    cell |= {"batch_size": 8, "optimizer": "sgd"}
    return {"schema": 1, "kind": "cell", "status": "ok", "reason": "", "launch": launch, "cell": cell,
            "start": {"pid": pid + launch}, "blocks": blocks}  # fmt: skip


def written(folder: pathlib.Path, launches: int) -> str:
    rng = np.random.default_rng(0)
    lines = []
    for launch in range(launches):
        lines += [cell_record(arm, launch, (launch + 1) * rng.uniform(1, 2, 40)) for arm in ("eager", "compiled")]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_load_reads_pairs_and_launches(tmp_path: pathlib.Path) -> None:
    found = noise.load([written(tmp_path, 4)])
    assert [s.shape for s in found.series] == [(40, 2)] * 4
    assert all(s.mean(axis=0) == pytest.approx([1, 1]) for s in found.series)
    assert [x.size for x in found.launches] == [4, 4]
    assert np.diff(found.launches[0]).min() > 0  # launches were made slower and slower
    assert "4 series of 40-40 pairs" in found.describe()


def test_load_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadInputError, match="0 cells with 4 launches"):
        noise.load([written(tmp_path, 2)])


def test_smoothed_launches_keep_the_spread() -> None:
    residuals = noise.centred([0.0, 0.03, -0.02, 0.05, 0.01])
    assert residuals.mean() == pytest.approx(0)
    assert residuals.std() == pytest.approx(np.std([0.0, 0.03, -0.02, 0.05, 0.01], ddof=1))
    source = noise.Noise("", [], [residuals])
    drawn = noise.draw_launches(source, 200, 200, np.random.default_rng(0))
    assert drawn.std() == pytest.approx(residuals.std(), rel=0.03)
    assert len(np.unique(drawn)) == drawn.size


def test_drawn_blocks_keep_mean_and_correlation() -> None:
    series = next(s for s in list(noise.synthetic())[3].series)  # correlation 0.5
    source = noise.Noise("", [series], [])
    drawn = noise.draw_blocks(source, 160, 100, np.random.default_rng(0), dealt=False)
    assert drawn.mean() == pytest.approx(series.mean(), abs=0.01)
    kept = np.mean([pairs.autocorrelation(x[:, 0] - x[:, 1]) for x in drawn])
    assert kept > 0.8 * pairs.autocorrelation(series[:, 0] - series[:, 1])


def test_dealt_sides_are_exchangeable() -> None:
    source = noise.Noise("", [np.tile([1.0, 2.0], (50, 1))], [])
    drawn = noise.draw_blocks(source, 32, 400, np.random.default_rng(0))
    assert drawn.mean(axis=(0, 1)) == pytest.approx([1.5, 1.5], abs=0.06)
    assert set(np.unique(drawn[:, 1:16].std(axis=1))) == {0.0}  # a piece is dealt as a whole
    kept = noise.draw_blocks(source, 32, 4, np.random.default_rng(0), dealt=False)
    assert (kept == [1.0, 2.0]).all()


def test_rates_of_a_short_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_rates, "RUNS", 150)
    source = list(noise.synthetic())[1]
    rows = error_rates.simulate(source)
    assert len(rows) == 150 * 2 * 4
    assert {row.stop for row in rows} == {"last look", "verdict"}
    assert {row.n for row in rows if row.procedure == "between_launches"} == {6, 10, 16, 24}
    for row in error_rates.summarise(rows):
        assert row["false_difference"] < 0.12
        assert row["found"] > 0.75
        assert 0.9 < row["pooled_coverage"] < 1
        assert "false difference" in error_rates.line(row)
    again = error_rates.simulate(source)
    assert again == rows  # seeds are fixed


def test_every_run_is_written(tmp_path: pathlib.Path) -> None:
    run = error_rates.Run("in_process", "x", 1.0, 0.02, 0, "difference", math.e, 1.0, 3.0, True, 80, "last look")
    error_rates.write(tmp_path / "new", [run, run], [{"a": 1}])
    lines = (tmp_path / "new" / "runs.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("procedure,noise,planted")
