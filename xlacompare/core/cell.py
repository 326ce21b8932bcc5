"""A cell: one point of framework x compiler x communication x workload x strategy x mesh x dtype x transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xlacompare.core import xla_options


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a comparison; hashable, and the same text in flags, records and messages.

    Attributes:
      changed: Settings that differ from the matched run, as sorted (name, value) pairs; empty in a matched cell.
      label: "matched", "shipped", the one setting that was changed ("shipped:threads"), or the one XLA option
        ("flag:xla_cpu_enable_fast_math=true").
      communication: Communication arm (`parallel.arms`); "none" for a step on one device.
      mesh: Ranks, (1,) for one device.
      mode: Way in which the transport runs the ranks ("process", "spmd", "threads"); "" for one device.
      program: Of a replay: the framework whose program runs in this framework's XLA and client, without any Python of
        either; "" for the framework's own step.
    """

    framework: str
    compiler: str
    workload: str
    preset: str
    dtype: str
    batch_size: int
    optimizer: str
    label: str = "matched"
    changed: tuple[tuple[str, Any], ...] = ()
    communication: str = "none"
    strategy: str = "single"
    mesh: tuple[int, ...] = (1,)
    transport: str = "none"
    program: str = ""
    mode: str = ""

    @property
    def comparison(self) -> str:
        """What must be equal for two cells to be compared: everything but framework, compiler, settings and arm of
        communication; over several ranks their number and the transport are part of it.
        """
        work = f"{self.workload}/{self.preset}/{self.dtype}/batch{self.batch_size}/{self.optimizer}/{self.strategy}"
        ranks = f"/{'x'.join(map(str, self.mesh))}/{self.transport}" if self.strategy != "single" else ""
        return work + ranks

    @property
    def id(self) -> str:
        """Unique readable name inside a run."""
        replayed = f"/program of {self.program}" if self.program else ""
        arm = f"{self.mode}/{self.communication}/" if self.strategy != "single" else ""
        return f"{self.framework}/{self.compiler}/{arm}{self.comparison}/{self.label}{replayed}"

    @property
    def matched(self) -> Cell:
        """The same cell with the matched settings."""
        return dataclasses.replace(self, label="matched", changed=())

    @property
    def option(self) -> str | None:
        """The XLA option that an ablation changed, as "name=value"; None in every other cell."""
        return dict(self.changed).get(xla_options.CHANGED)

    def with_option(self, text: str) -> Cell:
        """The same cell with one XLA option changed."""
        return dataclasses.replace(self, label=f"flag:{text}", changed=((xla_options.CHANGED, text),))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        values = dataclasses.asdict(self)
        values["changed"] = dict(self.changed)
        values["mesh"] = list(self.mesh)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cell:
        """Inverse of `to_dict`."""
        known = {field.name for field in dataclasses.fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        chosen["changed"] = tuple(sorted(dict(values.get("changed", {})).items()))
        chosen["mesh"] = tuple(values.get("mesh", (1,)))
        return cls(**chosen)
