"""Arms of native torch, as the parent sees them."""

from __future__ import annotations

from xlacompare.frameworks.on_torch.arms import (  # noqa: F401
    ARMS,
    CACHE_VARIABLES,
    GATE_ARM,
    LACKS,
    SETTINGS,
    environment,
)
