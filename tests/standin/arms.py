"""Arms of the stand-in."""

from __future__ import annotations

from xlacompare.frameworks import interface

ARMS: dict[str, interface.ArmSpec] = {
    "eager": interface.ArmSpec("eager", "the NumPy tape", "one operation"),
    "compiled": interface.ArmSpec("compiled", "the NumPy tape under another name", "one operation"),
    "nofusion": interface.ArmSpec(
        "nofusion", "a process of its own", "one operation", {"STANDIN_FLAGS": "--nofusion"}, expert=True
    ),
}
GATE_ARM = "eager"
REPLAY_ARM = "compiled"  # but without replay.py: nothing that it could replay
LACKS: dict[str, str] = {"captured": "NumPy captures nothing"}
SETTINGS: dict[str, interface.Setting] = {
    "matmul_precision": interface.Setting("matmul_precision", "highest", "highest", "build"),
    "twice": interface.Setting("twice", False, True, "build", note="does the step's work twice"),
}
CACHE_VARIABLES: tuple[str, ...] = ()


def environment(platform: str, num_threads: int) -> dict[str, str | None]:
    """Variables of a matched run."""
    return {"OMP_NUM_THREADS": str(num_threads), "OPENBLAS_NUM_THREADS": str(num_threads)}
