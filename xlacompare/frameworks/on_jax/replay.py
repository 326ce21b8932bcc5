"""Captured programs, of whatever framework, in the XLA and on the device of this process. Tried with jaxlib 0.10.2."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jaxlib
import numpy as np
from jaxlib import _jax

from xlacompare.core import errors, plugin, program

_COMPILED: dict[str, Any] = {}  # fingerprint -> executable: a process compiles a program once


@dataclasses.dataclass
class Replay:
    """A `graph.runnable.Runnable`: the executable is called past jit, and nothing is donated."""

    client: str
    compile_s: float
    _executable: Any
    _buffers: list[jax.Array]
    _last: list[jax.Array] = dataclasses.field(default_factory=list)

    def dispatch(self) -> None:
        """Starts one run on the same inputs."""
        results = self._executable.execute_sharded(self._buffers).disassemble_into_single_device_arrays()
        self._last = [parts[0] for parts in results]

    def synchronize(self) -> None:
        """Waits for the last run; a device runs its programs in order."""
        jax.block_until_ready(self._last)

    def results(self) -> list[np.ndarray]:
        """Outputs of the last run."""
        return [np.asarray(item) for item in self._last]

    def close(self) -> None:
        """Frees everything."""
        self._executable, self._buffers, self._last = None, [], []


def prepare(captured: program.Program, computation: bytes) -> Replay:
    """Compiles a program's StableHLO and places its inputs; `computation` is for those who cannot read StableHLO.

    Raises:
      UnsupportedError: This XLA does not compile it.
    """
    device, client = jax.devices()[0], plugin.client_name(f"jaxlib {jaxlib.__version__}")
    with jax.enable_x64(True):  # else 64-bit inputs are cut
        # Twice: the CPU client borrows NumPy's memory where it is aligned, the copy from device to device does not.
        placed = jax.device_put(captured.arguments, device)
        buffers = jax.block_until_ready(jax.device_put(placed, device, may_alias=False))
    begin, key = time.perf_counter(), captured.fingerprint
    try:
        if key not in _COMPILED:
            source = program.without_donation(captured)
            _COMPILED[key] = device.client.compile_and_load(source, [device], _jax.CompileOptions())
    except jax.errors.JaxRuntimeError as error:
        line = str(error).splitlines()[0][:200]
        raise errors.UnsupportedError(f"{captured.framework}'s program does not compile in {client}: {line}") from None
    return Replay(client, time.perf_counter() - begin, _COMPILED[key], buffers)
