"""PJRT plugins for tests: those that are installed, and tiny ones in C that are wrong in one way each."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess

import pytest

from xlacompare.graph import plugins

NAMES = ("xla-cpu-pjrt", "lammps-jax-pjrt-cpu")
HEAD = """#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
struct version { size_t size; void *extension; int major, minor; };
struct api { size_t size; void *extension; struct version version; void *functions[140]; };
static struct api api = { sizeof api, NULL, { sizeof(struct version), NULL, MAJOR, 81 }, { NULL } };
"""
# Accepts a launch when its options are at least as long as the plugin knows them, the old fields are there, the rest 0.
EXECUTE = """
static void *execute(char **args) {
  size_t *options = (size_t *)args[3];
  if (options[0] < 144) return args;
  for (int i = 10; i < 18; i++) if (options[i]) return args;
  return (int)options[6] == 7 && options[9] == 99 ? NULL : args;
}
const void *GetPjrtApi(void) { api.functions[55] = (void *)execute; return &api; }
"""
WRONG = {
    "symbol": "int nothing;",
    "null": "void *GetPjrtApi(void) { return 0; }",
    "version": HEAD.replace("MAJOR", "1") + "const void *GetPjrtApi(void) { return &api; }",
    "slow": "#include <unistd.h>\nvoid *GetPjrtApi(void) { sleep(600); return 0; }",
    "abort": "#include <stdlib.h>\nvoid *GetPjrtApi(void) { abort(); }",
    "options": HEAD.replace("MAJOR", "0") + EXECUTE,
}


def why_not() -> str | None:
    """Why plugins cannot be tested here."""
    lacking = [] if importlib.util.find_spec("pypjrt") else ["pypjrt"]
    here = [found.name.split()[0] for found in plugins.installed()]
    lacking += [name for name in NAMES if name not in here]
    return f"the extra pjrt is not installed: {', '.join(lacking)}" if lacking else None


def installed(name: str) -> plugins.Found:
    """A plugin of `NAMES`, or a skip."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return plugins.resolve(name)


def build(folder: pathlib.Path, name: str) -> pathlib.Path:
    """One of WRONG as a shared library, or a skip where there is no compiler (torch.compile needs one as well)."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    source = folder / f"{name}.c"
    source.write_text(WRONG[name])
    target = folder / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True, timeout=60)
    return target
