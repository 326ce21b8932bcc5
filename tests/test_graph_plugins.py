"""Programs in PJRT plugins, and what is wrong with a plugin or a program told in one line."""

from __future__ import annotations

import json
import re

import pytest

from tests import pjrt_plugins
from tests.graph_programs import STEP, captured
from xlacompare.core import config, errors, plugin, record
from xlacompare.graph import client, clients, plugins, program_file

DONATED = STEP.replace("%arg2: tensor<16xf32>)", "%arg2: tensor<16xf32> {jax.buffer_donor = true})").replace(
    "%arg0: tensor<4x8xf32>", "%arg0: tensor<4x8xf32> {tf.aliasing_output = 0 : i32}"
)


@pytest.fixture(scope="module", params=pjrt_plugins.NAMES)
def child(request):
    found = pjrt_plugins.installed(request.param)
    with client.Client(60, plugins.plugin_environment(), found.name) as made:
        yield made, found


def run(child, folder, runs=0):
    made, found = child
    return made.ask("plugin_run", str(folder), runs, str(found.path), found.name)


def test_plugin_computes_what_numpy_does(child, tmp_path):
    program_file.save(captured(), tmp_path / "p")
    found = run(child, tmp_path / "p", 3)
    assert found["wrong"] == []
    assert found["median_s"] > 0
    assert "PJRT API 0." in found["client"]
    off = captured()
    off.expected[0][2, 3] += 1e-3
    program_file.save(off, tmp_path / "p")
    assert run(child, tmp_path / "p")["wrong"] == ["logits"]


def test_donation_is_left_out(child, tmp_path):
    """Else the second run would find its inputs gone."""
    same = captured().inputs
    program_file.save(captured(stablehlo=DONATED, bytecode=DONATED.encode(), inputs=same), tmp_path / "p")
    assert run(child, tmp_path / "p", 3)["wrong"] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arguments": []}, "0 values for 3 inputs"),
        ({"inputs": captured().inputs[:2], "arguments": captured().arguments[:2]}, "takes 3 inputs, 2 are described"),
        ({"bytecode": STEP.encode()[:300]}, "not StableHLO"),
        ({"bytecode": b"ML\xefR\x0dStableHLO_v99.1.0\x00"}, r"StableHLO 99\.1\.0.*newer jaxlib"),
        ({"bytecode": b"ML\xefR\x0dStableHLO_v1.1.0\x00\x01\x02"}, "damaged or cut short"),
        ({"bytecode": STEP.replace("tanh", "custom_call @nobody(").replace("(@nobody(", "").encode()}, "not StableHLO"),
    ],
)
def test_program_that_cannot_run_is_one_line(child, tmp_path, changes, says):
    program_file.save(captured(**changes), tmp_path / "p")
    with pytest.raises(client.ProblemError, match=says) as raised:
        run(child, tmp_path / "p")
    assert "\n" not in str(raised.value)


def test_program_that_the_plugin_refuses(child, tmp_path):
    text = re.sub(r"stablehlo.tanh %2 :.*", "stablehlo.custom_call @nobody(%2) : (T) -> T", STEP)
    text = text.replace("(T) -> T", "(tensor<4x16xf32>) -> tensor<4x16xf32>")
    program_file.save(captured(stablehlo=text, bytecode=text.encode()), tmp_path / "p")
    with pytest.raises(client.ProblemError, match=r"refused: .*nobody"):
        run(child, tmp_path / "p")


def test_program_that_is_too_new_for_a_plugin(run_python):
    code = """
from tests.graph_programs import STEP, captured
from xlacompare.core import errors
from xlacompare.graph import portable
text = STEP.replace("xf32", "xf8E4M3")
made = captured(stablehlo=text, bytecode=text.encode())
assert portable.bytecode(made, (1, 9, 0)).startswith(b"ML")
try:
    portable.bytecode(made, (1, 0, 0))
except errors.BadInputError as error:
    print(error)
"""
    said = run_python(code, env={"JAX_PLATFORMS": "cpu"}).stdout.strip()
    assert re.fullmatch(r"the program cannot be written as StableHLO 1\.0\.0.*take a newer plugin", said), said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("symbol", r"no symbol GetPjrtApi"),
        ("null", r"GetPjrtApi gave nothing"),
        ("version", r"speaks PJRT API 1\.81, xlacompare 0\.x"),
        ("slow", r"did not answer within 3 s"),
        ("abort", r"died \(exit code -6\)"),
    ],
)
def test_plugin_that_is_none(tmp_path, name, says):
    pjrt_plugins.installed(pjrt_plugins.NAMES[0])
    library = pjrt_plugins.build(tmp_path, name)
    with pytest.raises(errors.BadInputError, match=says) as raised:
        plugins.examine(plugins.resolve(str(library)), 3.0)
    assert "\n" not in str(raised.value)


def test_file_that_is_no_library(tmp_path):
    pjrt_plugins.installed(pjrt_plugins.NAMES[0])
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(errors.BadInputError, match=r"x\.so cannot be loaded: .*(?:invalid ELF header|too short)"):
        plugins.examine(plugins.resolve(str(tmp_path / "x.so")), 30.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/nowhere/x.so", "no such file"),
        ("no-such-package", "neither a file nor an installed package"),
        ("numpy", "no PJRT library"),
    ],
)
def test_name_that_is_no_plugin(text, says):
    with pytest.raises(errors.BadInputError, match=says):
        plugins.resolve(text)


def test_names_of_plugins():
    found = pjrt_plugins.installed("xla-cpu-pjrt")
    assert plugins.resolve("xla_plugins.xla_cpu_pjrt").path == found.path == plugins.resolve(str(found.path)).path
    assert plugins.sha256(found.path) != plugins.sha256(pjrt_plugins.installed("lammps-jax-pjrt-cpu").path)


def of_platform(platform: str, name: str = "some") -> plugin.PjrtPlugin:
    return plugin.PjrtPlugin(name, "/x.so", "0123456789ab", "0.81", platform)


def test_plugin_of_another_platform():
    of_platform("cpu").check_platform("cpu")
    of_platform("cuda").check_platform("gpu")
    with pytest.raises(errors.BadInputError, match=r"is for cuda, the run for cpu: give --platform=gpu"):
        of_platform("cuda").check_platform("cpu")
    with pytest.raises(errors.BadInputError, match=r"is for metal, the run for tpu: give a plugin of that platform"):
        of_platform("metal").check_platform("tpu")
    assert json.loads(of_platform("cuda").environment[plugin.OPTIONS_VARIABLE]) == {}


def test_records_on_two_plugins_are_not_compared():
    def of(chosen: plugin.PjrtPlugin | None) -> dict:
        checked = {"pjrt_plugin": chosen.identity if chosen else None}
        return {"environment": {"checked": checked}, "cell": {"label": "matched", "framework": "f"}, "launch": 0}

    record.check_comparable(of(of_platform("cpu")), of(of_platform("cpu")))
    for other in (of_platform("cpu", "other"), None):
        with pytest.raises(errors.RecordError, match=r"pjrt_plugin is 'some, PJRT API 0\.81, sha256 0123456789ab'"):
            record.check_comparable(of(of_platform("cpu")), of(other))


@pytest.fixture
def programs(tmp_path):
    """A program that is right, and one whose values are not those of its framework."""
    off = captured()
    off.expected[0][0, 0] += 1.0
    for name, made in (("right", captured()), ("wrong", off)):
        program_file.save(made, tmp_path / name)
    return [tmp_path / "right", tmp_path / "wrong"]


def test_table_of_programs_and_clients(programs, tmp_path):
    """The same number of runs everywhere; no time for wrong values; a plugin that dies takes nothing with it."""
    good = pjrt_plugins.installed("lammps-jax-pjrt-cpu")
    bad = plugins.resolve(str(pjrt_plugins.build(tmp_path, "abort")))
    plan = clients.Plan(launches=2, cell_s=0.02, min_block_s=0.002, deadline_s=60.0, cores=clients.default_cores())
    table = clients.measure(programs, clients.readers([good, bad]), plan)
    ours, theirs = table["right", clients.JAXLIB], table["right", good.name]
    assert len(ours.launches) == len(theirs.launches) == 2
    assert ours.n == theirs.n
    assert ours.estimate().df == 1
    assert ours.client.startswith("jaxlib 0.")
    for library in (clients.JAXLIB, good.name):
        assert table["wrong", library].wrong == ["logits"]
        assert table["wrong", library].estimate() is None
    for name in ("right", "wrong"):
        assert "died" in table[name, bad.name].problem
        assert table[name, bad.name].estimate() is None


def test_command_runs_in_plugins(run_python, programs):
    pjrt_plugins.installed("xla-cpu-pjrt")
    command = ["-m", "xlacompare.program", "run", "--pjrt_plugin=xla-cpu-pjrt,lammps-jax-pjrt-cpu"]
    done = run_python([*command, str(programs[0])])
    assert done.returncode == errors.EXIT_OK, done.stderr
    assert done.stdout.count("of what rounding explains") == 2
    assert run_python([*command, str(programs[1])]).returncode == errors.EXIT_FAILED_CELL
    (programs[0] / "program.mlirbc").write_bytes(b"ML\xefR\x0dStableHLO_v99.1.0\x00")
    done = run_python([*command, str(programs[0])])
    assert done.returncode == errors.EXIT_BAD_INPUT
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pjrt_plugin=xla-cpu-pjrt", "--platform=gpu"], "is for cpu, the run for gpu: give --platform=cpu"),
        (["--pjrt_plugin=xla-cpu-pjrt", "--framework=torch"], "torch runs on no PJRT plugin"),
        (["--pjrt_plugin=nothing"], "neither a file nor an installed package"),
        (["--pjrt_plugin=xla-cpu-pjrt", "--collective=all_reduce"], "it means nothing with --collective"),
    ],
)
def test_run_refuses_in_one_line(run_python, flags, says):
    pjrt_plugins.installed("xla-cpu-pjrt")
    done = run_python(["-m", "xlacompare.run", *flags])
    assert done.returncode == errors.EXIT_BAD_INPUT, done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1


def test_configuration_keeps_the_plugin():
    made = config.RunConfig(("jax",), pjrt_plugin="x", plugin=of_platform("cpu"))
    assert made.to_dict()["plugin"]["api_version"] == "0.81"
