"""jax's arms, and the setting "transposes": so many pairs of a transpose and an addition in every step."""

from __future__ import annotations

from xlacompare.frameworks import interface
from xlacompare.frameworks.on_jax import arms

ARMS, LACKS, GATE_ARM, REPLAY_ARM = arms.ARMS, arms.LACKS, arms.GATE_ARM, arms.REPLAY_ARM
CACHE_VARIABLES = arms.CACHE_VARIABLES
environment = arms.environment
TRANSPOSES = "transposes"
SETTINGS = {**arms.SETTINGS, TRANSPOSES: interface.Setting(TRANSPOSES, matched=0, shipped=0, where="build")}
