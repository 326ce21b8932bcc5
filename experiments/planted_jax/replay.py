"""jax's own."""

from xlacompare.frameworks.on_jax.replay import prepare

__all__ = ["prepare"]
