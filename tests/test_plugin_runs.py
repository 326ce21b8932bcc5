"""jax and torch_xla on one PJRT plugin: the whole run, the shim beneath torch_xla, the trap of four devices."""

from __future__ import annotations

import ctypes
import json

import pytest

from tests import pjrt_plugins
from xlacompare import frameworks
from xlacompare.core import errors, plugin
from xlacompare.frameworks.on_torch_xla import shim
from xlacompare.report import data

NEWER = "lammps-jax-pjrt-cpu"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shim.library.cache_clear()
    yield tmp_path / "cache" / "xlacompare"
    shim.library.cache_clear()


def test_shim_is_built_once(own_cache, monkeypatch):
    made = shim.library()
    assert made.parent == own_cache and list(own_cache.iterdir()) == [made]
    written = made.stat().st_mtime_ns
    shim.library.cache_clear()
    monkeypatch.setattr(shim, "_compile", lambda target: pytest.fail("built again"))
    assert shim.library().stat().st_mtime_ns == written


def test_shim_of_another_source_is_another_file(own_cache, monkeypatch, tmp_path):
    made = shim.library()
    (tmp_path / "other.c").write_text(shim.SOURCE.read_text() + "\n/* changed */\n")
    monkeypatch.setattr(shim, "SOURCE", tmp_path / "other.c")
    shim.library.cache_clear()
    assert shim.library() != made


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("no-such-compiler", r"no C compiler \(no-such-compiler\): apt-get install gcc"),
        ("false", r"false cannot build shim\.c"),
    ],
)
def test_shim_without_a_compiler(own_cache, monkeypatch, compiler, says):
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(errors.BadInputError, match=says):
        shim.library()
    assert not own_cache.exists() or list(own_cache.iterdir()) == []


def test_shim_where_nothing_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shim.library.cache_clear()
    with pytest.raises(errors.BadInputError, match="name another folder in XDG_CACHE_HOME"):
        shim.library()


def test_shim_lengthens_the_options(own_cache, monkeypatch, tmp_path):
    """A plugin that wants 144 bytes, zero beyond the old ones, gets them; without the shim it refuses the 80."""
    library = pjrt_plugins.build(tmp_path, "options")
    monkeypatch.setenv(plugin.PATH_VARIABLE, str(library))
    options = (ctypes.c_size_t * 10)(80, 0, 0, 0, 0, 0, 7, 0, 0, 99)
    arguments = (ctypes.c_void_p * 10)(80, 0, 0, ctypes.addressof(options))

    def launch(path) -> object:
        get = ctypes.CDLL(str(path)).GetPjrtApi
        get.restype = ctypes.c_void_p
        slot = ctypes.c_void_p.from_address(get() + 40 + 55 * 8).value
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(slot)(ctypes.addressof(arguments))

    assert launch(library) is not None
    assert launch(shim.library()) is None
    assert arguments[3] == ctypes.addressof(options)  # the caller finds its own again


def test_cpu_plugins_start_with_four_devices_unless_told(run_python):
    """The trap behind `plugin.CPU_OPTIONS`: when this changes, the option can go."""
    path = pjrt_plugins.installed(NEWER).path
    code = f"""
import pypjrt
library = pypjrt.Plugin({str(path)!r})
library.initialize()
print([pypjrt.Client.create(library, options=options).device_count for options in ({{}}, {plugin.CPU_OPTIONS})])
"""
    assert run_python(code).stdout.strip() == "[4, 1]"


def test_both_frameworks_on_one_plugin(run_python, tmp_path):
    """On the newer one, where torch_xla once hung; records, headline, gate and replays say what ran."""
    found = pjrt_plugins.installed(NEWER)
    for name in ("jax", "torch_xla"):
        if frameworks.missing(name):
            pytest.skip(f"{name} is not installed")
    command = [
        *("-m", "xlacompare.run", f"--pjrt_plugin={NEWER}", "--framework=jax,torch_xla", "--compiler=compiled"),
        "--replay",
        *("--launches=1", "--cell_s=0.05", "--batch_size=8", "--deadline_s=60", f"--output_dir={tmp_path}"),
    ]
    done = run_python(command, timeout=110)
    assert done.returncode == errors.EXIT_OK, done.stdout + done.stderr
    assert f"one XLA build under all: {found.name}, PJRT API 0." in done.stdout
    assert "gate passed" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    cells = [item for item in records if item["kind"] == "cell"]
    assert {cell["cell"]["framework"]: cell["status"] for cell in cells} == {"jax": "ok", "torch_xla": "ok"}
    (key,) = {cell["environment"]["checked"]["pjrt_plugin"] for cell in cells}
    assert key.startswith(f"{found.name}, PJRT API 0.") and "sha256" in key
    replays = [item for item in records if item["kind"] == "replay"]
    assert len(replays) == 4 and {item["status"] for item in replays} == {"ok"}
    assert {item["replay"]["client"] for item in replays} == {f"{found.name} (PJRT API {key.split()[4].rstrip(',')})"}
    for cell in cells:
        assert cell["environment"]["variables"][plugin.PATH_VARIABLE] == str(found.path)


def test_headline_names_the_plugin():
    shared = {"name": "some 1.0", "api_version": "0.81"}
    summary = type("Summary", (), {"config": {"platform": "cpu", "plugin": shared}})()
    assert data.platform(summary) == "cpu (some 1.0)"
    summary.config["plugin"] = None
    assert data.platform(summary) == "cpu"
