"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import statistics

from tests import source as src

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MEDIAN_FUNCTION_LINES = 10
# path or path:function -> why it may be longer. Keep it empty.
ALLOWED: dict[str, str] = {}


def lines_of(node) -> int:
    """Lines of a function without its docstring: a documented one must not be punished."""
    first = node.body[0]
    documented = isinstance(first, src.ast.Expr) and isinstance(getattr(first.value, "value", None), str)
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - docstring


def test_files_are_small():
    sizes = {str(s.path): len(s.text.splitlines()) for s in src.sources("xlacompare", "tests", "experiments")}
    assert not {path: n for path, n in sizes.items() if n > MAX_FILE_LINES and path not in ALLOWED}


def test_functions_are_small():
    sizes = {
        f"{source.path}:{node.name}": lines_of(node)
        for source in src.sources("xlacompare", "tests", "experiments")
        for node in src.functions(source)
    }
    assert not {name: n for name, n in sizes.items() if n > MAX_FUNCTION_LINES and name not in ALLOWED}


def test_most_functions_are_tiny():
    sizes = [lines_of(node) for source in src.sources() for node in src.functions(source)]
    assert statistics.median(sizes) <= MEDIAN_FUNCTION_LINES


def test_allowances_are_used():
    known = {str(s.path) for s in src.sources("xlacompare", "tests", "experiments")}
    assert {name.partition(":")[0] for name in ALLOWED} <= known


def test_a_long_function_is_seen():
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    long = next(src.functions(src.parse(f"def f():\n{body}\n")))
    documented = next(src.functions(src.parse('def f():\n    """a\n\n    b\n    """\n    return 1\n')))
    assert lines_of(long) == MAX_FUNCTION_LINES + 1
    assert lines_of(documented) == 2
