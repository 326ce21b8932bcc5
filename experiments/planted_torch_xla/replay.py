"""torch_xla's own."""

from xlacompare.frameworks.on_torch_xla.replay import prepare

__all__ = ["prepare"]
