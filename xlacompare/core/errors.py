"""Errors that end in one clear line, and the exit codes of every command.

A message says what is wrong, the usual cause, and what to change.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED_CELL = 1  # a cell crashed, hung or ran out of memory; the others were measured
EXIT_BAD_INPUT = 2  # flags, folders, frameworks that are not installed
EXIT_MISMATCH = 3  # a gate failed: the cell has no time
EXIT_REGRESSION = 4  # reserved for comparisons over time
EXIT_SELFTEST = 5  # selftest: a planted cause was not found, or something else moved
EXIT_INTERRUPTED = 130  # Ctrl-C; records so far are kept


class XlacompareError(Exception):
    """Base of the errors that a command prints as one line.

    Attributes:
      exit_code: What the command's process returns.
    """

    exit_code = EXIT_BAD_INPUT


class BadInputError(XlacompareError):
    """A flag, a folder or a combination that cannot work."""


class MissingFrameworkError(XlacompareError):
    """A framework was asked for whose packages are not installed."""


class RecordError(XlacompareError):
    """A record that cannot be read, written or compared with another."""


class UnsupportedError(XlacompareError):
    """A framework cannot do what the cell asks. Never answered by a fallback."""


class MismatchError(XlacompareError):
    """Two sides do not do the same work."""

    exit_code = EXIT_MISMATCH
