"""What the parent makes of a worker's end."""

from __future__ import annotations

import pytest

from xlacompare.launch import process


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo\n\n", "two"),
        ("Traceback\n  File x\nRuntimeError: no such thing\n", "RuntimeError: no such thing"),
        ("torch._dynamo.exc.Unsupported: what\n\nSet TORCH_LOGS for more\n", "torch._dynamo.exc.Unsupported: what"),
        (
            "a.b.InductorError: CppCompileError: C++ compile error\nadvice: none\n",
            "a.b.InductorError: CppCompileError: C++ compile error",
        ),
        ("", ""),
    ],
)
def test_the_line_that_says_what_was_raised(tmp_path, text, line):
    (tmp_path / "log").write_text(text)
    assert process.last_line(tmp_path / "log") == line


def test_a_log_that_is_not_there(tmp_path):
    assert process.last_line(tmp_path / "none") == ""
