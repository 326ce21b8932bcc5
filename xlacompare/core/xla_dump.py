"""What XLA wrote with --xla_dump_to about a compilation: options in force, program after the compiler, generated code.

It shows what an option changed, whatever its name promises: a value may be the default already, or be overruled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xlacompare.core import program

# Options that say where to dump, or that name a folder of the process: no two compilations share them.
_OWN = re.compile(r"xla_dump_|xla_detailed_logging|xla_gpu_per_fusion_autotune_cache_dir")
_PROGRAM, _OPTIONS = "*after_optimizations.txt", "*.debug_options"
# Kernels as LLVM leaves them, and PTX: their text. Object files hold names of modules that a process numbers.
_CODE = ("*.ir-with-opt.ll", "*.ptx")
_HEADER = re.compile(r"^(?:; ModuleID|source_filename|//).*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of the compilation of a step; None for what is not.

    Attributes:
      options: Lines "name: value" of the options that differ from XLA's own defaults (the front end sets some).
      program: Fingerprint of the optimised HLO, without names and sources.
      code: Fingerprint of the generated code. Kernels of libraries (Eigen, XNNPACK, cuBLAS) are not in it.
    """

    options: tuple[str, ...] | None = None
    program: str | None = None
    code: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {**dataclasses.asdict(self), "options": None if self.options is None else list(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Evidence:
        """Inverse of `to_dict`; nothing is known from None."""
        if values is None:
            return cls()
        options = values.get("options")
        return cls(None if options is None else tuple(options), values.get("program"), values.get("code"))


def read(folder: pathlib.Path) -> Evidence:
    """Everything that was dumped into a folder, of one program or of several."""
    dumped = list(folder.glob(_OPTIONS))
    lines = {line for path in dumped for line in path.read_text(encoding="utf-8").splitlines() if line}
    return Evidence(
        tuple(sorted(line for line in lines if not _OWN.match(line))) if dumped else None,
        _together(folder.glob(_PROGRAM), program.optimised_fingerprint),
        _together((path for pattern in _CODE for path in folder.glob(pattern)), lambda text: _HEADER.sub("", text)),
    )


def _together(paths: Iterable[pathlib.Path], plain: Callable[[str], str]) -> str | None:
    """One fingerprint of several files, whatever their names and order; None for no file."""
    parts = sorted(hashlib.sha256(plain(path.read_text(encoding="utf-8")).encode()).hexdigest() for path in paths)
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16] if parts else None


def in_force(name: str, value: str, changed: Evidence, default: Evidence) -> bool | None:
    """Whether XLA compiled with another value of an option than by default; None where nothing tells.

    The options in the dump tell, or another program or code does. A list that was made empty (`value` is "") is in no
    dump, whether it was empty before or not.
    """
    if same(changed.program, default.program) is False or same(changed.code, default.code) is False:
        return True
    if changed.options is None or default.options is None:
        return None
    differing = set(changed.options) ^ set(default.options)
    return any(line.partition(":")[0] == name for line in differing) or (None if value == "" else False)


def same(one: str | None, other: str | None) -> bool | None:
    """Whether two fingerprints agree; None where one is not known."""
    return None if one is None or other is None else one == other
