"""torch's own."""

from __future__ import annotations

from xlacompare.frameworks.on_torch import transports

TRANSPORTS, LACKS = transports.TRANSPORTS, transports.LACKS
unsupported, environment = transports.unsupported, transports.environment
