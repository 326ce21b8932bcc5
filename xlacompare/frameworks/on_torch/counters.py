"""What torch.compile says about itself, and all other private APIs of torch that the adapter uses, one function each.

Tried with torch 2.9.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import re
import subprocess
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from functorch import compile as aot_compile
from torch._dynamo import callback, utils
from torch._dynamo.backends import common
from torch.distributed import distributed_c10d


@dataclasses.dataclass
class _Compilations:
    """Counts the compilations that Dynamo begins, of any function, backend and thread."""

    count: int = 0
    watching: bool = False

    def began(self, args: Any) -> None:
        self.count += 1


_COMPILATIONS = _Compilations()


def watch_compilations() -> None:
    """Starts the count of `compile_count`; once per process, before the first compilation.

    `torch._dynamo.callback` calls back when Dynamo begins to compile a frame, first time or again, whether or not the
    disk cache has the result, and when a backward pass is compiled at run time.
    """
    if not _COMPILATIONS.watching:
        callback.on_compile_start(_COMPILATIONS.began)
        _COMPILATIONS.watching = True


def compile_count() -> int:
    """Compilations begun since `watch_compilations`, plus Inductor's cache misses (compilations past Dynamo)."""
    return _COMPILATIONS.count + utils.counters["inductor"]["fxgraph_cache_miss"]


def graph_counts() -> dict[str, int]:
    """Graphs that Dynamo has compiled and graph breaks that it met, since the process began."""
    return {
        "graphs": utils.counters["stats"]["unique_graphs"],
        "breaks": sum(utils.counters["graph_break"].values()),
    }


def cache_counts() -> tuple[int, int]:
    """Hits and misses (or bypasses) of Inductor's disk cache, by its own counters, since the process began."""
    inductor = utils.counters["inductor"]
    return inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]


def phase_seconds() -> dict[str, float]:
    """Seconds of torch.compile so far: trace (Dynamo), lower (AOTAutograd and its passes), compile (Inductor).

    `compilation_time_metrics` nests: compiling a frame holds the call of the backend, which holds Inductor's work,
    or the loading of what the disk cache had. A backward pass is compiled on its own at its first run.
    """

    def total(*keys: str) -> float:
        return sum(sum(utils.compilation_time_metrics.get(key, ())) for key in keys)

    frames, forward, backward = map(
        total, ("_compile.compile_inner", "OutputGraph.call_user_compiler", "backward._backward_impl")
    )
    inductor = total("compile_fx_inner", "AOTAutogradCache.inductor_load")
    return {"trace_s": frames - forward, "lower_s": forward + backward - inductor, "compile_s": inductor}


def same_kernels_backend() -> Callable[..., Any]:
    """The backend `aot_eager`, but with the graphs run as generated Python code, and nothing computed twice.

    Stock `aot_eager` (2.9.1) interprets its graphs by `torch.fx.Interpreter`, at 20 us a node: 1.3-1.4 times eager's
    time on the tiny models, which would be booked as the effect of capturing.
    """

    def generated_code(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return aot_compile.make_boxed_func(graph.forward)

    return common.aot_autograd(fw_compiler=generated_code, partition_fn=aot_compile.default_partition)


def load_inductor() -> float:
    """Imports Inductor and lets it find the vector instructions of this machine; seconds that it took.

    Done before the first compilation is timed, since neither belongs to a program (4 s of imports on one core).
    """
    start = time.perf_counter()
    from torch._inductor import compile_fx, cpu_vec_isa  # noqa: F401  (slow import, only compiled arms need it)
    from torch._inductor.codegen import cpp_wrapper_cpu  # noqa: F401

    with mock.patch.object(cpu_vec_isa, "subprocess", types.SimpleNamespace(check_call=_load_library)):
        cpu_vec_isa.pick_vec_isa()
    return time.perf_counter() - start


def _load_library(command: list[str], **options: Any) -> None:
    """Stands in for the child processes in which Inductor tries out a library built for each instruction set.

    Each child imports torch only to load a library of a few instructions (three times 3 s of one core, in every
    process); here it is loaded into this process, which has torch already.
    """
    path = re.search(r'LoadLibrary\("(.+)"\)', command[-1])
    if path is None:
        raise subprocess.CalledProcessError(1, command)
    ctypes.CDLL(path.group(1))


@contextlib.contextmanager
def not_compiled() -> Iterator[None]:
    """Runs the functions that torch.compile was given, instead of what it made of them; nothing is compiled.

    `_is_compiling_flag` lets torch.optim take the branches that it takes while it is traced (multi-tensor AdamW takes
    counts on the CPU, which it refuses otherwise); torch.export sets it for the same purpose.
    """
    with torch.compiler.set_stance("force_eager"), mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        yield


@contextlib.contextmanager
def small_buckets(nbytes: int) -> Iterator[None]:
    """Lets torch.compile cut graphs at DDP's buckets where these are smaller than torch's first one (1 MiB).

    DDPOptimizer asserts that no bucket is smaller than the first, whose size it takes from this constant although DDP
    itself was told another one (2.9.1).
    """
    smallest = min(nbytes, dist._DEFAULT_FIRST_BUCKET_BYTES)
    with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", smallest):
        yield


_XLA_TYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int8: "s8",
    torch.int16: "s16",
    torch.int32: "s32",
    torch.int64: "s64",
    torch.uint8: "u8",
    torch.bool: "pred",
}


def xla_type(dtype: torch.dtype) -> str:
    """XLA's name of an element type, torch's where XLA has none."""
    return _XLA_TYPES.get(dtype, str(dtype).removeprefix("torch."))


def ranks_of_group(group: Any) -> tuple[int, ...]:
    """Global ranks of a process group as an operation of torch.distributed was given it: boxed, or by name."""
    if isinstance(group, str):
        found = distributed_c10d._resolve_process_group(group)
    else:
        found = group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)
    return tuple(dist.get_process_group_ranks(found))


def reduction_name(operation: Any) -> str:
    """A functional collective's "sum", "max", ...; "" for c10d's boxed operation, which cannot be opened (2.9.1)."""
    return operation.lower().replace("product", "prod") if isinstance(operation, str) else ""
