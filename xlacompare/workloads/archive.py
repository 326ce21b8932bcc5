"""Arrays on disk as one .npz without pickle, and their fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np

from xlacompare.core import errors
from xlacompare.workloads import spec


@dataclasses.dataclass(frozen=True)
class Archive:
    """What the parent builds once and ships to every worker."""

    parameters: spec.Arrays
    buffers: spec.Arrays
    batches: list[spec.Arrays]

    def flat(self) -> spec.Arrays:
        """All arrays under one name each: `parameters/NAME`, `buffers/NAME`, `batches/0000/NAME`."""
        arrays = _prefixed("parameters", self.parameters) | _prefixed("buffers", self.buffers)
        for i, batch in enumerate(self.batches):
            arrays |= _prefixed(f"batches/{i:04}", batch)
        return arrays

    def sha256(self) -> str:
        """Fingerprint of everything."""
        return sha256(self.flat())


def build(workload: spec.Workload, seed: int, count: int) -> Archive:
    """Initial parameters, buffers and `count` batches of a workload."""
    return Archive(workload.initial_parameters(seed), workload.initial_buffers(), workload.batches(seed, count))


def save(path: str | pathlib.Path, archive: Archive) -> str:
    """Writes an archive and returns its fingerprint."""
    write_arrays(path, archive.flat())
    return archive.sha256()


def load(path: str | pathlib.Path) -> Archive:
    """Reads an archive.

    Raises:
      RecordError: The file is missing, broken, or holds anything but arrays.
    """
    arrays = read_arrays(path)
    names = sorted({name.split("/")[1] for name in arrays if name.startswith("batches/")})
    batches = [section(arrays, f"batches/{name}") for name in names]
    return Archive(section(arrays, "parameters"), section(arrays, "buffers"), batches)


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 in hex over name, dtype, shape and bytes of every array, in sorted order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_arrays(path: str | pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name, uncompressed.

    Raises:
      RecordError: The disk is full, or the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **dict(arrays))
    except (OSError, ValueError) as error:  # on a full disk zipfile's farewell raises a ValueError over the OSError
        cause = error if isinstance(error, OSError) else error.__context__ or error
        raise errors.RecordError(
            f"cannot write the arrays of {path}: {cause}; usually the disk is full: free some, or choose another "
            "--output_dir"
        ) from error


def read_arrays(path: str | pathlib.Path) -> spec.Arrays:
    """Reads arrays by name; refuses pickles.

    Raises:
      RecordError: The file is missing, broken, or holds anything but arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise errors.RecordError(f"cannot read the arrays of {path}: {error}; delete the file and run again") from error


def section(arrays: Mapping[str, np.ndarray], prefix: str) -> spec.Arrays:
    """Arrays under a prefix, without it."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def _prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> spec.Arrays:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}
