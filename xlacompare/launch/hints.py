"""What a worker's last words usually mean, and what to do about it."""

from __future__ import annotations

import pathlib
import re

from xlacompare.core import xla_options

# What is found in the line that was raised -> the usual remedy. The first that fits is taken.
USUAL = (
    ("InvalidCxxCompiler", "no C++ compiler is found: apt-get install g++"),
    ("No working C++ compiler", "no C++ compiler is found: apt-get install g++"),
    ("No space left on device", "the disk is full: free some, or choose another --output_dir"),
    ("Too many open files", "raise `ulimit -n`"),
    ("can't start new thread", "too many threads or processes: raise `ulimit -u`, or end some"),
)


def hint(said: str) -> str:
    """The remedy in brackets, after a space; empty where none is known."""
    found = next((remedy for mark, remedy in USUAL if mark in said), "")
    return f" ({found})" if found else ""


# XLA ends the process over a flag that it does not know (parse_flags_from_env.cc) or whose value it cannot read
# (command_line_flags.cc); the words are those of jaxlib 0.10.2 and torch_xla 2.9.0.
_FLAG_UNKNOWN = re.compile(r"Unknown flags? in (?:XLA_FLAGS|LIBTPU_INIT_ARGS): (.*)")
_FLAG_VALUE = re.compile(r"Couldn't interpret value (.*) for flag (\w+)")


def refused_flag(log: pathlib.Path) -> str:
    """Which of XLA's flags ended the process that wrote this log; empty for none.

    The whole log is read: XLA lists every flag that it knows after the line that matters.
    """
    try:
        text = log.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
    if found := _FLAG_UNKNOWN.search(text):
        return f"{xla_options.UNKNOWN} ({found.group(1).strip()})"
    if found := _FLAG_VALUE.search(text):
        return f"{xla_options.REFUSED} ({found.group(2)}={found.group(1)})"
    return ""
