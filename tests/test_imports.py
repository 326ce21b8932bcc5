"""The seam, enforced: layers, one framework family per file, hygiene. DESIGN section 4; docs/architecture.md."""

from __future__ import annotations

import ast
import inspect
import json
import sys

import pytest

from tests import source as src
from tests.layers import COMMANDS, FAMILIES, FAMILY_NAMES, FRAMEWORK_FREE, GRAPH_CHILD, LAYERS, SHARED
from xlacompare import frameworks

PACKAGE = src.sources()


def layer_of(module: str) -> str:
    """Layer of a dotted name inside the package: "command" for commands, "" for the package itself."""
    parts = module.split(".")
    if len(parts) > 1 and (parts[1] in COMMANDS or parts[-1] == "__main__"):
        return "command"
    return parts[1] if len(parts) > 1 else ""


def layer_problems(source: src.Source) -> list[str]:
    """Imports that the table of layers forbids."""
    layer = layer_of(source.module)
    if not layer:  # the package's docstring is all there is
        return [f"{source.path}:{line} imports {name}: __init__ imports nothing" for line, name in _ours(source)]
    if layer == "command":
        return []
    if layer not in LAYERS:
        return [f"{source.path} is in no layer: add it to LAYERS in tests/layers.py and to docs/architecture.md"]
    return [
        f"{source.path}:{line} imports {name}: layer {layer} may import {sorted(LAYERS[layer])}"
        for line, name in _ours(source)
        if not _allowed(layer, name)
    ]


def _ours(source: src.Source) -> list[tuple[int, str]]:
    """Imports of package modules; `from xlacompare import x` is judged by x."""
    names = [(line, name) for line, name in src.imports(source) if name.split(".")[0] == src.PACKAGE]
    return [(line, name) for line, name in names if name != src.PACKAGE]


def _allowed(layer: str, name: str) -> bool:
    parts = name.split(".")[1:]
    if parts[0] in LAYERS[layer] or parts[0] == "__version__":
        return True
    if parts[0] != "frameworks" or layer != "launch":
        return False
    if len(parts) == 1:
        return True  # the registry
    registry = [name for name, value in vars(frameworks).items() if not inspect.ismodule(value)]
    return f"frameworks.{parts[1]}" in LAYERS[layer] or parts[1] in registry


def family_problems(source: src.Source) -> list[str]:
    """Files that import two framework families."""
    roots = {name.split(".")[0] for _, name in src.imports(source)}
    used = [sorted(family & roots) for family in FAMILIES if family & roots]
    return [f"{source.path} imports two families: {used}"] if len(used) > 1 else []


def adapter_problems(source: src.Source) -> list[str]:
    """Adapters that use another adapter."""
    parts = source.module.split(".")
    if len(parts) < 3 or parts[1] != "frameworks" or not parts[2].startswith("on_"):
        return []
    allowed = {parts[2]} | SHARED.get(parts[2], set())
    return [
        f"{source.path}:{line} imports {name}: an adapter uses no other adapter"
        for line, name in _ours(source)
        if name.split(".")[1] == "frameworks" and name.count(".") > 1
        if name.split(".")[2].startswith("on_") and name.split(".")[2] not in allowed
    ]


def name_problems(source: src.Source) -> list[str]:
    """Comparisons with a framework's name: `if framework == "jax"`, `name in ("torch", ...)`, `match` on one."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            values = [node.value]
        else:
            continue
        literals = {c.value for value in values for c in ast.walk(value) if isinstance(c, ast.Constant)}
        if literals & set(frameworks.FRAMEWORKS):
            found.append(
                f"{source.path}:{node.lineno} asks for a framework by name: put it into the framework's folder"
            )
    return found


def flag_problems(source: src.Source) -> list[str]:
    """Use of absl flags outside the commands."""
    if layer_of(source.module) == "command":
        return []
    names = [(line, name) for line, name in src.imports(source) if name.startswith(("absl.flags", "absl.app"))]
    return [f"{source.path}:{line} imports {name}: only commands read flags" for line, name in names]


def print_problems(source: src.Source) -> list[str]:
    """`print` outside the commands."""
    if layer_of(source.module) == "command":
        return []
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    return [f"{source.path}:{c.lineno} prints" for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]


def except_problems(source: src.Source) -> list[str]:
    """`except:`, `except Exception`, `suppress(Exception)`, also inside a tuple."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            caught = list(node.args)
        else:
            continue
        names = {getattr(n, "id", "") for c in caught if c for n in ast.walk(c)}
        if None in caught or names & {"Exception", "BaseException"}:
            found.append(f"{source.path}:{node.lineno} has a broad except")
    return found


def free_problems(source: src.Source) -> list[str]:
    """Framework imports where none belong: framework-free layers, commands, and what the parent reads of an adapter."""
    parts = source.module.split(".")
    parent_reads = parts[1:2] == ["frameworks"] and (len(parts) < 4 or parts[3] == "arms")
    layer = layer_of(source.module)
    if not (layer in FRAMEWORK_FREE or layer == "command" or parent_reads):
        return []
    allowed = GRAPH_CHILD.get(parts[-1], set()) if parts[1:2] == ["graph"] else set()
    names = [(line, name) for line, name in src.imports(source) if name.split(".")[0] in FAMILY_NAMES - allowed]
    return [f"{source.path}:{line} imports {name}: no framework here" for line, name in names]


RULES = (
    layer_problems, family_problems, adapter_problems, name_problems,
    flag_problems, print_problems, except_problems, free_problems,
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule):
    problems = [problem for source in PACKAGE for problem in rule(source)]
    assert not problems, "\n".join(problems)


BROKEN = [
    (layer_problems, "xlacompare.core.a", "from xlacompare.workloads import spec"),
    (layer_problems, "xlacompare.core.a", "def f():\n    import xlacompare.frameworks.gate"),
    (layer_problems, "xlacompare.core.a", "from ..report import screen"),
    (layer_problems, "xlacompare.core.a", "from xlacompare import run"),
    (layer_problems, "xlacompare.workloads.a", "from xlacompare import frameworks"),
    (layer_problems, "xlacompare.report.a", "from xlacompare.launch import process"),
    (layer_problems, "xlacompare.launch.a", "from xlacompare.frameworks.on_jax import arms"),
    (layer_problems, "xlacompare.launch.a", "from xlacompare.report import screen"),
    (layer_problems, "xlacompare.stray", "x = 1"),
    (layer_problems, "xlacompare.core.a", "import importlib\nimportlib.import_module('xlacompare.report')"),
    (family_problems, "xlacompare.frameworks.on_jax.a", "import jax\ndef f():\n    import torch_xla.runtime"),
    (family_problems, "tests.a", "from flax import nnx\nfrom torch import nn"),
    (adapter_problems, "xlacompare.frameworks.on_torch.a", "from xlacompare.frameworks.on_torch_xla import counters"),
    (adapter_problems, "xlacompare.frameworks.on_jax.a", "from xlacompare.frameworks import on_torch"),
    (name_problems, "xlacompare.report.a", "if framework == 'jax': pass"),
    (name_problems, "xlacompare.report.a", "x = name in ('torch', 'torch_xla')"),
    (name_problems, "xlacompare.report.a", "match name:\n    case 'jax': pass"),
    (flag_problems, "xlacompare.core.a", "from absl import flags"),
    (print_problems, "xlacompare.core.a", "def f():\n    print(1)"),
    (except_problems, "xlacompare.core.a", "try: pass\nexcept: pass"),
    (except_problems, "xlacompare.core.a", "try: pass\nexcept (OSError, Exception): pass"),
    (except_problems, "xlacompare.core.a", "import contextlib\nwith contextlib.suppress(Exception): pass"),
    (free_problems, "xlacompare.core.a", "def f():\n    import torch"),
    (free_problems, "xlacompare.run", "import jax"),
    (free_problems, "xlacompare.frameworks.on_jax.arms", "import jax"),
    (free_problems, "xlacompare.frameworks.gate", "import jax"),
    (free_problems, "xlacompare.graph.client", "from jaxlib import _hlo"),
    (free_problems, "xlacompare.graph.parsing", "import jax"),
]


@pytest.mark.parametrize(("rule", "module", "text"), BROKEN)
def test_rule_can_fail(rule, module, text):
    assert rule(src.parse(text, module))


FINE = [
    (layer_problems, "xlacompare.launch.a", "from xlacompare.frameworks import gate\nimport xlacompare.frameworks"),
    (layer_problems, "xlacompare.run", "from xlacompare.report import screen\nfrom xlacompare.launch import process"),
    (adapter_problems, "xlacompare.frameworks.on_torch_xla.a", "from xlacompare.frameworks.on_torch import models"),
    (family_problems, "xlacompare.frameworks.on_torch_xla.a", "import torch\nimport torch_xla"),
    (name_problems, "xlacompare.report.a", "x = {'jax': 1}"),
    (free_problems, "xlacompare.frameworks.on_jax.models", "import jax"),
    (free_problems, "xlacompare.graph.parsing", "from jaxlib import _hlo"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "module", "text"), FINE)
def test_rule_lets_pass(rule, module, text):
    assert not rule(src.parse(text, module))


def test_one_family_per_file_elsewhere():
    problems = [problem for source in src.sources("tests", "experiments") for problem in family_problems(source)]
    assert not problems, "\n".join(problems)


def test_names_shadow_nothing():
    """A file or folder called like a package shadows it when a file beside it is run as a script."""
    taken = FAMILY_NAMES | set(sys.stdlib_module_names) | {"numpy", "scipy", "rich", "psutil", "absl", "statsmodels"}
    names = {source.path.stem: source.path for source in PACKAGE} | {s.path.parent.name: s.path for s in PACKAGE}
    assert not {name: str(path) for name, path in names.items() if name in taken}


def test_adapters_have_the_same_files():
    folders = {entry.package.rpartition(".")[2] for entry in frameworks.FRAMEWORKS.values()}
    needed = {"__init__", "arms", "framework", "models", "optimizers", "compiler", "counters"}
    for folder in folders:
        have = {source.path.stem for source in PACKAGE if source.module.split(".")[2:3] == [folder]}
        assert needed <= have, f"{folder} lacks {sorted(needed - have)}; it may hold a line that points elsewhere"


def parent_modules() -> list[str]:
    """Modules that a parent process may import: all but the adapters' insides."""
    found = []
    for source in PACKAGE:
        parts = source.module.split(".")
        inside = parts[1:2] == ["frameworks"] and len(parts) > 3 and parts[3] != "arms"
        inside = inside or (parts[1:2] == ["graph"] and parts[-1] in GRAPH_CHILD)
        if not inside and parts[-1] != "__main__":
            found.append(source.module)
    return found


def test_parent_imports_no_framework(run_python):
    """Modules one after the other, so that the guilty one is named; commands each define flags, so each has a child."""
    names = parent_modules()
    commands = [name for name in names if layer_of(name) == "command"]
    for group in ([name for name in names if name not in commands], *([name] for name in commands)):
        assert imported_families(run_python, group) == {}


def imported_families(run_python, names: list[str]) -> dict[str, list[str]]:
    """Module -> framework packages that its import brought in."""
    code = f"""
import importlib, json, sys
guilty = {{}}
for name in {names!r}:
    before = set(sys.modules)
    importlib.import_module(name)
    new = {{m.split(".")[0] for m in set(sys.modules) - before}} & {FAMILY_NAMES!r}
    if new:
        guilty[name] = sorted(new)
print(json.dumps(guilty))
"""
    child = run_python(code, timeout=120)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_a_framework_that_comes_in_is_seen(run_python, tmp_path):
    (tmp_path / "optax.py").write_text("")
    (tmp_path / "guilty.py").write_text("import optax")
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    found = imported_families(lambda text, **options: run_python(path + text, **options), ["json", "guilty"])
    assert found == {"guilty": ["optax"]}


def test_core_needs_no_optional_package(run_python):
    """Importing the core pulls in neither the terminal library nor the data sets."""
    names = [source.module for source in PACKAGE if layer_of(source.module) == "core"]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print({'rich', 'sklearn'} & set(sys.modules))"
    )
    child = run_python(code)
    assert child.stdout.strip() == "set()", child.stdout + child.stderr
