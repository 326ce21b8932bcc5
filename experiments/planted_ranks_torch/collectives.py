"""torch's own."""

from __future__ import annotations

from xlacompare.frameworks.on_torch.collectives import connect

__all__ = ["connect"]
