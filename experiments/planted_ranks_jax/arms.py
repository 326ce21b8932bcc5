"""jax's own."""

from __future__ import annotations

from xlacompare.frameworks.on_jax import arms

ARMS, LACKS, GATE_ARM, SETTINGS = arms.ARMS, arms.LACKS, arms.GATE_ARM, arms.SETTINGS
CACHE_VARIABLES, environment = arms.CACHE_VARIABLES, arms.environment
