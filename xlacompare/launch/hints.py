"""What a worker's last words usually mean, and what to do about it."""

from __future__ import annotations

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
