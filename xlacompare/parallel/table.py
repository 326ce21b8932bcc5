"""The strategies: what each splits, what it sends, which communication arms mean something for it (DESIGN 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from xlacompare.core import errors
from xlacompare.parallel import arms


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A way to split one training step over ranks; its result is that of `single` on the same global batch.

    Attributes:
      name: Name of the flag value.
      definition: One sentence: what is split, and which collectives carry what.
      refused: Communication arm -> why it is not valid for this strategy.
      workloads: Workloads that it is defined for; empty: all.
      splits_batch: Each rank computes its rows of the batch: they must divide, and a rank's products are its share.
    """

    name: str
    definition: str
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    splits_batch: bool = True


BEFORE_PARTITIONING = (
    "in the program that is given to the compiler there is no collective yet: nothing to put another operation in the "
    "place of"
)

_LIST = (
    Strategy(
        "dp",
        "data parallel: the batch is split, parameters and optimizer state are whole on every rank; one mean of every "
        "gradient over all ranks before the update",
    ),
    Strategy(
        "dp_auto",
        "data parallel by the compiler: one program over the whole batch, whose partitioner cuts it among ranks and "
        "puts the collectives in",
        refused=dict.fromkeys(("elided", "token", "serial"), BEFORE_PARTITIONING),
    ),
    Strategy(
        "fsdp",
        "fully sharded data parallel: the batch, parameters, gradients and optimizer state are split; parameters are "
        "gathered before use, gradients reduce-scattered after",
    ),
    Strategy(
        "tp",
        "tensor parallel: each block's first product is split by columns (attention: by heads), its second by rows; "
        "one sum of activations per half block forward, one backward; the batch is whole on every rank",
        workloads=("transformer", "mlp"),
        splits_batch=False,
    ),
)
STRATEGIES: dict[str, Strategy] = {entry.name: entry for entry in _LIST}


def get(name: str) -> Strategy:
    """A strategy by name.

    Raises:
      BadInputError: There is none of this name.
    """
    if name not in STRATEGIES:
        raise errors.BadInputError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def unsupported(name: str, communication: str, workload: str) -> str | None:
    """Why no framework can run this, or None."""
    chosen = get(name)
    if communication not in arms.ARMS:
        raise errors.BadInputError(f"unknown communication arm {communication!r}; known: {', '.join(arms.ARMS)}")
    if chosen.workloads and workload not in chosen.workloads:
        return f"{name} is defined for {', '.join(chosen.workloads)}, not for {workload}"
    return chosen.refused.get(communication)
