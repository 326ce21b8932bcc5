"""A reference on disk: what the parent computed once and every worker reads."""

from __future__ import annotations

import json
import pathlib

import numpy as np

from xlacompare.core import errors
from xlacompare.workloads import archive, oracle, spec

_PARTS = ("activations", "gradients", "updated_parameters", "updated_buffers")


def save(path: str | pathlib.Path, reference: oracle.Reference) -> None:
    """Writes a reference as one .npz."""
    exact = reference.oracle
    head = json.dumps(
        {"dtype": reference.dtype, "own_errors": reference.own_errors, "kink_errors": reference.kink_errors}
    )
    arrays: spec.Arrays = {"head": np.frombuffer(head.encode(), np.uint8), "losses": exact.losses}
    arrays["example_losses"] = exact.example_losses
    for part in _PARTS:
        arrays |= {f"{part}/{name}": array for name, array in getattr(exact, part).items()}
    archive.write_arrays(path, arrays)


def load(path: str | pathlib.Path) -> oracle.Reference:
    """Reads a reference.

    Raises:
      RecordError: The file is missing or broken, or is not a reference.
    """
    arrays = archive.read_arrays(path)
    try:
        head = json.loads(arrays["head"].tobytes())
        parts = {part: archive.section(arrays, part) for part in _PARTS}
        exact = oracle.Oracle(arrays["losses"], arrays["example_losses"], **parts)
        return oracle.Reference(head["dtype"], exact, head["own_errors"], head["kink_errors"])
    except (KeyError, ValueError) as error:
        raise errors.RecordError(f"{path} is not a reference: {error!r}; delete the file and run again") from error
