"""The C library between torch_xla and a PJRT plugin (`shim.c` says what it does), built at its first use.

Imports no framework: the parent builds it, so that a missing compiler is told before anything starts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile

from xlacompare.core import errors

SOURCE = pathlib.Path(__file__).with_name("shim.c")
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-ldl", "-lpthread")
DEADLINE_S = 60.0


def cache_folder() -> pathlib.Path:
    """Folder of built libraries: that of the XDG rules, below XDG_CACHE_HOME or ~/.cache."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "xlacompare"


def compiler() -> list[str]:
    """Command of the system's C compiler: CC, else the usual names.

    Raises:
      BadInputError: There is none.
    """
    found = shlex.split(os.environ.get("CC", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    if not found or not shutil.which(found[0]):
        raise errors.BadInputError(
            "--pjrt_plugin: torch_xla needs a small C library between itself and the plugin, and there is no C "
            f"compiler ({found[0] if found else ', '.join(COMPILERS)}): apt-get install gcc, or name one in CC"
        )
    return found


@functools.cache
def library() -> pathlib.Path:
    """The built library; its name has the hash of the source and the options, so that a changed one is built anew.

    Raises:
      BadInputError: No compiler, it fails, or the cache's folder cannot be written.
    """
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + repr((OPTIONS, LIBRARIES, platform.machine())).encode()).hexdigest()[:16]
    folder = cache_folder()
    made = folder / f"pjrt-shim-{key}.so"
    if made.exists():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = pathlib.Path(work) / made.name
            _compile(built)
            os.replace(built, made)  # two runs may build at the same time: each puts a whole file there
    except OSError as error:
        raise errors.BadInputError(
            f"the library for --pjrt_plugin cannot be put into {folder}: {error.strerror}; name another folder in "
            "XDG_CACHE_HOME"
        ) from None
    return made


def _compile(target: pathlib.Path) -> None:
    command = [*compiler(), *OPTIONS, "-o", str(target), str(SOURCE), *LIBRARIES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise errors.BadInputError(f"{command[0]} did not build {SOURCE.name} within {DEADLINE_S:g} s") from None
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no word"]
        )
        raise errors.BadInputError(
            f"{command[0]} cannot build {SOURCE.name}, the library for --pjrt_plugin: {lines[0].strip()[:200]}; name "
            "another C compiler in CC"
        )
