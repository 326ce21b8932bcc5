"""torch_xla's own."""

from xlacompare.frameworks.on_torch_xla.program import capture, count

__all__ = ["capture", "count"]
