"""torch_xla on a PJRT plugin that is not its own. Tried with torch_xla 2.9.0 and plugins of PJRT API 0.81 and 0.115."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_xla.experimental import plugins

from xlacompare.core import plugin
from xlacompare.frameworks.on_torch_xla import shim


class DevicePlugin(plugins.DevicePlugin):
    """What torch_xla asks of a plugin; the library is the shim, which loads the plugin itself."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._options = dict(options)

    def library_path(self) -> str:
        """The library that torch_xla loads."""
        return str(shim.library())

    def client_create_options(self) -> dict[str, Any]:
        """Options of the plugin's client."""
        return self._options


def register(options: Mapping[str, Any]) -> None:
    """Makes the plugin a device that PJRT_DEVICE can name. Before the first use of a device."""
    plugins.use_dynamic_plugins()
    plugins.register_plugin(plugin.NAME.upper(), DevicePlugin(options))
