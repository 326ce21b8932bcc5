"""jax's own."""

from xlacompare.frameworks.on_jax.program import capture, count

__all__ = ["capture", "count"]
