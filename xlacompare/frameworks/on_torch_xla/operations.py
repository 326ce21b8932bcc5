"""The xm.* calls of each collective, as a torch_xla user writes them: 1-D lazy tensor in, lazy tensor out.

Arguments are those that ship, `pin_layout=False` of all_gather excepted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch_xla.core import xla_model

from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks.on_torch_xla import transports

Operation = Callable[[torch.Tensor], torch.Tensor]

REDUCE = {
    "sum": xla_model.REDUCE_SUM,
    "mean": xla_model.REDUCE_SUM,
    "max": xla_model.REDUCE_MAX,
    "min": xla_model.REDUCE_MIN,
}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
}


def upload(values: np.ndarray, dtype: str) -> torch.Tensor:
    """NumPy to a native tensor; bfloat16 comes as ml_dtypes' type or as float32, whose values it holds exactly."""
    if dtype == "bfloat16":
        values = values.astype(np.float32)
    return torch.from_numpy(np.array(values)).to(DTYPES[dtype])


def download(tensor: torch.Tensor) -> np.ndarray:
    """A device tensor as NumPy; bfloat16 widened to float32."""
    host = tensor.cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy()


def groups_of(request: requests.Request) -> list[list[int]] | None:
    """Groups as xm takes them; None where one group holds all ranks, which is another path in xm.all_reduce."""
    groups = meshes.groups(request.mesh, request.axis)
    return None if len(groups) == 1 else [list(group) for group in groups]


def mean(x: torch.Tensor, request: requests.Request) -> torch.Tensor:
    """Divides a sum by the number of ranks where the request wants a mean.

    Not through the `scale` of xm, which multiplies by a rounded reciprocal.
    """
    return x / meshes.group_size(request.mesh, request.axis) if request.reduction == "mean" else x


def all_reduce(request: requests.Request, rank: int) -> Operation:
    """A tensor is reduced into a new one, a list of tensors in place."""
    kind, groups = REDUCE[request.reduction], groups_of(request)
    n = meshes.group_size(request.mesh, request.axis)

    def in_place(x: torch.Tensor) -> torch.Tensor:
        xla_model.all_reduce(kind, [x], groups=groups)
        return x.div_(n) if request.reduction == "mean" else x

    if request.placement == "in_place":
        return in_place
    return lambda x: mean(xla_model.all_reduce(kind, x, groups=groups), request)


def all_gather(request: requests.Request, rank: int) -> Operation:
    """With pin_layout=False: as it ships, xm.all_gather is F.pad and an all_reduce of the whole output."""
    groups, pinned = groups_of(request), transports.wants_default_all_gather()
    return lambda x: xla_model.all_gather(x, dim=0, groups=groups, pin_layout=pinned)


def reduce_scatter(request: requests.Request, rank: int) -> Operation:
    """Chunks along the only dimension."""
    kind, groups = REDUCE[request.reduction], groups_of(request)
    n = meshes.group_size(request.mesh, request.axis)
    return lambda x: mean(xla_model.reduce_scatter(kind, x, 1.0, 0, n, groups=groups), request)


def all_to_all(request: requests.Request, rank: int) -> Operation:
    """Chunks along the only dimension."""
    groups = groups_of(request)
    n = meshes.group_size(request.mesh, request.axis)
    return lambda x: xla_model.all_to_all(x, 0, 0, n, groups=groups)


def ppermute(request: requests.Request, rank: int) -> Operation:
    """Pairs of global ranks; XLA gives zeros where a rank has no source, and copies along a self edge."""
    pairs = [list(pair) for pair in meshes.global_pairs(request.mesh, request.axis, request.pairs)]
    return lambda x: xla_model.collective_permute(x, pairs)


def broadcast(request: requests.Request, rank: int) -> Operation:
    """xm.collective_broadcast: multiplies by 0 on all ranks but the root, then all_reduce; it uploads the 0 or 1.

    It only works in place. Out of place the lazy clone costs nothing: both become one new value of the program.
    """
    groups = groups_of(request)
    group, _ = meshes.group_of(request.mesh, request.axis, rank)
    root = group[request.root]
    in_place = request.placement == "in_place"

    def run(x: torch.Tensor) -> torch.Tensor:
        out = x if in_place else x.clone()
        xla_model.collective_broadcast([out], root_ordinal=root, groups=groups)
        return out

    return run


def barrier(request: requests.Request, rank: int) -> Operation:
    """An all_reduce of one element. xm.rendezvous is two xm.all_gather as they ship, which do not work on the CPU."""
    groups = groups_of(request)
    return lambda x: xla_model.all_reduce(xla_model.REDUCE_SUM, x, groups=groups)


TABLE: dict[str, Callable[[requests.Request, int], Operation]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "ppermute": ppermute,
    "broadcast": broadcast,
    "barrier": barrier,
}


def check(transport: str, mode: str, request: requests.Request, size: int, platform: str) -> None:
    """Refuses what cannot run.

    Raises:
      UnsupportedError: With the reason.
      BadInputError: The mesh does not hold the ranks that are there.
    """
    reason = transports.unsupported(transport, mode, request, platform)
    if reason:
        raise errors.UnsupportedError(reason)
    if meshes.size(request.mesh) != size:
        raise errors.BadInputError(
            f"mesh {request.mesh} needs {meshes.size(request.mesh)} ranks, there are {size}; change --mesh or "
            "--num_devices"
        )
