"""A PJRT plugin: one XLA build in a shared library that jax, torch_xla and the neutral runtime can all load."""

from __future__ import annotations

import dataclasses

from xlacompare.core import errors

# Our word for a platform -> what a plugin may answer to PJRT_Client_PlatformName.
PLATFORM_NAMES = {"cpu": ("cpu", "host"), "gpu": ("cuda", "rocm", "gpu", "sycl"), "tpu": ("tpu",)}


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

    def check_platform(self, platform: str) -> None:
        """Raises BadInputError where the plugin's devices are not those of the run ("cpu", "gpu" or "tpu")."""
        if self.platform in PLATFORM_NAMES[platform]:
            return
        ours = [word for word, names in PLATFORM_NAMES.items() if self.platform in names]
        change = f"give --platform={ours[0]}, or another plugin" if ours else "give a plugin of that platform"
        raise errors.BadInputError(f"the plugin {self.name} is for {self.platform}, the run for {platform}: {change}")
