"""Any PJRT plugin as a neutral runtime, through pypjrt: a captured program without a framework, in another XLA build.

Runs in the graph's child process, one child per plugin. Tried with pypjrt 0.1.1 and plugins of PJRT API 0.81 and 0.115.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pypjrt
from pypjrt import client as clients
from pypjrt import errors as pypjrt_errors
from pypjrt import typing as types

from xlacompare.core import errors, plugin, program, program_values
from xlacompare.graph import parsing, portable, program_file, runtime

API_MAJOR = 0
DTYPES = {item.name: item.code for item in types.ALL}  # XLA's names: "f32", "pred"
POINTER = ctypes.c_void_p


def load(path: str) -> pypjrt.Plugin:
    """Loads a plugin and checks that it is one.

    Raises:
      BadInputError: Not a shared library, no GetPjrtApi in it, or a PJRT API of another major version.
    """
    name = pathlib.Path(path).name
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise errors.BadInputError(
            f"{path} cannot be loaded: {str(error).splitlines()[0][:200]}; it must be a shared library for this machine"
        ) from None
    try:
        get = library.GetPjrtApi
    except AttributeError:
        raise errors.BadInputError(
            f"{name} has no symbol GetPjrtApi: it is a shared library, but no PJRT plugin; give the plugin's library"
        ) from None
    get.restype = POINTER
    api = get()
    if not api:
        raise errors.BadInputError(f"{name}: GetPjrtApi gave nothing: the plugin refuses to start; see its own log")
    major, minor = _version(api)
    if major != API_MAJOR:
        raise errors.BadInputError(
            f"{name} speaks PJRT API {major}.{minor}, xlacompare {API_MAJOR}.x: take a plugin built with that version"
        )
    with told(name):
        return pypjrt.Plugin(path)


def _version(api: int) -> tuple[int, int]:
    """Major and minor from the head of PJRT_Api: size, extensions, {size, extensions, major, minor}, 8 bytes each."""
    first = api + 4 * ctypes.sizeof(POINTER)
    return ctypes.c_int.from_address(first).value, ctypes.c_int.from_address(first + ctypes.sizeof(ctypes.c_int)).value


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """What the plugin refuses becomes one line."""
    try:
        yield
    except pypjrt_errors.PjrtError as error:
        message = " ".join(str(error).split())[:300]
        raise errors.BadInputError(f"{name} refused: {message}") from None


def facts(path: str) -> dict[str, Any]:
    """Versions and platform of a plugin; starts its client.

    Returns:
      {"api_version": "0.81", "platform": "cpu", "stablehlo": newest version that it reads, or ""}.

    Raises:
      BadInputError: It is no plugin, or its client does not start.
    """
    library, made = load(path), started(path)
    with told(pathlib.Path(path).name):
        return {
            "api_version": ".".join(map(str, library.api_version)),
            "platform": made.platform_name.lower(),
            "stablehlo": ".".join(map(str, _newest(library) or ())),
        }


def _newest(library: pypjrt.Plugin) -> tuple[int, ...] | None:
    known = library.stablehlo_version_range
    return None if known is None else tuple(known[1])


@functools.cache
def started(path: str) -> pypjrt.Client:
    """The plugin's client of this process: one, as a framework has one, with one set of threads for all programs."""
    library = load(path)
    with told(pathlib.Path(path).name):
        made = pypjrt.Client.create(library)
        if made.platform_name.lower() in plugin.PLATFORM_NAMES["cpu"]:
            made.close()
            made = pypjrt.Client.create(library, options=plugin.CPU_OPTIONS)
        return made


@dataclasses.dataclass
class PluginRunnable:
    """A program in a plugin's client, see `runnable.Runnable`.

    Attributes:
      library, executable: Of pypjrt.
      buffers: Inputs on the device, in call order.
      outputs: Types of the results.
    """

    client: str
    compile_s: float
    library: pypjrt.Plugin
    executable: Any
    buffers: list[Any]
    outputs: tuple[program.Tensor, ...]
    _last: list[Any] = dataclasses.field(default_factory=list)
    _pending: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._row = (POINTER * len(self.buffers))(*[item.address for item in self.buffers])
        self._rows = (POINTER * 1)(ctypes.cast(self._row, POINTER))
        self._options = self.library.args("PJRT_ExecuteOptions")

    def dispatch(self) -> None:
        """Starts one run. pypjrt's own call waits for its end; this is the same C call without the wait."""
        count = self.executable.num_outputs
        made, events = (POINTER * count)(), (POINTER * 1)()
        lists = (POINTER * 1)(ctypes.cast(made, POINTER))
        arguments = self.library.args(
            "PJRT_LoadedExecutable_Execute_Args",
            executable=self.executable.address,
            options=ctypes.addressof(self._options),
            argument_lists=ctypes.cast(self._rows, POINTER),
            num_devices=1,
            num_args=len(self.buffers),
            output_lists=ctypes.cast(lists, POINTER),
            device_complete_events=ctypes.cast(events, POINTER),
        )
        with told(self.client):
            self.library.call("PJRT_LoadedExecutable_Execute", arguments)
            self._drop()
        self._last = [clients.Buffer(self.library, made[place]) for place in range(count)]
        self._pending.append(clients.Event(self.library, events[0]))

    def _drop(self) -> None:
        last, self._last = self._last, []
        for item in last:
            item.close()

    def synchronize(self) -> None:
        """Waits for every run: nothing in the PJRT API says that a device runs its programs in order."""
        pending, self._pending = self._pending, []
        with told(self.client):
            for event in pending:
                event.consume()

    def results(self) -> list[np.ndarray]:
        """Outputs of the last run, in the types that the summary describes."""
        self.synchronize()
        with told(self.client):
            found = [np.frombuffer(item.to_host(), dtype=np.uint8) for item in self._last]
        return [_typed(data, item) for data, item in zip(found, self.outputs, strict=True)]

    def close(self) -> None:
        """Frees everything; the plugin stays loaded, and its client running."""
        if self.executable is None:
            return
        self.synchronize()
        self._drop()
        for item in self.buffers:
            item.close()
        self.executable.close()
        self.executable, self.buffers = None, []


def _typed(data: np.ndarray, item: program.Tensor) -> np.ndarray:
    wanted = np.dtype(item.dtype)
    if data.nbytes != wanted.itemsize * int(np.prod(item.shape)):
        raise errors.BadInputError(
            f"output {item.name!r} has {data.nbytes} bytes, {item.dtype}{list(item.shape)} is described: capture again"
        )
    return data.view(wanted).reshape(item.shape)


def prepare(captured: program.Program, path: str, label: str) -> PluginRunnable:
    """Compiles a program in a plugin's client and places its inputs.

    Args:
      captured: The program.
      path: The plugin's library.
      label: What the plugin is called, "xla-cpu-pjrt 0.0.1".

    Raises:
      BadInputError: Not StableHLO, bytecode that is damaged or too new, inputs that do not fit, or no such plugin.
    """
    program_values.check(captured.inputs, captured.arguments)
    runtime.check_fits(captured.bytecode, captured.inputs)
    library = load(path)
    name = f"{label} (PJRT API {'.'.join(map(str, library.api_version))})"
    source = portable.bytecode(captured, _newest(library))
    made = started(path)
    with told(name):
        begin = time.perf_counter()
        executable = made.compile(source)
        compile_s = time.perf_counter() - begin
        with made.device() as device:
            buffers = [
                made.buffer_from_host(
                    np.ascontiguousarray(array), DTYPES[parsing.NAMES[item.dtype]], array.shape, device
                )
                for item, array in zip(captured.inputs, captured.arguments, strict=True)
            ]
    return PluginRunnable(name, compile_s, library, executable, buffers, captured.outputs)


def run(folder: str, runs: int, path: str, label: str) -> dict[str, Any]:
    """`runtime.run` in a plugin's client."""
    captured = program_file.load(pathlib.Path(folder))
    made = prepare(captured, path, label)
    found = runtime.outcome(captured, made, runs)
    made.close()
    return found
