"""The package's source as syntax trees, for the tests of its rules."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "xlacompare"


@dataclasses.dataclass(frozen=True)
class Source:
    """One Python file.

    Attributes:
      path: Relative to the checkout.
      module: Dotted name; a package's is that of its folder.
      tree: Syntax tree.
    """

    path: pathlib.Path
    module: str
    tree: ast.Module

    @property
    def text(self) -> str:
        """The file's text."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @property
    def is_package(self) -> bool:
        """True for an __init__.py."""
        return self.path.name == "__init__.py"


def parse(text: str, module: str = "xlacompare.core.sample") -> Source:
    """A source from a text, for tests of the tests."""
    return Source(pathlib.Path(*module.split(".")).with_suffix(".py"), module, ast.parse(text))


@functools.cache
def sources(*folders: str) -> tuple[Source, ...]:
    """All Python files under these folders of the checkout (default: the package)."""
    found = []
    for folder in folders or (PACKAGE,):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            parts = relative.with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Source(relative, module, ast.parse(path.read_text(encoding="utf-8"), str(relative))))
    return tuple(found)


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also inside functions and under TYPE_CHECKING.

    `from a import b` gives both `a` and `a.b`: whether b is a module is not visible in the tree. Calls of
    `import_module("literal")` and `__import__("literal")` count too, and f-strings by their constant beginning.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = absolute(source, node)
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and _callee(node) in ("import_module", "__import__"):
            name = _constant(node.args[0])
            if name:
                yield node.lineno, name


def absolute(source: Source, node: ast.ImportFrom) -> str:
    """Absolute name of the module of a `from ... import`."""
    if not node.level:
        return node.module or ""
    package = source.module if source.is_package else source.module.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _callee(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _constant(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
