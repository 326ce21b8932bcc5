"""Effects of arms with known truths: each planted change comes back in its own effect, and only there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments import effect_truth
from xlacompare.core import claims, effects, estimates
from xlacompare.parallel import arms as communication

C, E = "compiled", "eager"
VISITS, LAUNCHES = 24, 3
BASE = effect_truth.Truth()


def launch_of(truths: dict[str, effect_truth.Truth], rng: np.random.Generator, noise: float = 0.01, **changes):
    """One launch; a drift that all arms share, 1% from launch to launch, `noise` of its own in every arm and visit."""
    swing = 0.05 * np.sin(np.arange(VISITS) / 3)
    drift = 1 + 0.01 * rng.standard_normal() + swing - swing.mean()
    made, ranks = {}, {}
    for variant, truth in truths.items():
        blur = lambda: 1 + noise * rng.standard_normal(VISITS)  # noqa: E731
        for arm, seconds in truth.arms().items():
            if arm != effects.FASTEST:
                made[variant, arm] = seconds * drift * blur()
        slow = made[variant, effects.ELIDED]
        ranks[variant] = np.stack([slow, truth.arms()[effects.FASTEST] * drift * blur()])
    return effects.Launch(made, ranks, **changes)


def launches_of(truths: dict[str, effect_truth.Truth] | effect_truth.Truth, seed: int = 1, count: int = LAUNCHES, **k):
    rng = np.random.default_rng(seed)
    chosen = truths if isinstance(truths, dict) else {C: truths}
    return [launch_of(chosen, rng, **k) for _ in range(count)]


def without(launches, *keys):
    return [effects.Launch({k: v for k, v in x.arms.items() if k not in keys}, x.ranks) for x in launches]


def by_name(found):
    return {entry.name: entry for entry in found}


def variant(launches, name: str = C, why=None):
    return by_name(claims.of_variant(launches, name, why or {}))


def near(found: estimates.Estimate | None, truth: float, tolerance: float) -> bool:
    return found is not None and abs(found.mean - truth) < tolerance and found.low <= found.mean <= found.high


def test_arms_are_those_of_the_package():
    named = {effects.REAL, effects.ELIDED, effects.TOKEN, effects.SERIAL, effects.ALONE, effects.ALONE_TOKEN}
    assert named == set(communication.ARMS)


@pytest.mark.parametrize("seed", range(3))
def test_every_effect_is_the_truth(seed):
    """Independently of how the arms define it: `Truth.effects` is written from the parts of a step."""
    found = variant(launches_of(BASE, seed))
    truth = BASE.effects()
    assert set(found) == set(truth)
    for name, entry in found.items():
        assert near(entry.estimate, truth[name], 0.06 if entry.unit == "ratio" else 0.5e-3), name


def test_without_noise_every_effect_is_exact():
    exact = {(C, arm): np.full(VISITS, seconds) for arm, seconds in BASE.arms().items()}
    launches = [effects.Launch(exact)] * 2
    for name, truth in BASE.effects().items():
        ratios = {effects.SHARE: effects.hidden_share, effects.EFFICIENCY: effects.efficiency}
        found = ratios[name](launches, C) if name in ratios else effects.effect(launches, name, C)
        assert found.mean == pytest.approx(truth, abs=1e-12), name
        assert found.half_width == pytest.approx(0, abs=1e-12), name


@pytest.mark.parametrize("plant", effect_truth.PLANTS)
@pytest.mark.parametrize("size", [2e-3, -1.2e-3])
def test_a_planted_change_is_found_where_it_was_planted_and_only_there(plant, size):
    """Between two variants of one process: what was moved moved by its size, nothing else by a tenth of it."""
    changed = effect_truth.PLANTS[plant](BASE, size if plant != "slow rank" else abs(size))
    size = size if plant != "slow rank" else abs(size)
    launches = launches_of({C: BASE, "planted": changed}, seed=4, noise=0.002)
    sides = claims.of_variant(launches, C, {}), claims.of_variant(launches, "planted", {})
    moved = by_name(claims.of_planted(launches, sides, {}))
    assert set(moved) == set(effects.DEFINITIONS)
    for name, entry in moved.items():
        expected = effect_truth.MOVED[plant].get(name, 0) * size
        assert near(entry.estimate, expected, 0.1 * abs(size)), (name, entry.estimate)
        assert entry.versus == C and entry.variant == "planted"
    judged = by_name(claims.judged(list(moved.values()), {C: 26e-3}, "planted"))
    kinds = {name: entry.verdict.kind for name, entry in judged.items()}
    assert {name for name, kind in kinds.items() if kind == "difference"} == set(effect_truth.MOVED[plant])


def test_a_slow_rank_moves_only_waiting_whichever_rank_it_is():
    for slow in (0, 1):
        rng = np.random.default_rng(slow)
        ranks = np.full((2, VISITS), 20e-3) * (1 + 0.002 * rng.standard_normal((2, VISITS)))
        slowed = ranks + np.array([[3e-3], [0.0]])[:: 1 if slow == 0 else -1]
        arms = {(C, effects.ELIDED): ranks.max(axis=0), ("slow", effects.ELIDED): slowed.max(axis=0)}
        launches = [effects.Launch(arms, {C: ranks, "slow": slowed})] * 2
        with_fastest = effects.with_fastest(launches, [C, "slow"])
        moved = {n: effects.combined(with_fastest, effects.changes(C, "slow")[n]) for n in ("compute", "imbalance")}
        assert near(moved["compute"], 0.0, 0.05e-3) and near(moved["imbalance"], 3e-3, 0.1e-3)
        waits = effects.waiting(launches, "slow")
        assert near(waits[slow], 0.0, 0.05e-3) and near(waits[1 - slow], 3e-3, 0.1e-3)


def test_parts_add_up():
    found = variant(launches_of(BASE))
    mean = {name: entry.estimate.mean for name, entry in found.items()}
    real = effects.combined(launches_of(BASE), {(C, effects.REAL): 1}).mean
    assert mean["exposed"] == pytest.approx(mean["exposed_latency"] + mean["exposed_bytes"])
    assert mean["wire"] == pytest.approx(mean["wire_latency"] + mean["wire_bytes"])
    assert mean["hidden"] == pytest.approx(mean["wire"] - mean["exposed"])
    assert real == pytest.approx(mean["compute"] + mean["imbalance"] + mean["exposed"])


def test_what_a_compiler_does_adds_up():
    eager = effect_truth.Truth(compute=32e-3, latency=3e-3, bytes=6e-3, wire_latency=4e-3, wire_bytes=8e-3)
    captured = effect_truth.more(eager, compute=-5e-3)
    launches = launches_of({E: eager, "captured": captured, C: BASE}, noise=0.003)
    sides = claims.of_variant(launches, E, {}), claims.of_variant(launches, C, {})
    found = by_name(claims.of_compiling(launches, sides, {}, "the same collectives"))
    old, new = eager.effects(), BASE.effects()
    assert near(found["compiler"].estimate, eager.compute - BASE.compute, 0.2e-3)
    assert near(found["exposed_change"].estimate, old["exposed"] - new["exposed"], 0.2e-3)
    assert near(found["wire_change"].estimate, old["wire"] - new["wire"], 0.2e-3)
    assert near(found["hidden_change"].estimate, new["hidden"] - old["hidden"], 0.2e-3)
    parts = found["wire_change"].estimate.mean + found["hidden_change"].estimate.mean
    assert found["exposed_change"].estimate.mean == pytest.approx(parts)
    assert "compute to hide behind: 3" in found["hidden_change"].notes[0]
    assert found["hidden_change"].notes[1] == "the same collectives"
    ratio = eager.arms()["real"] / BASE.arms()["real"]
    assert found["step"].estimate.ratio()[0] == pytest.approx(ratio, rel=0.01)
    split = by_name(claims.split_of_compiling(launches, (E, "captured", C), {}))
    assert near(split["capture"].estimate, 5e-3, 0.2e-3)
    whole = split["capture"].estimate.mean + split["optimisation"].estimate.mean
    assert found["compiler"].estimate.mean == pytest.approx(whole)


def test_the_ratio_of_two_steps_over_visits_or_launches():
    launches = launches_of({E: effect_truth.more(BASE, compute=5.3e-3), C: BASE}, noise=0.003)
    assert math.exp(effects.step_ratio(launches, E, C).mean) == pytest.approx(31.8 / 26.5, rel=0.005)
    assert effects.step_ratio(launches, E, C).method == "t over 3 launches"
    one = effects.step_ratio(launches[:1], E, C)
    assert one.method == "t over visits" and one.n == VISITS and one.df > 1
    apart = [effects.Launch(launches[0].arms, worlds={(E, "real"): 1})]
    assert effects.step_ratio(apart, E, C).df == 0
    assert effects.step_ratio(without(launches, (E, "real")), E, C) is None


def test_variants_of_different_processes_are_compared_by_launches():
    apart = {(v, arm): number for number, v in enumerate((E, C)) for arm in BASE.arms()}
    launches = launches_of({E: BASE, C: BASE}, count=1, worlds=apart)
    combination = effects.compiling(E, C)["compiler"]
    assert effects.combined(launches, combination).half_width == math.inf  # one value: nothing is known of its spread
    several = effects.combined(launches_of({E: BASE, C: BASE}, worlds=apart), combination)
    assert several.df == LAUNCHES - 1 and several.method == "t over 3 launches"
    assert effects.effect(launches, "exposed", C).df > 5  # within a variant visits count as ever
    assert effects.combined(effects.with_fastest(launches, [C]), effects.terms("imbalance", C)).df > 5


@pytest.mark.parametrize("gone", [effects.ELIDED, effects.TOKEN, effects.ALONE, effects.ALONE_TOKEN, effects.SERIAL])
def test_a_missing_arm_takes_its_effects_along_with_the_reason(gone):
    found = variant(without(launches_of(BASE), (C, gone)), why={(C, gone): "hang: no answer"})
    for name, entry in found.items():
        parts = {"hidden_share": "hidden", "overlap_efficiency": "hidden"}
        needs = gone in effects.DEFINITIONS[parts.get(name, name)]
        needs = needs or (gone == effects.ELIDED and name in ("compute", "imbalance", "overlap_efficiency"))
        if name == "compute" and gone == effects.ELIDED:
            continue  # the fastest rank's series is read from the ranks
        assert (entry.estimate is None) == needs, name
        assert (entry.reason == f"needs {C}/{gone}: hang: no answer") == needs, (name, entry.reason)


def test_without_serial_hidden_time_says_that_it_was_not_checked():
    found = variant(without(launches_of(BASE), (C, effects.SERIAL)))
    for name in ("hidden", "hidden_share", "overlap_efficiency"):
        assert found[name].notes == ("closure not checked: needs compiled/serial: it was not run",)
    assert found["exposed"].notes == ()


def test_elision_that_changed_the_compute_withholds_exposed_and_hidden():
    truth = effect_truth.more(BASE, distortion=9e-3)  # elided is slower than real by 3.5 ms
    found = variant(launches_of(truth))
    for name in ("exposed", "exposed_latency", "exposed_bytes", "hidden", "hidden_share", "overlap_efficiency"):
        assert found[name].estimate is None and "elision changed the compute" in found[name].reason
    assert found["wire"].estimate is not None
    launches = launches_of({E: BASE, C: truth})
    sides = claims.of_variant(launches, E, {}), claims.of_variant(launches, C, {})
    changed = by_name(claims.of_compiling(launches, sides, {}))
    assert changed["exposed_change"].estimate is None and "compiled: withheld" in changed["exposed_change"].reason
    assert changed["wire_change"].estimate is not None


def test_nothing_exposed_is_not_taken_for_a_changed_compute():
    """An interval that reaches below 0 says nothing against elision."""
    truth = effect_truth.Truth(latency=0.0, bytes=0.0)
    found = variant(launches_of(truth, seed=1))
    assert found["exposed"].estimate.low < 0 < found["exposed"].estimate.high


def test_what_the_arms_do_not_explain_is_printed_and_no_hidden_time_claimed():
    found = variant(launches_of(effect_truth.more(BASE, unexplained=2e-3)))
    assert near(found["closure"].estimate, 2e-3, 0.5e-3)
    assert found["closure"].notes == ("unexplained by the arms",)
    for name in ("hidden", "hidden_share", "overlap_efficiency"):
        assert found[name].estimate is None and "unexplained by the arms" in found[name].reason
    assert found["exposed"].estimate is not None


def test_contention_is_named_and_not_withheld():
    truth = effect_truth.more(BASE, bytes=9e-3)  # exposed exceeds the wire: overlap costs more than it saves
    found = variant(launches_of(truth))
    assert found["contention"].estimate.low > 0
    assert "contention: overlap costs more than it saves" in found["overlap_efficiency"].notes
    assert found["overlap_efficiency"].estimate.high < 0
    assert found["exposed"].notes == ()


def test_a_wire_that_reaches_zero_gives_no_ratio():
    truth = effect_truth.Truth(latency=0.0, bytes=0.0, wire_latency=0.0, wire_bytes=1e-4)
    rng = np.random.default_rng(0)
    launches = launches_of(truth)
    for launch in launches:
        launch.arms[C, effects.ALONE][:] = np.abs(1e-4 * rng.standard_cauchy(VISITS))
    found = variant(launches)
    assert found["hidden_share"].estimate is None
    assert found["hidden_share"].reason == "the interval of wire reaches 0"
    assert found["overlap_efficiency"].estimate is None


def test_overlap_efficiency_is_of_the_lesser_of_compute_and_wire():
    short = effect_truth.Truth(compute=3e-3, waiting=0.5e-3, latency=3e-3, bytes=4e-3)
    found = variant(launches_of(short, noise=0.002))
    assert near(found["overlap_efficiency"].estimate, 3e-3 / 3.5e-3, 0.02)
    assert near(found["hidden_share"].estimate, 0.3, 0.02)


def test_a_ratio_has_the_error_of_the_delta_method():
    """One launch of few visits (no correlation is estimated), against the formula by moments (Cochran 1977)."""
    rng = np.random.default_rng(5)
    top, bottom = rng.normal(3, 0.5, 7), rng.normal(10, 2, 7)
    launch = effects.Launch({(C, "top"): top, (C, "bottom"): bottom})
    found = effects.ratio([launch], {(C, "top"): 1}, {(C, "bottom"): 1})
    r = top.mean() / bottom.mean()
    moments = np.cov(top, bottom)
    error = math.sqrt((moments[0, 0] + r * r * moments[1, 1] - 2 * r * moments[0, 1]) / 7) / bottom.mean()
    t = 2.4469118511  # 97.5% of Student t with 6 degrees of freedom
    assert (found.mean, found.high - found.mean) == (pytest.approx(r), pytest.approx(t * error))


def test_a_ratio_over_launches_is_of_means_and_no_mean_of_ratios():
    launches = [
        effects.Launch({(C, "a"): np.full(4, a), (C, "b"): np.full(4, b)}) for a, b in ((1, 10), (1, 12), (2, 11))
    ]
    assert effects.ratio(launches, {(C, "a"): 1}, {(C, "b"): 1}).mean == pytest.approx(4 / 33)


def test_ranks_without_clocks_have_no_waiting():
    launches = [effects.Launch(launch.arms) for launch in launches_of(BASE)]
    found = variant(launches)
    assert found["imbalance"].reason == found["compute"].reason == "the ranks have no clock of their own here"
    assert effects.waiting(launches, C) == [] and effects.fastest_rank(launches, [C]) is None
    assert found["exposed"].estimate is not None


def test_verdicts_are_a_family_and_know_their_margin():
    quiet = effect_truth.Truth(latency=0.0, bytes=3e-3, wire_latency=0.0, wire_bytes=3e-3)
    found = claims.judged(claims.of_variant(launches_of(quiet, noise=0.004), C, {}), {C: 24e-3}, "effects of jax")
    judged = by_name(found)
    assert judged["exposed_latency"].verdict.kind == "no_difference"
    assert judged["exposed_bytes"].verdict.kind == "difference"
    assert judged["exposed_bytes"].verdict.margin == pytest.approx(0.02 * 24e-3)
    assert judged["exposed_bytes"].verdict.family == "effects of jax (Holm, 4)"
    assert judged["wire"].verdict is None and judged["closure"].verdict is None
    assert judged["exposed"].verdict.unit == "launches"
