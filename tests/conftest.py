"""Fixtures, and the rule that one pytest process holds one framework.

`make test` runs tests/run_all.py: one pytest process per group, `--only=core` for what imports no framework and
`--only=NAME` for each framework, two at a time. Reasons for the split: variables must be set before a framework is
imported; a torch backward on the CPU before the first use of the XLA device breaks torch_xla (2.9.0, FACTS); counters
and thread pools are global. A plain `pytest` runs all in one process, torch_xla first, enough for a quick look.

A test belongs to framework NAME when it takes the fixture `framework_name` or `framework`, when it is marked
`@pytest.mark.framework("NAME")`, or when its file is called test_NAME*.py or test_on_NAME*.py. All others are `core`,
run framework code in child processes only, and must not import a framework.

A framework that is not installed skips its tests; one listed in XLACOMPARE_REQUIRED_FRAMEWORKS (CI lists all) fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from xlacompare import frameworks
from xlacompare.frameworks import interface
from xlacompare.graph import client

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = tuple(frameworks.FRAMEWORKS)
REQUIRED = tuple(filter(None, os.environ.get("XLACOMPARE_REQUIRED_FRAMEWORKS", "").split(",")))
LOCK_VARIABLE = "XLACOMPARE_TEST_LOCK"  # set by run_all.py: its pytest processes share the cores


def family_of_file(stem: str) -> str | None:
    """Framework that a test file belongs to by its name; the longest name wins (torch_xla before torch)."""
    for name in sorted(NAMES, key=len, reverse=True):
        for prefix in (f"test_{name}", f"test_on_{name}"):
            if stem == prefix or stem.startswith(prefix + "_"):
                return name
    return None


def family_of(item: pytest.Item) -> str | None:
    """Framework that a test belongs to; None for `core`."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "framework_name" in callspec.params:
        return callspec.params["framework_name"]
    mark = item.get_closest_marker("framework")
    return mark.args[0] if mark else family_of_file(item.path.stem)


@pytest.fixture(scope="module")
def reader() -> Iterator[client.Client]:
    """The child that parses programs, beside frameworks that keep the cores busy."""
    with client.Client(240.0) as made:
        yield made


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", choices=("core", *NAMES), help="only tests of this group (one process per framework)")


def pytest_configure(config: pytest.Config) -> None:
    only = config.getoption("--only")
    if only in NAMES:  # before any test module imports the framework
        for key, value in frameworks.arms(only).environment("cpu", 1).items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def pytest_report_header(config: pytest.Config) -> list[str]:
    lacking = [name for name in NAMES if frameworks.missing(name)]
    group = config.getoption("--only") or "all in one process"
    required, absent = ",".join(REQUIRED) or "none", ",".join(lacking) or "none"
    return [f"xlacompare: group {group}; required: {required}; not installed: {absent}"]


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    name = family_of_file(collection_path.stem)
    if name is None:
        return None
    if config.getoption("--only") not in (None, name):
        return True
    # Its imports would fail; where the framework is required that failure is wanted.
    return True if frameworks.missing(name) and name not in REQUIRED else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("--only")
    if only is None:
        items.sort(key=lambda item: {"torch_xla": 0, None: 1}.get(family_of(item), 2))
        return
    others = [item for item in items if (family_of(item) or "core") != only]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    name = family_of(item)
    if name is None or not frameworks.missing(name):
        return
    reason = f"framework {name} lacks {', '.join(frameworks.missing(name))}"
    if name in REQUIRED:
        pytest.fail(f"{reason}, and XLACOMPARE_REQUIRED_FRAMEWORKS lists it", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _cores(exclusive=item.get_closest_marker("quiet") is not None):
        return (yield)


@contextlib.contextmanager
def _cores(exclusive: bool) -> Iterator[None]:
    """Shares the cores with the pytest processes beside this one, or has them alone (tests marked `quiet`).

    A waiting quiet test holds the turnstile, so that the others cannot pass it by for ever.
    """
    path = os.environ.get(LOCK_VARIABLE)
    if not path:
        yield
        return
    with open(path, "a") as lock, open(f"{path}.turnstile", "a") as turnstile:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


@pytest.fixture(params=NAMES)
def framework_name(request: pytest.FixtureRequest) -> str:
    """Every registered framework in turn."""
    return request.param


@pytest.fixture
def framework(framework_name: str) -> interface.Framework:
    """The adapter, started in this process, once."""
    return _adapter(framework_name)


@functools.cache
def _adapter(name: str) -> interface.Framework:
    return frameworks.load_framework(name)


RunPython = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def run_python() -> RunPython:
    """Runs Python in a child: `run_python(code_or_args, env={...}, timeout=60)`.

    A string is a program text, a list is arguments (`["-m", "xlacompare.run"]`). A None value in `env` removes a
    variable. At the deadline the child and all that it started are killed, and the test fails with its output.
    """
    return run_child


def run_child(
    code: str | list[str],
    env: Mapping[str, str | None] | None = None,
    timeout: float = 60,
    cwd: str | os.PathLike[str] = ROOT,
) -> subprocess.CompletedProcess:
    """See `run_python`."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    process = subprocess.Popen(
        [sys.executable, *(["-c", code] if isinstance(code, str) else code)],
        env={key: value for key, value in merged.items() if value is not None},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_group(process)
        out, err = process.communicate()
        pytest.fail(f"no end within {timeout} s\nstdout:\n{out}\nstderr:\n{err}", pytrace=False)
    finally:
        _end_group(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
