"""jax's own."""

from __future__ import annotations

from xlacompare.frameworks.on_jax.collectives import connect

__all__ = ["connect"]
