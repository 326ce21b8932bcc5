"""The environment that goes into a record: variables that frameworks read, versions, the source that measured."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import pathlib
from collections.abc import Iterable, Mapping

import xlacompare

PREFIXES = (
    *("XLA_", "JAX_", "FLAX_", "TORCH", "PJRT_", "LIBTPU_", "TPU_", "CUDA_", "NCCL_", "GLOO_", "TF_CPP", "XLACOMPARE_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "NPROC", "CPU_NUM_DEVICES", "MALLOC_"),
    *("LD_PRELOAD", "SLURM_"),
)


def relevant_variables(variables: Mapping[str, str | None]) -> dict[str, str]:
    """The variables that can change what a framework does, sorted by name; unset ones (None) left out."""
    return {k: v for k, v in sorted(variables.items()) if v is not None and k.startswith(PREFIXES)}


def versions(distributions: Iterable[str]) -> dict[str, str | None]:
    """Version by distribution, from installed metadata; None where it is not installed. Imports nothing."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


@functools.cache
def source_revision() -> str:
    """Version of xlacompare and a hash over its source files, so that an edited checkout is another revision."""
    folder = pathlib.Path(xlacompare.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{xlacompare.__version__}+{digest.hexdigest()[:12]}"
