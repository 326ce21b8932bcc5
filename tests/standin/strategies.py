"""Strategies of the stand-in."""

from __future__ import annotations

from xlacompare.frameworks import strategy
from xlacompare.parallel import arms, request, table

STRATEGIES: dict[str, strategy.StrategySpec] = {
    "dp": strategy.StrategySpec(
        name="dp",
        definition="NumPy on each rank's rows, gradients exchanged through rank 0",
        modes={"gloo": ("process",), "inprocess": ("spmd",)},
        compilers={"eager": "the NumPy tape", "compiled": "the NumPy tape under another name"},
        communication=dict.fromkeys(arms.ARMS, "NumPy"),
        settings={"bucket_mb": 25},
    ),
}
LACKS: dict[str, str] = {"fsdp": "the stand-in shards nothing"}


def unsupported(asked: request.Request, transport: str, mode: str, workload: str) -> str | None:
    """The stand-in knows no convolutions over ranks, so that a test sees a reason."""
    if workload == "convnet":
        return "the stand-in has no batch norm over ranks"
    return table.unsupported(asked.strategy, asked.communication, workload)
