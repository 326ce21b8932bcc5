"""What all commands share: flags that end in one line and exit code 2, errors with a name, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from absl import app, flags

from xlacompare.core import errors


def parse(argv: list[str]) -> list[str]:
    """Parses flags; a bad one is one line and exit code 2 (absl prints its usage and exits with 1)."""
    try:
        rest: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        sys.stderr.write(f"xlacompare: {str(error).strip()}; --help lists the flags\n")
        sys.exit(errors.EXIT_BAD_INPUT)
    if len(rest) > 1:
        sys.stderr.write(f"xlacompare: unexpected arguments: {' '.join(rest[1:])}; flags are written --name=value\n")
        sys.exit(errors.EXIT_BAD_INPUT)
    return rest


def launch(body: Callable[[], int]) -> None:
    """Runs a command's body under absl and exits with its code."""
    # A scheduler's TERM ends a run as Ctrl-C does; and Ctrl-C works where a background shell had it ignored.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler)
    app.run(lambda _: _guarded(body), flags_parser=_helped)


def _helped(argv: list[str]) -> list[str]:
    """`--help` must reach absl's own parser, which prints the flags and exits with 0."""
    if any(argument in ("--help", "-h", "--helpfull", "--helpshort") for argument in argv[1:]):
        app.parse_flags_with_usage(argv)
    return parse(argv)


def _guarded(body: Callable[[], int]) -> int:
    try:
        code = body()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        sys.stderr.write("xlacompare: interrupted; records so far are kept, no worker is left\n")
        return errors.EXIT_INTERRUPTED
    except errors.XlacompareError as error:
        sys.stderr.write(f"xlacompare: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.EXIT_OK
