"""XLA's options that are worth a try on a platform, one at a time against the default; and how the flag names them.

Names and defaults are those of XLA's debug options (`XLA_FLAGS=--help`), read from jaxlib 0.10.2; the values here are
the ones that are not the default. Where front ends or builds have different defaults both values are here, and the dump
of the compilation tells which of them changed anything. An older or newer XLA may lack some: that is found out when it
compiles or starts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from xlacompare.core import errors

CHANGED = "xla_option"  # the key of a cell's `changed`
TABLE = "table"  # the flag's value that stands for the platform's whole table
PROGRAM, CODE = "program", "code"
UNKNOWN = "this XLA does not know it"
REFUSED = "this XLA does not take the value"
_FORM = re.compile(r"xla_[a-z0-9_]+=\S*")
_OF_PLATFORM = {"xla_cpu_": "cpu", "xla_gpu_": "gpu", "xla_tpu_": "tpu"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option with a value that is not the default.

    Attributes:
      name: XLA's, without dashes.
      value: As text.
      note: What it does, in one line.
      acts: PROGRAM where its effect is seen in the optimised HLO; CODE where it acts below (code generation, run time),
        so that an equal HLO does not say that nothing changed.
      since: Which XLA builds have it, where that was looked up. XLA has no versions; its builds are told apart by the
        package and by the PJRT API that they speak.
    """

    name: str
    value: str
    note: str
    acts: str = PROGRAM
    since: str = ""

    @property
    def text(self) -> str:
        """As the flag has it."""
        return f"{self.name}={self.value}"


# Looked up in the libraries of torch_xla 2.9.0, xla-cpu-pjrt 0.0.1 (PJRT API 0.81), jaxlib 0.10.2 and
# lammps-jax-pjrt-cpu 0.11.2 (API 0.115). libtpu was not.
_OLD = "torch_xla 2.9.0 or before"
_AFTER_TORCH_XLA = "after torch_xla 2.9.0, by PJRT API 0.81"
_AFTER_81 = "after PJRT API 0.81, by 0.115 and jaxlib 0.10.2"


def _all_since(since: str, options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(dataclasses.replace(option, since=option.since or since) for option in options)


_CPU = (
    Option("xla_disable_hlo_passes", "fusion", "no fusion: every HLO operation is a kernel of its own"),
    Option("xla_cpu_enable_concurrency_optimized_scheduler", "true", "order for parallel kernels (older XLA)"),
    Option("xla_cpu_enable_concurrency_optimized_scheduler", "false", "order for less memory (older XLA)"),
    Option(
        "xla_cpu_scheduler_type",
        "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED",
        "order for parallel kernels rather than for least memory",
        since=_AFTER_81,
    ),
    Option(
        "xla_cpu_experimental_ynn_fusion_type",
        "",
        "no YNN kernels for matrix products and others",
        since=_AFTER_TORCH_XLA,
    ),
    Option("xla_cpu_use_xnnpack", "false", "no XNNPACK kernels for the operations that it serves", CODE),
    Option("xla_cpu_use_onednn", "true", "oneDNN kernels for matrix products and convolutions"),
    Option("xla_cpu_use_fusion_emitters", "false", "fusions by the older code generator", CODE),
    Option("xla_cpu_enable_fast_math", "true", "LLVM may reorder and approximate floating point", CODE),
    Option("xla_cpu_enable_fast_min_max", "false", "min and max that always pass NaN on (jax's default)", CODE),
    Option("xla_cpu_enable_fast_min_max", "true", "min and max in one instruction, may drop NaN (XLA's default)", CODE),
    Option("xla_cpu_multi_thread_eigen", "false", "matrix products of Eigen on one thread", CODE),
    Option("xla_cpu_prefer_vector_width", "512", "LLVM's vectors of 512 bits in place of 256", CODE),
    Option("xla_llvm_disable_expensive_passes", "true", "without LLVM's expensive passes", CODE),
    Option("xla_backend_optimization_level", "1", "LLVM at -O1 in place of -O3", CODE),
)
_MEBIBYTES_256 = str(256 << 20)
_GPU = (
    Option("xla_gpu_enable_latency_hiding_scheduler", "true", "order that hides collectives behind compute"),
    Option("xla_gpu_all_reduce_combine_threshold_bytes", _MEBIBYTES_256, "all-reduces combined up to 256 MiB"),
    Option("xla_gpu_all_gather_combine_threshold_bytes", _MEBIBYTES_256, "all-gathers combined up to 256 MiB"),
    Option("xla_gpu_reduce_scatter_combine_threshold_bytes", _MEBIBYTES_256, "reduce-scatters up to 256 MiB"),
    Option("xla_gpu_disable_async_collectives", "ALLCOLLECTIVES", "every collective waits for its end"),
    Option("xla_gpu_enable_command_buffer", "", "no command buffers (CUDA graphs): each kernel is launched", CODE),
    Option("xla_gpu_autotune_level", "0", "no autotuning of matrix products and convolutions"),
    Option("xla_gpu_enable_triton_gemm", "false", "matrix products by the vendor's library only"),
    Option("xla_disable_hlo_passes", "fusion", "without the pass called fusion"),
)
_TPU = (
    Option("xla_tpu_enable_latency_hiding_scheduler", "false", "no order that hides collectives behind compute"),
    Option("xla_tpu_enable_async_collective_fusion", "false", "collectives are not fused with compute"),
    Option("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "false", "all-gathers are not fused with compute"),
    Option("xla_enable_async_all_gather", "false", "every all-gather waits for its end"),
    Option("xla_enable_async_collective_permute", "false", "every permute waits for its end"),
)
TABLES: dict[str, tuple[Option, ...]] = {"cpu": _all_since(_OLD, _CPU), "gpu": _all_since(_OLD, _GPU), "tpu": _TPU}


def chosen(asked: Sequence[str], platform: str) -> tuple[str, ...]:
    """The options of a run as "name=value": the platform's table, or the user's own.

    Args:
      asked: What --ablate_flags has.
      platform: "cpu", "gpu" or "tpu".

    Raises:
      BadInputError: Not of this form, of another platform, or named twice.
    """
    if tuple(asked) == (TABLE,):
        return tuple(option.text for option in TABLES[platform])
    for text in asked:
        _check(text, platform)
    if len(set(asked)) != len(asked):
        raise errors.BadInputError(f"--ablate_flags names {', '.join(asked)}: one is named twice")
    return tuple(asked)


def _check(text: str, platform: str) -> None:
    if not _FORM.fullmatch(text):
        raise errors.BadInputError(
            f"--ablate_flags: {text!r} is no XLA option; give {TABLE}, or name=value without dashes, as in "
            f"{TABLES[platform][0].text}"
        )
    of = next((found for prefix, found in _OF_PLATFORM.items() if text.startswith(prefix)), platform)
    if of != platform:
        raise errors.BadInputError(
            f"--ablate_flags: {text} is an option of {of} and this run is on {platform}; give --platform={of}"
        )


def split(text: str) -> tuple[str, str]:
    """Name and value of "name=value"."""
    name, _, value = text.partition("=")
    return name, value


def mistaken(text: str, reasons: Sequence[str]) -> str:
    """The line about a user's own option that no XLA of the run knows; "" where one does, or it is of the table.

    Args:
      text: "name=value".
      reasons: Why each cell of the option has no time; "" for one that has.
    """
    if find(text) is not None or not reasons or not all(reason.startswith(UNKNOWN) for reason in reasons):
        return ""
    name, _ = split(text)
    return (
        f"--ablate_flags: unknown option {name}: no XLA of this run knows it; check the name (XLA_FLAGS=--help lists)"
    )


def find(text: str) -> Option | None:
    """The declared option; None for one that is the user's own."""
    return next((option for table in TABLES.values() for option in table if option.text == text), None)


def variable(text: str) -> tuple[str, str]:
    """Variable and flag that set an option for a whole process; libtpu reads its own variable."""
    return ("LIBTPU_INIT_ARGS" if text.startswith("xla_tpu_") else "XLA_FLAGS"), f"--{text}"
