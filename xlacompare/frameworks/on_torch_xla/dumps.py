"""XLA's own dump of what it compiled: the only way to the optimised HLO of a lazy graph (torch_xla 2.9.0)."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import MutableMapping

from xlacompare.core import xla_dump

OPTION = "--xla_dump_to"
_PREFIX = "xlacompare-hlo-"
_OPTIMISED = "*after_optimizations.txt"


class Dumps:
    """A folder into which XLA writes every program; each is kept by the hash of its graph, the rest is deleted.

    Must be made before the runtime starts, since XLA reads its flags once. Where the user has XLA dump for himself, his
    folder is left alone and nothing is found here.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ, parent: str | None = None) -> None:
        """`parent`: where the folder is made, and who made that deletes it; by default a temporary one of our own."""
        self._folder: pathlib.Path | None = None
        self._kept: dict[bytes, pathlib.Path] = {}
        self.user_flags = environment.get("XLA_FLAGS", "").strip()
        if OPTION in self.user_flags:
            return
        if parent is None:
            _sweep()
        else:
            os.makedirs(parent, exist_ok=True)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        environment["XLA_FLAGS"] = f"{self.user_flags} {OPTION}={self._folder} --xla_dump_hlo_as_text".strip()

    def clear(self) -> None:
        """Deletes what was dumped and is not kept."""
        if self._folder is None:
            return
        for path in self._folder.iterdir():
            if path not in self._kept.values():
                path.unlink()

    def keep(self, graph: bytes) -> None:
        """Keeps the one program that was compiled since `clear`; none is new where the graph was built before."""
        if self._folder is None:
            return
        new = [path for path in self._folder.glob(_OPTIMISED) if path not in self._kept.values()]
        if len(new) == 1:
            self._kept[graph] = new[0]
        self.clear()

    def evidence(self) -> xla_dump.Evidence:
        """Of all that was compiled since `clear`."""
        return xla_dump.Evidence() if self._folder is None else xla_dump.read(self._folder)

    def text(self, graph: bytes) -> str | None:
        """Optimised HLO of a graph; None where it is unknown."""
        path = self._kept.get(graph)
        return path.read_text() if path is not None and path.exists() else None

    def close(self) -> None:
        """Deletes the folder; safe to call twice."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._kept.clear()
        self._folder = None


def _sweep() -> None:
    """Deletes folders of processes that were killed before they could."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not pathlib.Path("/proc", owner).exists() and pathlib.Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)
