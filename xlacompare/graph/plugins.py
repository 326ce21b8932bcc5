"""PJRT plugins as files: which one a name means, and which are installed. Loads none of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re

from xlacompare.core import errors, plugin
from xlacompare.graph import client

# Distributions that are looked for; any other is found by its name or by the path of its library.
KNOWN = ("xla-cpu-pjrt", "lammps-jax-pjrt-cpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu")
LIBRARY = re.compile(r"(?:pjrt|xla|tpu)[\w.-]*\.so$", re.IGNORECASE)
EXTRA = "pip install -e '.[pjrt]'"


@dataclasses.dataclass(frozen=True)
class Found:
    """A plugin that is here.

    Attributes:
      name: Distribution and version, or the file's name.
      path: The shared library.
    """

    name: str
    path: pathlib.Path


def resolve(text: str) -> Found:
    """The plugin that a flag means: a path, or an installed package (distribution, or importable module).

    Raises:
      BadInputError: No such file or package, or the package has no library, or several.
    """
    path = pathlib.Path(text).expanduser()
    if os.sep in text or text.endswith(".so") or path.is_file():
        if not path.is_file():
            raise errors.BadInputError(
                f"--pjrt_plugin={text}: no such file; give the path of a plugin's shared library, or a package's name"
            )
        return Found(path.name, path.absolute())
    libraries, name = _of_package(text)
    if len(libraries) != 1:
        which = f"several libraries ({', '.join(map(str, libraries))})" if libraries else "no PJRT library"
        raise errors.BadInputError(f"--pjrt_plugin={text}: the package has {which}; give the library's path")
    return Found(name, libraries[0])


def _of_package(text: str) -> tuple[list[pathlib.Path], str]:
    try:
        distribution = importlib.metadata.distribution(text)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return _of_module(text), text
    files = [file for file in distribution.files or () if LIBRARY.search(file.name)]
    return [pathlib.Path(str(file.locate())).absolute() for file in files], f"{text} {distribution.version}"


def _of_module(text: str) -> list[pathlib.Path]:
    try:
        spec = importlib.util.find_spec(text)
    except (ModuleNotFoundError, ValueError):
        spec = None
    if spec is None:
        raise errors.BadInputError(
            f"--pjrt_plugin={text}: neither a file nor an installed package; CPU plugins: {EXTRA}"
        )
    folders = [pathlib.Path(folder) for folder in spec.submodule_search_locations or ()]
    return [path for folder in folders for path in sorted(folder.iterdir()) if LIBRARY.search(path.name)]


def installed() -> list[Found]:
    """The known plugins that are installed, in the order of the table."""
    found = []
    for name in KNOWN:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(resolve(name))
    return found


@functools.cache
def sha256(path: pathlib.Path) -> str:
    """First 12 digits of a file's hash; a plugin has 200 MB, which take about a second."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def examine(found: Found, deadline_s: float) -> plugin.PjrtPlugin:
    """Loads a plugin in a child process, asks for its version and platform.

    Raises:
      BadInputError: It cannot be loaded, is no PJRT plugin, is of another API, or does not answer in time.
    """
    with client.Client(deadline_s, plugin_environment(), f"plugin {found.name}") as child:
        try:
            facts = child.ask("plugin_facts", str(found.path))
        except client.ProblemError as problem:
            raise errors.BadInputError(f"plugin {found.name}: {problem}") from None
    return plugin.PjrtPlugin(found.name, str(found.path), sha256(found.path), facts["api_version"], facts["platform"])


def plugin_environment() -> dict[str, str | None]:
    """Variables of a child that runs a plugin: unlike a child that only reads programs it may see the accelerators."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}
