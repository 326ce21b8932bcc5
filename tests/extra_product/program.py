"""Native torch's census."""

from __future__ import annotations

from xlacompare.frameworks.on_torch.program import capture, count  # noqa: F401
