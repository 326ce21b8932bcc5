"""Arms, settings and environment of native PyTorch, for the parent process: imports no framework."""

from __future__ import annotations

from xlacompare.core import errors
from xlacompare.frameworks import interface

ARMS: dict[str, interface.ArmSpec] = {
    "eager": interface.ArmSpec(
        name="eager",
        definition="plain PyTorch: autograd and torch.optim, one kernel per operation, no compiler",
        scope="one torch operation",
    ),
    "captured": interface.ArmSpec(
        name="captured",
        definition="AOTAutograd's graphs of model and loss (torch.compile, as backend aot_eager, but run as generated "
        "code, not by an interpreter): eager mode's kernels one by one; the user's Python and the autograd engine are "
        "gone, dispatch is not; torch.optim and running statistics stay eager (captured, they would not be in place)",
        scope="two graphs, no graph break: model and loss; their backward pass",
    ),
    "compiled": interface.ArmSpec(
        name="compiled",
        definition="torch.compile(backend='inductor', fullgraph=True) over the whole step: gradients by "
        "torch.func.grad_and_value, torch.optim's functional update (foreach) traced with them",
        scope="model, loss, backward, optimizer, batch-norm statistics: one graph, no graph break",
    ),
    "inductor_model": interface.ArmSpec(
        name="inductor_model",
        definition="torch.compile of the model alone, the usual user style; loss, optimizer and batch-norm statistics "
        "stay eager",
        scope="two graphs, no graph break: the model; its backward pass",
    ),
}

GATE_ARM = "eager"

LACKS: dict[str, str] = {
    "openxla": "a TorchDynamo backend of torch_xla; use --framework=torch_xla",
    "nofusion": "torch.compile has no switch that turns off fusion alone and keeps Inductor's own kernels; `captured` "
    "is the graph without fusion, with the kernels of eager mode",
    "opt0": "Inductor has no option for the optimisation level of its kernels (they are always compiled with -O3)",
}

_MATCHED_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # GNU's and LLVM's OpenMP spin for a while before they wait; on shared cores that took 2344 ms a step instead of 30.
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}

SETTINGS: dict[str, interface.Setting] = {
    "threads": interface.Setting(
        name="threads",
        matched="the cores of the worker, waiting passively",
        shipped="torch's default: one per core that it sees, spinning before they wait",
        where="environment",
        environment=dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", *_MATCHED_THREADS)),
        note="torch.set_num_threads and the wait policy of OpenMP",
    ),
    "matmul_precision": interface.Setting(
        name="matmul_precision",
        matched="highest",
        shipped="highest",
        where="build",
        note="torch.set_float32_matmul_precision while the step runs; torch's default is that of the matched run",
    ),
    "convolution_tf32": interface.Setting(
        name="convolution_tf32",
        matched=False,
        shipped=True,
        where="build",
        note="torch.backends.cudnn.allow_tf32 while the step runs: torch's default lets cuDNN convolve in TF32; no "
        "effect on the CPU",
    ),
    "cpp_wrapper": interface.Setting(
        name="cpp_wrapper",
        matched=True,
        shipped=False,
        where="build",
        note="Inductor's host code in C++, all CPU kernels of a graph in one file: a third of the compile time, and no "
        "Python between kernels (arms compiled and inductor_model; on the CPU only)",
    ),
}

# Variables that name the folder of the compiler's disk cache; the launcher sets them to a folder of the run.
CACHE_VARIABLES: tuple[str, ...] = ("TORCHINDUCTOR_CACHE_DIR",)

# Switches of torch.compile that change what is timed; a matched run has none of them.
_UNSET = (
    "TORCH_LOGS",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCHINDUCTOR_FREEZING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "ATEN_CPU_CAPABILITY",
)


def environment(platform: str, num_threads: int) -> dict[str, str | None]:
    """Variables of a matched run, to be set before the worker imports anything; None removes a variable.

    Args:
      platform: "cpu" or "gpu" (one CUDA device).
      num_threads: Threads of the CPU pools (the worker is pinned to as many cores).

    Raises:
      UnsupportedError: Native torch has no such platform.
    """
    if platform not in ("cpu", "gpu"):
        raise errors.UnsupportedError(
            f"native torch runs on cpu and gpu, not on {platform!r}; use --framework=torch_xla"
        )
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        **_MATCHED_THREADS,
        # Compile in this process: a pool of compiler processes would outlive the build and disturb the other workers.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Trust the CPU's own list of vector instructions: trying each out costs 10 s of one core in every process.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        **dict.fromkeys(_UNSET),
    }
