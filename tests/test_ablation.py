"""--ablate_flags: the declared options, what is refused, the ranking of a planted effect, and real runs of it."""

from __future__ import annotations

import csv
import io
import json
import shlex

import numpy as np
import pytest
from absl import flags

from tests import conftest
from tests import report_samples as made
from xlacompare import run_steps
from xlacompare.core import analysis, config, errors, flag_effects, record, results, xla_options
from xlacompare.launch import grid, pool
from xlacompare.report import advice, flag_table, render

FUSION, FAST, BOGUS = "xla_disable_hlo_passes=fusion", "xla_cpu_enable_fast_math=true", "xla_no_such_option=1"
OWN = "xla_cpu_of_the_user=7"
NEWER = "xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"  # in the table, unknown to torch_xla 2.9.0
SLOWER = {FUSION: 1.5, FAST: 0.9, OWN: 1.0}
QUICK = ["--workload=mlp", "--batch_size=16", "--min_block_s=0.002", "--num_cores=1", "--compiler=compiled"]


@pytest.mark.parametrize("platform", config.PLATFORMS)
def test_the_tables_are_what_the_flag_would_accept(platform):
    table = xla_options.TABLES[platform]
    texts = xla_options.chosen((xla_options.TABLE,), platform)
    assert xla_options.chosen(texts, platform) == texts == tuple(option.text for option in table)
    assert all(option.note and "\n" not in option.note and len(option.note) < 75 for option in table)
    assert xla_options.find(table[0].text) is not None and xla_options.find(BOGUS) is None


REFUSED = [
    (["--framework=torch", "--ablate_flags=table"], "torch has no XLA; give --framework=jax or torch_xla"),
    (["--framework=jax", "--ablate_flags=nonsense"], "'nonsense' is no XLA option; give table, or name=value"),
    (["--framework=jax", f"--ablate_flags=--{FUSION}"], "is no XLA option"),
    (["--framework=jax", "--ablate_flags=table,xla_x=1"], "'table' is no XLA option"),
    (["--framework=jax", f"--ablate_flags={FUSION},{FUSION}"], "one is named twice"),
    (["--framework=jax", "--ablate_flags=xla_gpu_autotune_level=0"], "an option of gpu and this run is on cpu"),
    (["--framework=jax", "--ablate_flags=table", "--compiler=eager"], "give --compiler=compiled"),
    (["--framework=jax", "--ablate_flags=table", "--settings=both"], "--ablate_flags needs --settings=matched"),
    (["--framework=jax", "--ablate_flags=table", "--collective=all_reduce"], "--ablate_flags is of training steps"),
]


def asked(flags: list[str]) -> config.RunConfig:
    values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    lists = {"framework": "frameworks", "compiler": "compilers", "ablate_flags": "ablate_flags"}
    return config.RunConfig(**{lists.get(k, k): tuple(v.split(",")) if k in lists else v for k, v in values.items()})


@pytest.mark.parametrize(("flags", "words"), REFUSED[:-1], ids=lambda value: str(value)[-40:])
def test_what_is_refused(flags, words):
    with pytest.raises(errors.BadInputError) as refused:
        grid.expand(asked(flags))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("flags", "words"), [REFUSED[0], REFUSED[1], REFUSED[-1]], ids=["torch", "form", "job"])
def test_refusals_are_one_line_and_code_2(flags, words, tmp_path):
    child = conftest.run_child(["-m", "xlacompare.run", f"--output_dir={tmp_path / 'run'}", *flags])
    assert child.returncode == errors.EXIT_BAD_INPUT and words in child.stderr
    assert len(child.stderr.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


def test_an_option_that_no_xla_knows_is_a_mistake():
    """One that some XLA of the run knows, or that stands in the table, is a row of the table instead."""
    here = f"{xla_options.UNKNOWN} (--{BOGUS})"
    said = xla_options.mistaken(BOGUS, [xla_options.UNKNOWN, here])
    assert "unknown option xla_no_such_option: no XLA of this run" in said and "\n" not in said
    for text, reasons in ((BOGUS, [here, ""]), (NEWER, [here]), (BOGUS, [f"{xla_options.REFUSED} (x)"]), (BOGUS, [])):
        assert xla_options.mistaken(text, reasons) == ""


@pytest.mark.framework("jax")
def test_a_mistaken_option_ends_the_run_before_anything_is_timed(tmp_path):
    words = ["-m", "xlacompare.run", "--framework=jax", f"--output_dir={tmp_path}", *QUICK]
    child = conftest.run_child([*words, f"--ablate_flags={FUSION},{BOGUS}"], timeout=120)
    assert child.returncode == errors.EXIT_BAD_INPUT, child.stderr
    (line,) = [line for line in child.stderr.splitlines() if line.startswith("xlacompare: ")]
    assert "unknown option xla_no_such_option" in line
    kinds = [item["kind"] for item in record.read(tmp_path).records]
    assert "cell" not in kinds and kinds[-1] == "end"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ()),
        (["--ablate_flags"], ("table",)),
        (["--ablate_flags=table"], ("table",)),
        (["--noablate_flags"], ()),
        ([f"--ablate_flags={FUSION},{FAST}", "--launches=2"], (FUSION, FAST)),
    ],
)
def test_the_flag_alone_means_the_table(words, wanted):
    values = flags.FlagValues()
    flags.DEFINE_flag(run_steps.options_flag(), flag_values=values)
    flags.DEFINE_integer("launches", 1, "x", flag_values=values)
    assert values(["x", *words]) == ["x"] and tuple(values.ablate_flags) == wanted


def test_which_cells_share_a_process(tmp_path):
    """jax hands an option to one compilation; torch_xla needs a process with the flag, beside the user's own flags."""
    run = config.RunConfig(("jax", "torch_xla", "torch"), ("eager", "compiled"), ablate_flags=(FUSION, FAST))
    cells = grid.expand(run).cells
    ablated = [cell for cell in cells if cell.option]
    assert {(cell.framework, cell.compiler) for cell in ablated} == {("jax", "compiled"), ("torch_xla", "compiled")}
    assert len(ablated) == 4 and all(type(cell).from_dict(cell.to_dict()) == cell for cell in ablated)
    workers = pool.Pool(run, tmp_path, None, "x")
    keys = {name: {workers.key(c) for c in cells if c.framework == name} for name in run.frameworks}
    assert {name: len(found) for name, found in keys.items()} == {"jax": 1, "torch_xla": 3, "torch": 1}


def test_flags_are_added_to_those_of_the_user(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_mine=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_mine=1")
    run = config.RunConfig(("torch_xla",), platform="tpu")
    cell = made.make_cell("torch_xla")
    environment = grid.worker_environment(cell.with_option(FAST), run, None)
    assert environment["XLA_FLAGS"] == f"--xla_mine=1 --{FAST}"
    environment = grid.worker_environment(cell.with_option("xla_tpu_x=true"), run, None)
    assert environment["LIBTPU_INIT_ARGS"] == "--xla_tpu_mine=1 --xla_tpu_x=true"
    assert "XLA_FLAGS" not in grid.worker_environment(made.make_cell("jax").with_option(FAST), run, None)


def records(
    shared: bool = True,
    same_hlo: tuple[str, ...] = (FAST, OWN),
    framework: str = "jax",
    evidence: dict[str | None, dict] | None = None,
) -> list[made.Record]:
    """A run of a framework with a default and three options whose effects are known, and one that XLA does not know.

    `evidence`: what XLA dumped, by option; None: of the default.
    """
    rng, base = np.random.default_rng(5), made.make_cell(framework)
    found = made.run_records(("jax",), ("compiled",), ("mlp",), ending=None)[:1]
    found.append(made.cell_record(base.with_option(NEWER), 0, status="unsupported", reason=xla_options.UNKNOWN))
    for launch in range(3):
        noise = float(np.exp(rng.normal(0, 0.03)))
        for option in (None, *SLOWER):
            cell = base if option is None else base.with_option(option)
            steps = [0.002 * noise * SLOWER.get(option, 1.0) * float(np.exp(rng.normal(0, 0.01))) for _ in range(24)]
            of = made.cell_record(cell, launch, made.columns(steps), compile=made.compile_of(base, launch))
            program_of = "same" if option is None or option in same_hlo else f"other {option}"
            of["evidence"] = {"options": None, "program": program_of, "code": None} | (evidence or {}).get(option, {})
            if not shared and option is not None:
                of["start"]["pid"] += 7
            found.append(of)
    return [*found, {"kind": "end", "ending": "complete", "times": made.TIMES}]


def effects(**options) -> list[results.FlagEffect]:
    return analysis.summarise(records(**options)).flags


def test_a_planted_effect_is_found_and_ranked():
    found = effects()
    assert [effect.option for effect in found] == [FUSION, FAST, OWN, NEWER]
    for effect in found[:3]:
        _, low, high = effect.effect.verdict.estimate.ratio()
        assert low < SLOWER[effect.option] < high and high / low < 1.05
        assert effect.effect.how == "blocks"
        assert effect.effect.verdict.family == "XLA options x workloads x frameworks (Benjamini-Hochberg, 3)"
    assert [effect.effect.verdict.kind for effect in found[:3]] == ["difference", "difference", "no_difference"]
    assert found[3].effect.verdict is None and found[3].status == "unsupported"


def test_in_processes_of_their_own_the_launch_is_the_unit():
    assert {effect.effect.how for effect in effects(shared=False)} == {"launches"}


def test_options_are_in_no_other_comparison():
    both = analysis.summarise(records() + records(framework="torch_xla")[1:])
    assert len(both.flags) == 2 * len(records()[1:2]) + 2 * len(SLOWER)
    assert [(pair.a.option, pair.b.option) for pair in both.pairs] == [(None, None)]
    assert not both.arms and not both.settings


def test_the_program_that_did_not_change():
    said = {effect.option: flag_table.program(effect) for effect in effects()}
    assert said[FUSION] == flag_table.CHANGED and said[FAST] == said[OWN] == flag_table.SAME_HLO and said[NEWER] == ""
    said = {effect.option: flag_table.program(effect) for effect in effects(same_hlo=(FUSION,))}
    assert said[FUSION] == flag_table.SAME and said[FAST] == flag_table.CHANGED


FORCED = {None: ["xla_x: 1"], FUSION: ["xla_x: 1", 'xla_disable_hlo_passes: "fusion"'], FAST: ["xla_x: 1"]}


def test_what_was_not_in_force_is_not_ablated():
    """FAST is faster here and changed nothing: an effect of the machine, which no verdict may be given."""
    dumped = {option: {"options": lines, "code": "c"} for option, lines in FORCED.items()}
    found = {effect.option: effect for effect in effects(evidence=dumped)}
    assert [found[option].in_force for option in (FUSION, FAST, OWN)] == [True, False, None]
    assert found[FAST].effect.verdict is None and found[FAST].effect.problem == flag_effects.NOT_ABLATED
    assert found[FUSION].effect.verdict.family.endswith("(Benjamini-Hochberg, 2)")
    assert flag_table.shown(found[OWN]) == flag_table.NOT_SHOWN and not flag_table.shown(found[FUSION])
    text = render.to_text(analysis.summarise(records(evidence=dumped)), expert=False)
    assert f"{FAST}  not ablated" in text and flag_table.NOT_SHOWN in text
    dumped[FAST]["code"] = "other"  # whatever the list of options says
    again = {effect.option: effect for effect in effects(evidence=dumped)}[FAST]
    assert again.in_force is True and again.effect.verdict is not None
    assert flag_table.program(again) == flag_table.OTHER_CODE


def test_the_table():
    text = render.to_text(analysis.summarise(records()), expert=False)
    lines = text.splitlines()
    places = [next(i for i, line in enumerate(lines) if option in line) for option in (FUSION, FAST, OWN, NEWER)]
    assert places == sorted(places) and max(map(len, lines)) <= 100
    assert "+50" in lines[places[0]] and "slower" in lines[places[0]]
    assert "faster" in lines[places[1]] and "no difference larger than 2%" in lines[places[2]]
    said = " ".join(" ".join(lines[places[3] :]).split())
    assert f"unsupported: {xla_options.UNKNOWN} (since: after PJRT API 0.81, by 0.115 and jaxlib 0.10.2)" in said
    assert "screening; family: XLA options" in text and "no pair to compare" not in text
    command = next(i for i, line in enumerate(lines) if "python -m xlacompare.run" in line)
    assert "--settings=both" not in "\n".join(lines[command:])


def test_json_and_csv():
    summary = analysis.summarise(records())
    flags = json.loads(render.render(summary, "json", False))["flags"]
    assert [flag["option"] for flag in flags] == [FUSION, FAST, OWN, NEWER]
    assert flags[0]["same_program"] is False and "not the same work" not in flags[0]["effect"]["sentence"]
    assert flags[1]["since"] == "torch_xla 2.9.0 or before" and flags[2]["since"] == ""
    rows = [row for row in csv.DictReader(io.StringIO(render.render(summary, "csv", False))) if row["kind"] == "flag"]
    assert [row["name"] for row in rows] == [FUSION, FAST, OWN, NEWER]
    assert 1.45 < float(rows[0]["value"]) < 1.55 and rows[0]["program"] == flag_table.CHANGED
    assert rows[3]["status"] == "unsupported" and rows[3]["reason"] == xla_options.UNKNOWN


def test_the_printed_command_asks_for_the_same_options(tmp_path):
    commas = ("xla_disable_hlo_passes=fusion,cse", FAST)
    values = config.RunConfig(("torch",), ablate_flags=commas).to_dict()
    words = shlex.split(advice.command(values, {}))
    assert words[-1] == f'--ablate_flags="{commas[0]}",{FAST}'
    code = (
        "import sys; from absl import flags; from xlacompare import run_steps; run_steps.define_flags();"
        f"flags.FLAGS(sys.argv); assert run_steps.read_config().ablate_flags == {commas!r}"
    )
    child = conftest.run_child(["-c", code, words[-1]])
    assert child.returncode == 0, child.stderr


def run(framework: str, folder, *flags: str) -> tuple:
    """The child's report, and its records of cells by (option, launch)."""
    words = ["-m", "xlacompare.run", f"--framework={framework}", f"--output_dir={folder}", *QUICK, *flags]
    child = conftest.run_child([*words, "--format=json"], timeout=240)
    assert child.returncode == errors.EXIT_OK, child.stderr
    found = [item for item in record.read(folder).records if item["kind"] == "cell"]
    by_option = {(item["cell"]["changed"].get(xla_options.CHANGED), item["launch"]): item for item in found}
    return {flag["option"]: flag for flag in json.loads(child.stdout)["flags"]}, by_option


@pytest.mark.framework("jax")
def test_jax_in_one_process(tmp_path):
    nothing = "xla_disable_hlo_passes=no_such_pass"
    default = "xla_cpu_enable_fast_min_max=false"  # what jax sets anyway
    options = f"--ablate_flags={FUSION},{nothing},{FAST},{default},xla_cpu_prefer_vector_width=wide"
    report, found = run("jax", tmp_path, options, "--launches=1", "--cell_s=0.3")
    assert len({item["start"]["pid"] for item in found.values()}) == 1
    fusion = report[FUSION]
    assert fusion["effect"]["how"] == "blocks" and fusion["effect"]["ratio"][1] > 1
    assert fusion["effect"]["verdict"]["kind"] == "difference" and fusion["same_program"] is False
    assert report[nothing]["same_program"] is report[nothing]["same_code"] is True and report[nothing]["status"] == "ok"
    assert (report[FAST]["same_program"], report[FAST]["same_code"], report[FAST]["in_force"]) == (True, False, True)
    assert report[default]["in_force"] is False and report[default]["effect"]["verdict"] is None
    assert "is not a valid int32" in report["xla_cpu_prefer_vector_width=wide"]["reason"]
    assert found[FUSION, 0]["gate"]["arm"]["passed"]


@pytest.mark.framework("torch_xla")
def test_torch_xla_in_processes_of_its_own(tmp_path):
    default = "xla_cpu_enable_fast_min_max=true"  # XLA's own default, which torch_xla leaves alone
    options = f"--ablate_flags={FUSION},{NEWER},{default}"
    report, found = run("torch_xla", tmp_path, options, "--launches=1", "--cell_s=0.1")
    assert len({item["start"]["pid"] for item in found.values() if item["status"] == "ok"}) == 3
    assert report[FUSION]["in_force"] is True and report[FUSION]["same_program"] is False
    assert (
        report[default]["in_force"] is False and report[default]["same_program"] is report[default]["same_code"] is True
    )
    assert not (tmp_path / "dumps").exists()
    assert report[FUSION]["effect"]["how"] == "launches" and report[FUSION]["effect"]["ratio"][0] > 1
    assert f"--{FUSION}" in found[FUSION, 0]["environment"]["framework"]["xla_flags"].split()
    assert FUSION not in found[None, 0]["environment"]["framework"]["xla_flags"]
    assert report[NEWER]["status"] == "unsupported" and xla_options.UNKNOWN in report[NEWER]["reason"]
