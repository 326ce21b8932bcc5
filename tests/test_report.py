"""What a user sees of a run, from synthetic records through the real analysis."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests import report_samples as made
from xlacompare.core import results
from xlacompare.report import advice, data, page, render, text

RULE = "-" * page.WIDTH
RUNS = made.RUNS


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


_SHOWN: dict[str, str] = {}


def shown(expert: bool = False, **options) -> str:
    key = f"{expert} {options}"
    if key not in _SHOWN:
        _SHOWN[key] = render.render(made.summary(**options), "text", expert=expert)
    return _SHOWN[key]


def first_screen(shown_text: str) -> list[str]:
    return shown_text.split(RULE)[0].rstrip().splitlines()


def section(shown_text: str, heading: str) -> str:
    """The lines below a heading, up to an empty line."""
    lines = shown_text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return "\n".join(lines[start:end])


def steps(**options) -> dict[str, str]:
    return {step.flags: step.why for step in advice.next_steps(data.ordered(made.summary(**options)), False)}


@pytest.mark.parametrize("expert", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_a_hundred_plain_columns_are_enough(name, expert) -> None:
    text_shown = shown(expert, **RUNS[name])
    assert text_shown.isascii()
    assert "\x1b" not in text_shown
    assert not [line for line in text_shown.splitlines() if len(line) > 100 or line != line.rstrip()]
    assert text_shown.endswith("\n")
    assert not text_shown.endswith("\n\n")
    assert "nan" not in text_shown.lower().replace("nano", "")


def with_short_names(summary: results.Summary) -> results.Summary:
    gaps = [
        dataclasses.replace(gap, bars=[dataclasses.replace(bar, name=bar.name[: text.NAME_WIDTH]) for bar in gap.bars])
        for gap in summary.gaps
    ]
    return dataclasses.replace(summary, gaps=gaps)


def test_the_first_screen_is_one_screen() -> None:
    lines = first_screen(render.to_text(with_short_names(made.summary()), expert=False))
    assert len(lines) <= 53
    headings = [line for line in lines if line and not line.startswith(" ")][2:]
    assert [heading.split()[0].rstrip(",:") for heading in headings] == ["Step", "Why", "What", "Not", "Next"]


def test_colours_only_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "150")
    coloured = render.render(made.summary(), "text", expert=False)
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    monkeypatch.delenv("FORCE_COLOR")
    assert [line.rstrip() for line in plain.splitlines()] == shown().splitlines()


def test_headlines_of_framework_pairs() -> None:
    found = section(shown(), "Step time")
    assert re.search(r"mlp: torch_xla 1\.\d\dx \[1\.\d\d, 1\.\d\d\] slower than jax on cpu; gate passed\n", found)
    assert found.count("gate passed") == 9
    assert "not transferable" in found.splitlines()[0]
    assert "framework pairs x workloads (Holm, 9)" in found
    assert "no difference larger than 5%" in found
    assert "inconclusive" in found


def test_small_presets_are_not_called_untransferable() -> None:
    assert "not transferable" not in shown(preset="small")
    assert "--preset=small" not in steps(preset="small")
    assert "--preset=small" in steps()


def test_one_framework_is_compared_with_its_own_eager_arm() -> None:
    found = section(shown(**RUNS["one"]), "Step time")
    assert re.search(
        r"mlp: jax compiled 4\.\d\dx \[4\.\d\d, \d\.\d\d\] faster than jax eager on cpu; gate passed", found
    )
    assert len(re.findall("faster than jax eager", found)) == 3
    assert re.search(r"mlp: jax eager - jax compiled = \+7\.\d\d \[.*\] ms", shown(**RUNS["one"]))


def test_a_pair_without_time_is_one_line() -> None:
    found = section(shown(**RUNS["failed"]), "Step time").splitlines()
    lines = [line for line in found if "no time" in line]
    assert lines[0] == "  transformer: torch and jax on cpu: no time: torch compiled mismatch; gate failed, see below"
    assert len(lines) == 2
    below = section(shown(**RUNS["failed"]), "Not measured")
    assert "torch compiled (transformer): mismatch: gate failed at activation block0.mlp" in below
    assert "jax captured (mlp, transformer): unsupported: jax has no compiler arm 'captured'" in below
    assert "launch0-torch_xla-2.log" in below


def test_wide_intervals_are_called_wide() -> None:
    noisy, quiet = shown(**RUNS["noisy"]), shown(noise=0.001)
    assert re.search(r"x \[[\d.]+, [\d.]+\] wide", section(noisy, "Step time"))
    assert re.search(r"\] wide", section(noisy, "mlp:"))
    assert " wide" not in section(quiet, "Step time") + section(quiet, "mlp:")


@pytest.mark.parametrize(
    ("ending", "top"),
    [("interrupted", "INTERRUPTED"), ("error", "INCOMPLETE: the run ended"), (None, "INCOMPLETE: the run left no end")],
)
def test_an_incomplete_run_says_so_on_top(ending, top) -> None:
    lines = shown(ending=ending).splitlines()
    assert lines[0].startswith(top)
    assert lines[1].startswith("xlacompare: jax, torch_xla, torch on cpu")
    assert "the same again" in section("\n".join(lines), "Next")
    assert shown().startswith("xlacompare:")


def test_planned_launches_that_are_missing() -> None:
    summary = made.summary(launches=2, ending="interrupted")
    summary.plan = {**(summary.plan or {}), "looks": [6]}
    assert "2 of 6 launches" in render.render(summary, "text", expert=False)


GAP = re.compile(r"^  (\w+): (\w+) - (\w+) = ([-+][\d.]+) \[.*\] ms(?: wide)?, by (thread|arm) the sum of")
BAR = re.compile(r"^ {4}(\S.*?)? +([-+][\d.]+) \[[-+\d.]+, [-+\d.]+\] +([-+]*)")


def test_bars_add_up_as_printed() -> None:
    sums: dict[tuple, list[float]] = {}
    totals: dict[tuple, float] = {}
    key: tuple = ()
    for line in shown().splitlines():
        if match := GAP.match(line):
            key = (*match.groups()[:3], match[5])
            totals[key] = float(match[4])
        elif (match := BAR.match(line)) and "settings" not in line:
            sums.setdefault(key, []).append(float(match[2]))
            assert set(match[3]) <= {match[2][0]}  # plus signs for slower, minus signs for faster
    # Nine pairs by arm; by thread those whose dispatching threads do not do the work themselves.
    assert sorted(key[3] for key in totals) == ["arm"] * 9 + ["thread"] * 3
    assert all(len(terms) == {"arm": 3, "thread": 2}[key[3]] for key, terms in sums.items())
    for key, total in totals.items():
        assert sum(sums[key]) == pytest.approx(total, abs=0.021)


def test_settings_are_the_first_bar_and_not_in_the_sum() -> None:
    found = section(shown(**RUNS["settings"]), "Why").splitlines()
    assert "the sum of" in found[1]
    assert found[2].startswith("    settings (not the same work, not summed)")
    assert found[3].strip().startswith("torch_xla: threads")
    assert found[4].strip().startswith("jax: threads")
    gap = made.summary(**RUNS["settings"]).gaps[0]
    bar = data.settings_bar(made.summary(**RUNS["settings"]), gap)
    assert bar is not None
    effects = {
        c.framework: c.effect.difference.mean
        for c in made.summary(**RUNS["settings"]).settings
        if c.comparison == gap.a.comparison and c.label == "shipped" and c.effect.a.compiler == "compiled"
        and c.effect.difference is not None
    }  # fmt: skip
    assert bar.mean == pytest.approx(effects[gap.a.framework] - effects[gap.b.framework])


def test_shipped_settings_alone_are_no_matched_headline() -> None:
    found = section(shown(**RUNS["shipped"]), "Step time")
    assert "settings shipped: not the same work" in found.splitlines()[0]
    assert "slower than" in found


def test_costs_of_every_compiled_cell() -> None:
    found = section(shown(), "What it takes").splitlines()
    assert len(found) == 11
    jax = found[2].split()
    assert jax[:2] == ["mlp", "jax"]
    assert jax[3:5] == ["device", "12%"]
    assert jax[5:8] == ["1.32", "0.345", "0.800"]
    assert jax[9:11] == ["64.0", "MiB"]
    assert found[3].split()[6] == "-"  # torch_xla has nothing from disk
    assert "sync" in found[4]
    assert "PersistentCacheDeserializeFailure" in shown(True)


def test_the_table_of_a_workload() -> None:
    found = section(shown(), "mlp:").splitlines()
    assert found[0].startswith("mlp: tiny, float32, batch 128, sgd; 301,066 parameters; 0.240 GFLOP a step")
    assert found[0].endswith("3 launches, 72 blocks")
    assert found[1].split() == [
        "cell",
        "step",
        "ms",
        "median",
        "bound",
        "by",
        "hidden",
        "first",
        "s",
        "memory",
        "GFLOP/s",
    ]
    assert len(found) == 8
    assert re.fullmatch(
        r"  torch_xla compiled +2\.\d\d \[2\.\d\d, \d\.\d\d\] +2\.\d\d +host 71% +0\.14\d +1\.32 +64\.0 MiB +8\d\.\d",
        found[5],
    )


def test_expert_arms_and_percentiles_stay_off_the_first_screen() -> None:
    plain, expert = (shown(e, **RUNS["expert"]) for e in (False, True))
    assert "nofusion, opt0: measured, not shown without it" in plain
    assert not [line for line in plain.splitlines() if "opt0" in line and "--" not in line]
    assert "jax opt0" in expert
    assert "p90" in expert
    assert "p90" not in plain
    assert "p99" not in expert
    assert "What the words mean" in expert
    assert "What the words mean" not in plain


def test_expert_arms_are_shown_where_nothing_else_was_measured() -> None:
    assert "jax opt0" in shown(frameworks=("jax",), compilers=("nofusion", "opt0"), workloads=("mlp",))


def test_p99_where_there_is_one() -> None:
    summary = made.summary(**RUNS["single"])
    summary.cells = [dataclasses.replace(result, p99_s=0.00777) for result in summary.cells]
    assert "7.77" in render.render(summary, "text", expert=True)
    assert "7.77" not in render.render(summary, "text", expert=False)


def test_blocks_that_are_no_samples_are_counted() -> None:
    summary = made.summary(**RUNS["single"])
    assert "block" not in section(render.render(summary, "text", expert=False), "Not measured")
    summary.cells = [dataclasses.replace(r, num_compiled=2, num_disturbed=5, fence_ok=False) for r in summary.cells]
    found = render.render(summary, "text", expert=False)
    assert "4 blocks during which something was compiled, left out: torch eager, torch compiled" in found
    assert "10 blocks disturbed by other processes" in found
    assert "the fence self-test failed" in found
    assert "clock of torch compiled not trusted" in section(found, "Step time")


def test_synthetic_inputs_are_labelled() -> None:
    summary = made.summary(preset="base")
    for result in summary.cells:
        result.facts["synthetic"] = True
    assert "synthetic inputs" in section(render.render(summary, "text", expert=False), "Step time")


def test_where_the_time_went() -> None:
    found = " ".join(section(shown(), "How it was measured").split())
    assert "122 s in all: inputs and reference 3 s, gate in float64 21 s, launches 96 s, rest 1 s" in found
    assert "start-up 8%, build, gate, warm-up 30%, measuring 50%" in found
    assert "after warm-up 80% of the time is inside timed blocks" in found
    assert "a look after 3 launches" in found


def test_problems_of_reading_are_shown() -> None:
    summary = made.summary(**RUNS["single"])
    summary.problems.append("records.jsonl:7: half a line or not JSON; skipped")
    assert "records.jsonl:7" in section(render.render(summary, "text", expert=False), "Not measured")


def test_nothing_was_measured() -> None:
    found = shown(**RUNS["nothing"])
    assert "no pair to compare: no cell has a time" in found
    assert "hang: no answer to 'build'" in found
    assert "--deadline_s=600" in found
    empty = results.Summary({}, {}, None, None, "", {}, [], "compiled", [], [], [], [], {}, [])
    for name in render.FORMATS:
        assert render.render(empty, name, expert=True)
