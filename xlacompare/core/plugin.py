"""A PJRT plugin: one XLA build in a shared library that jax, torch_xla and the neutral runtime can all load."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from xlacompare.core import errors

PATH_VARIABLE = "XLACOMPARE_PJRT_PLUGIN"  # of a worker: the plugin's library; also read by torch_xla's shim.c
OPTIONS_VARIABLE = "XLACOMPARE_PJRT_OPTIONS"  # of a worker: options of its client, as JSON
NAME_VARIABLE = "XLACOMPARE_PJRT_NAME"  # of a worker: what the plugin's client is called
VARIABLES = (PATH_VARIABLE, OPTIONS_VARIABLE, NAME_VARIABLE)
NAME = "xlacompare"  # under which a worker registers it: JAX_PLATFORMS, PJRT_DEVICE
# A CPU plugin starts with four devices. torch_xla compiles every program for as many replicas as there are devices and
# launches it on one; a plugin of API 0.115 lets a launch wait for all replicas of the one before, so the second launch
# never ends (0.81 runs on). And one device is what a cell is about.
CPU_OPTIONS = {"cpu_device_count": 1}
# Our word for a platform -> what a plugin may answer to PJRT_Client_PlatformName.
PLATFORM_NAMES = {"cpu": ("cpu", "host"), "gpu": ("cuda", "rocm", "gpu", "sycl"), "tpu": ("tpu",)}


def from_environment() -> tuple[str, dict[str, Any]] | None:
    """Path of the plugin that this worker shall run on, and its client's options; None without one."""
    path = os.environ.get(PATH_VARIABLE)
    return (path, json.loads(os.environ[OPTIONS_VARIABLE])) if path else None


def client_name(own: str) -> str:
    """What the client of this worker is called: its plugin, or the framework's own."""
    return os.environ.get(NAME_VARIABLE) or own


@dataclasses.dataclass(frozen=True)
class PjrtPlugin:
    """One plugin, as it goes into the records.

    Attributes:
      name: "xla-cpu-pjrt 0.0.1" for an installed package, else the file's name.
      path: Of the shared library.
      sha256: First 12 hexadecimal digits of the file's hash: two files of one name are two XLA builds.
      api_version: Of the PJRT C API that it speaks, such as "0.81".
      platform: What its client says: "cpu", "cuda", "tpu".
    """

    name: str
    path: str
    sha256: str
    api_version: str
    platform: str

    @property
    def identity(self) -> str:
        """What must be equal for two records to be of one compiler and runtime; where the file lies is not in it."""
        return f"{self.name}, PJRT API {self.api_version}, sha256 {self.sha256}"

    @property
    def client(self) -> str:
        """What a program's client is called that runs on it."""
        return f"{self.name} (PJRT API {self.api_version})"

    @property
    def environment(self) -> dict[str, str | None]:
        """Variables of a worker, from which its framework registers the plugin (`from_environment`)."""
        options = CPU_OPTIONS if self.platform in PLATFORM_NAMES["cpu"] else {}
        return {PATH_VARIABLE: self.path, OPTIONS_VARIABLE: json.dumps(options), NAME_VARIABLE: self.client}

    def check_platform(self, platform: str) -> None:
        """Raises BadInputError where the plugin's devices are not those of the run ("cpu", "gpu" or "tpu")."""
        if self.platform in PLATFORM_NAMES[platform]:
            return
        ours = [word for word, names in PLATFORM_NAMES.items() if self.platform in names]
        change = f"give --platform={ours[0]}, or another plugin" if ours else "give a plugin of that platform"
        raise errors.BadInputError(f"the plugin {self.name} is for {self.platform}, the run for {platform}: {change}")
