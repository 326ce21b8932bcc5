"""What all commands share: flags that end in one line and exit code 2, errors with a name, Ctrl-C."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from absl import app, flags

from xlacompare import entry
from xlacompare.core import errors

# What the system says -> what it usually means for a run.
USUAL_CAUSES = {
    errno.ENOSPC: "the disk (or what standard output goes to) is full: free some, or choose another --output_dir",
    errno.EEXIST: "a file stands where a folder is needed: move it away, or choose another --output_dir",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away, or choose another --output_dir",
    errno.EACCES: "choose an --output_dir that may be written",
    errno.EROFS: "choose an --output_dir that may be written",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.EAGAIN: "too many processes: raise `ulimit -u`, or end some",
    errno.ENOMEM: "out of memory: end what runs beside, or take a smaller --batch_size or --preset",
}


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


def words_of(argv: list[str]) -> tuple[list[str], list[str]]:
    """Words, and what absl shall parse: the commands' flags are always written --name=value."""
    words = [argument for argument in argv[1:] if not argument.startswith("-")]
    return words, [argv[0], *(argument for argument in argv[1:] if argument.startswith("-"))]


def launch(body: Callable[[], int]) -> None:
    """Runs a command's body under absl and exits with its code."""
    entry.answer_interrupts()
    app.run(lambda _: _guarded(body), flags_parser=_helped)


def _helped(argv: list[str]) -> list[str]:
    """`--help` is an answer, not a failure: what the command is for, its flags, exit code 0 (absl's is 1)."""
    if any(argument in ("--help", "-h", "--helpfull", "--helpshort") for argument in argv[1:]):
        sys.stdout.write(help_text(sys.modules["__main__"].__doc__ or ""))
        sys.stdout.flush()
        sys.exit(errors.EXIT_OK)
    return parse(argv)


def help_text(about: str) -> str:
    """What a command is for, and its flags; those of absl are left out."""
    modules = [name for name in flags.FLAGS.flags_by_module_dict() if not name.startswith("absl.")]
    parts = [flags.FLAGS.module_help(name).strip().partition("\n")[2] for name in modules]
    return "\n\n".join([about.strip(), "Flags, written --name=value:", *filter(None, parts)]) + "\n"


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
        _drop_output()
        return errors.EXIT_OK
    except OSError as error:
        _drop_output()
        sys.stderr.write(f"xlacompare: {os_problem(error)}\n")
        return errors.EXIT_BAD_INPUT


def _drop_output() -> None:
    """What could not be written must not be tried again at the exit, which would end with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def os_problem(error: OSError) -> str:
    """One line: what the system refused, and the usual cause."""
    where = f"{error.filename}: " if error.filename else ""
    usual = USUAL_CAUSES.get(error.errno or 0, "usually a limit or a right of this machine")
    return f"{where}{error.strerror or error}; {usual}"
