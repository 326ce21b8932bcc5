"""Arms, settings and environment of PyTorch/XLA, for the parent process: imports no framework."""

from __future__ import annotations

from xlacompare.core import errors, plugin
from xlacompare.frameworks import interface
from xlacompare.frameworks.on_torch_xla import shim

# Read by `Adapter`: torch_xla has no variable for this, and the value must not change within a process (see SETTINGS).
MATMUL_PRECISION_VARIABLE = "XLACOMPARE_TORCH_XLA_MATMUL_PRECISION"

_WHOLE_STEP = "model, loss, backward, optimizer"

ARMS: dict[str, interface.ArmSpec] = {
    "eager": interface.ArmSpec(
        name="eager",
        definition="torch_xla's eager mode (torch_xla.experimental.eager_mode): every torch operation is dispatched at "
        "once as a small XLA program of its own, compiled at its first use",
        scope="one torch operation",
    ),
    "compiled": interface.ArmSpec(
        name="compiled",
        definition="lazy tensors: the step is traced in Python every time, torch_xla.sync() at its end launches one "
        "XLA program, compiled when its graph is new",
        scope=_WHOLE_STEP,
    ),
    "openxla": interface.ArmSpec(
        name="openxla",
        definition="torch.compile(backend='openxla'): Dynamo captures forward, backward and optimizer once, each is an "
        "XLA program that is launched without tracing again; the state is not donated",
        scope="three programs: model and loss; backward; optimizer and buffers",
    ),
    "nofusion": interface.ArmSpec(
        name="nofusion",
        definition="as compiled, in a process with XLA_FLAGS=--xla_disable_hlo_passes=fusion: every HLO operation is "
        "its own kernel",
        scope=_WHOLE_STEP,
        environment={"XLA_FLAGS": "--xla_disable_hlo_passes=fusion"},
        expert=True,
    ),
    "opt0": interface.ArmSpec(
        name="opt0",
        definition="as compiled, in a process with XLA_FLAGS=--xla_backend_optimization_level=0: LLVM does not "
        "optimise the kernels (on the CPU), HLO passes and fusions stay",
        scope=_WHOLE_STEP,
        environment={"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        expert=True,
    ),
}

# torch_xla 2.9 hands no options to the compiler: XLA takes them from XLA_FLAGS, which it reads once.
XLA_OPTIONS = interface.XlaOptions("environment", ("compiled", "openxla"))

GATE_ARM = "compiled"

# The arm whose program is replayed (`replay.py`): it is one XLA program of the whole step.
REPLAY_ARM = "compiled"

LACKS: dict[str, str] = {
    "captured": "XLA has no mode that keeps a whole program and runs it with the kernels of eager mode",
    "inductor_model": "inductor generates code for native torch; on XLA devices the Dynamo backend is `openxla`",
}

SETTINGS: dict[str, interface.Setting] = {
    "matmul_precision": interface.Setting(
        name="matmul_precision",
        matched="highest",
        shipped="default",
        where="environment",
        environment={MATMUL_PRECISION_VARIABLE: None},
        note="torch_xla.backends.set_mat_mul_precision, once per process: torch_xla 2.9.0 leaves the precision out of "
        "the key of its program cache, so a later change would be ignored. On TPU `default` is bfloat16, on the CPU it "
        "is the same arithmetic",
    ),
    "threads": interface.Setting(
        name="threads",
        matched="the cores of the worker",
        shipped="all cores",
        where="environment",
        environment={"NPROC": None, "OMP_NUM_THREADS": None, "OMP_WAIT_POLICY": None},
        note="XLA:CPU sizes its thread pools by NPROC, else by the cores that the process may use; OpenMP threads only "
        "serve operations that fall back to native torch",
    ),
}

# Read by `Adapter`: a folder into which XLA writes what it compiles; the launcher names one where programs are saved.
DUMP_VARIABLE = "XLACOMPARE_TORCH_XLA_DUMP"
PROGRAM_VARIABLES: tuple[str, ...] = (DUMP_VARIABLE,)

# No variable switches torch_xla's disk cache on, and on the CPU it cannot read back what it wrote.
CACHE_VARIABLES: tuple[str, ...] = ()

_PJRT_DEVICES = {"cpu": "CPU", "tpu": "TPU"}

# Debug switches and modes of torch_xla that change what is timed; a matched run has none of them.
_UNSET = (
    "PT_XLA_DEBUG",
    "PT_XLA_DEBUG_LEVEL",
    "XLA_HLO_DEBUG",
    "XLA_IR_DEBUG",
    "XLA_SYNC_WAIT",
    "XLA_EMIT_STEPLOG",
    "XLA_USE_EAGER_DEBUG_MODE",
    "XLA_USE_SPMD",
    "XLA_NO_SPECIAL_SCALARS",
    "XLA_ENABLE_PARAM_ALIASING",
    "XLA_PERSISTENT_CACHE_PATH",
    "PJRT_CPU_ASYNC_CLIENT",
)


def environment(platform: str, num_threads: int) -> dict[str, str | None]:
    """Variables of a matched run, to be set before the worker imports anything; None removes a variable.

    XLA_FLAGS is left alone, except by the arms that need it: the user's flags stay in force and are reported.

    Args:
      platform: "cpu" or "tpu".
      num_threads: Threads of the CPU pools (the worker is pinned to as many cores).

    Raises:
      UnsupportedError: torch_xla has no such platform.
    """
    if platform not in _PJRT_DEVICES:
        raise errors.UnsupportedError(
            f"torch_xla 2.9 runs on {', '.join(_PJRT_DEVICES)}; it has no back end for {platform!r} (CUDA was removed)"
        )
    return _matched(_PJRT_DEVICES[platform], num_threads)


def plugin_environment(chosen: plugin.PjrtPlugin, platform: str, num_threads: int) -> dict[str, str | None]:
    """As `environment`, for a worker that runs on a PJRT plugin; the adapter registers it under `plugin.NAME`.

    Raises:
      BadInputError: The library between torch_xla and the plugin cannot be built.
    """
    shim.library()
    return {**_matched(plugin.NAME.upper(), num_threads), **chosen.environment}


def _matched(device: str, num_threads: int) -> dict[str, str | None]:
    return {
        "PJRT_DEVICE": device,
        "CPU_NUM_DEVICES": None,
        "NPROC": str(num_threads),
        "OMP_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        MATMUL_PRECISION_VARIABLE: "highest",
        **dict.fromkeys(_UNSET),
    }
