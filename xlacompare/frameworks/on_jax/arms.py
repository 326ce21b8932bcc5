"""Arms, settings and environment of JAX, for the parent process: imports no framework."""

from __future__ import annotations

from xlacompare.core import plugin
from xlacompare.frameworks import interface

_WHOLE_STEP = "model, loss, backward, optimizer"

ARMS: dict[str, interface.ArmSpec] = {
    "eager": interface.ArmSpec(
        name="eager",
        definition="no jit around the step: autodiff, Flax and optax run in Python at every step, and each primitive "
        "is one XLA program; library functions that JAX itself jits (relu, gelu, parts of log-softmax, ...) stay one "
        "program each, as in any JAX code without jit (jax.disable_jit would take them apart, at 1.0-2.2x the time)",
        scope="one primitive or one small library function",
    ),
    "compiled": interface.ArmSpec(
        name="compiled",
        definition="one jax.jit over the whole step, compiled ahead of time (trace, lower, compile)",
        scope=_WHOLE_STEP,
    ),
    "nofusion": interface.ArmSpec(
        name="nofusion",
        definition="as compiled, with xla_disable_hlo_passes=fusion for this compilation: every HLO operation is its "
        "own kernel, also those that eager mode runs as one (slower than eager is possible)",
        scope=_WHOLE_STEP,
        expert=True,
    ),
    "opt0": interface.ArmSpec(
        name="opt0",
        definition="as compiled, with xla_backend_optimization_level=0 for this compilation: LLVM does not optimise "
        "the kernels (on the CPU), HLO passes and fusions stay",
        scope=_WHOLE_STEP,
        expert=True,
    ),
}

# Options of one compilation: such cells share a process with the default. The other arms have options of their own.
XLA_OPTIONS = interface.XlaOptions("build", ("compiled",))

GATE_ARM = "compiled"

# The arm whose program is replayed (`replay.py`): it is one XLA program of the whole step.
REPLAY_ARM = "compiled"

LACKS: dict[str, str] = {
    "captured": "JAX has no mode that captures the whole step and runs it with the kernels of eager mode "
    "(optimization barriers are gone before XLA:CPU fuses)",
    "openxla": "a TorchDynamo backend of torch_xla; jax.jit (arm `compiled`) is the JAX way to XLA",
    "inductor_model": "inductor is a compiler of PyTorch",
}

SETTINGS: dict[str, interface.Setting] = {
    "matmul_precision": interface.Setting(
        name="matmul_precision",
        matched="highest",
        shipped="default",
        where="build",
        note="jax.default_matmul_precision while the step is traced; `default` uses fewer mantissa bits on TPU and GPU",
    ),
    "donation": interface.Setting(
        name="donation",
        matched=True,
        shipped=False,
        where="build",
        note="donate_argnums on the training state, so that the update is done in place as in torch; the eager arm "
        "has no donation",
    ),
    "threads": interface.Setting(
        name="threads",
        matched="the cores of the worker",
        shipped="all cores",
        where="environment",
        environment={"NPROC": None, "OMP_NUM_THREADS": None},
        note="XLA:CPU sizes its thread pools by NPROC, else by the cores that the process may use",
    ),
}

# Variables that name the folder of the compiler's disk cache; the launcher sets them to a folder of the run.
CACHE_VARIABLES: tuple[str, ...] = ("JAX_COMPILATION_CACHE_DIR",)


def environment(platform: str, num_threads: int) -> dict[str, str | None]:
    """Variables of a matched run, to be set before the worker starts; None removes a variable.

    XLA_FLAGS is left alone: the user's flags stay in force and are reported by `Adapter.describe`.

    Args:
      platform: "cpu", "gpu" or "tpu".
      num_threads: Threads of the CPU pools (the worker is pinned to as many cores).
    """
    return {
        # `cuda` rather than `gpu`: JAX then fails loudly where the plugin is missing.
        "JAX_PLATFORMS": {"gpu": "cuda"}.get(platform, platform),
        "NPROC": str(num_threads),
        "OMP_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        # Workers stay alive beside each other: none may reserve the GPU's memory for itself.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Without these two, programs that compile in less than a second never reach the disk cache.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        # A float64 gate runs in a scope of its own; a user's global x64 would change the float32 cells.
        "JAX_ENABLE_X64": None,
        "JAX_DISABLE_JIT": None,
        "JAX_DEFAULT_MATMUL_PRECISION": None,
    }


def plugin_environment(chosen: plugin.PjrtPlugin, platform: str, num_threads: int) -> dict[str, str | None]:
    """As `environment`, for a worker that runs on a PJRT plugin; the adapter registers it under `plugin.NAME`."""
    return {**environment(platform, num_threads), **chosen.environment, "JAX_PLATFORMS": plugin.NAME}
