"""Known pathologies of parallel steps: each finding has its evidence from the record and the usual remedy.

No finding without evidence: what was not measured or counted is not guessed. Thresholds stand beside their rules; where
an interval is known, its near end must pass them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xlacompare.core import effects, estimates, units

HOST_BOUND = 0.5  # share of a step without communication that the dispatching thread computes
NOT_HIDDEN = 0.1  # a hidden share below it is none
LARGE_WIRE = 0.1  # of the step: less is not worth hiding
LATENCY_BOUND = 0.5  # of the wire
STRAGGLING = 0.05  # of the step, that every other rank waits
MIN_UNCOMBINED, SMALL_BYTES = 8, 1 << 20  # so many operations of one kind, each less than this
COMBINABLE = ("dp",)  # strategies whose collectives of one kind do not depend on each other


@dataclasses.dataclass(frozen=True)
class Finding:
    """One pathology of one variant of a framework.

    Attributes:
      kind: Short name: "host-bound", "recompiling", "not overlapped", ...
      framework, variant, comparison: Where.
      evidence: What the record shows, with figures.
      remedy: What usually helps.
    """

    kind: str
    framework: str
    variant: str
    comparison: str
    evidence: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of one variant of a framework; what is not known stays at its default, and gives no finding.

    Attributes:
      strategy, num_ranks: Of the cell.
      num_cores: That the ranks share.
      step_s: Mean seconds a step of `real`.
      effects: Name -> estimate, of those that are not withheld.
      ops: Census of `real`: `core.census.LoweredCollective` as dicts.
      census_findings: What the census says ran instead of what was asked for.
      host_share: CPU time of the dispatching thread over step time, in `elided`.
      asynchronous: Whether another thread or device does the work.
      num_blocks, num_compiled: Of `real`: blocks, and those during which something was compiled.
      oversubscribed: More ranks than cores.
      waiting: What each rank has less to do than the slowest one, [ranks].
    """

    framework: str
    variant: str
    comparison: str
    strategy: str = ""
    num_ranks: int = 0
    num_cores: int | None = None
    step_s: float | None = None
    effects: Mapping[str, estimates.Estimate] = dataclasses.field(default_factory=dict)
    ops: Sequence[Mapping[str, Any]] = ()
    census_findings: Sequence[str] = ()
    host_share: float | None = None
    asynchronous: bool = False
    num_blocks: int = 0
    num_compiled: int = 0
    oversubscribed: bool = False
    waiting: Sequence[estimates.Estimate] = ()


def find(known: Evidence) -> list[Finding]:
    """The findings of one variant, those that spoil the figures themselves first."""
    made = []
    for kind, rule, remedy in _RULES:
        made += [
            Finding(kind, known.framework, known.variant, known.comparison, evidence, remedy)
            for evidence in rule(known)
        ]
    return made


def _starved(known: Evidence) -> Iterator[str]:
    if known.oversubscribed:
        cores = "" if known.num_cores is None else f" on {known.num_cores} cores"
        yield f"{known.num_ranks} ranks{cores}: they take turns, and the times are the scheduler's"


def _recompiling(known: Evidence) -> Iterator[str]:
    if known.num_compiled:
        yield f"something was compiled during {known.num_compiled} of {known.num_blocks} timed blocks"


def _host_bound(known: Evidence) -> Iterator[str]:
    if known.asynchronous and known.host_share is not None and known.host_share >= HOST_BOUND:
        yield f"the dispatching thread computes during {known.host_share:.0%} of a step without communication"


def _not_overlapped(known: Evidence) -> Iterator[str]:
    share, wire = known.effects.get(effects.SHARE), known.effects.get(effects.WIRE)
    if share is None or wire is None or not known.step_s:
        return
    if share.high < NOT_HIDDEN and wire.low > LARGE_WIRE * known.step_s:
        ends = f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"
        of_step = units.format_duration(known.step_s)
        yield f"hidden share {ends} of {units.format_duration(wire.mean)} on the wire, in a step of {of_step}"


def _contention(known: Evidence) -> Iterator[str]:
    found = known.effects.get(effects.CONTENTION)
    if found is not None and found.low > 0:
        yield f"real takes {_interval(found)} more than serial: overlap costs more than it saves"


def _latency_bound(known: Evidence) -> Iterator[str]:
    latency, wire = known.effects.get(effects.WIRE_LATENCY), known.effects.get(effects.WIRE)
    if latency is None or wire is None or not wire.low > 0 or not known.step_s or wire.low < LARGE_WIRE * known.step_s:
        return
    if latency.low > LATENCY_BOUND * wire.high:
        count = f" ({len(known.ops)} collectives a step)" if known.ops else ""
        yield (
            f"on one element each the collectives take {units.format_duration(latency.mean)} of "
            f"{units.format_duration(wire.mean)}{count}"
        )


def _uncombined(known: Evidence) -> Iterator[str]:
    if known.strategy not in COMBINABLE:
        return
    kinds: dict[tuple[str, str], list[int]] = {}
    for op in known.ops:
        kinds.setdefault((str(op["opcode"]), str(op["dtype"])), []).append(int(op["operand_bytes"]))
    for (opcode, dtype), sizes in kinds.items():
        mean = sum(sizes) / len(sizes)
        if len(sizes) >= MIN_UNCOMBINED and mean < SMALL_BYTES:
            yield f"{len(sizes)} times {opcode} of {dtype} in a step, {units.format_bytes(mean)} each on average"


def _promoted(known: Evidence) -> Iterator[str]:
    wide: dict[tuple[str, str, str], int] = {}
    for op in known.ops:
        if op.get("promoted_from"):
            key = (str(op["opcode"]), str(op["promoted_from"]), str(op["dtype"]))
            wide[key] = wide.get(key, 0) + 1
    for (opcode, asked, ran), count in wide.items():
        yield f"{count} times {opcode}: {asked} travels as {ran}"
    if not wide:
        yield from (text for text in known.census_findings if text.startswith("promoted"))


def _padded_gather(known: Evidence) -> Iterator[str]:
    names = ("all_gather", "all-gather")
    instead = [op for op in known.ops if op["opcode"] == "all-reduce" and any(n in _source(op) for n in names)]
    if instead:
        total = sum(int(op["operand_bytes"]) for op in instead)
        yield f"{len(instead)} all-reduces stand where all_gather was asked for ({units.format_bytes(total)} in all)"
    else:
        yield from (text for text in known.census_findings if "all_gather" in text and "pad + all-reduce" in text)


def _source(op: Mapping[str, Any]) -> str:
    return str(op.get("source") or "").lower()


def _straggler(known: Evidence) -> Iterator[str]:
    if len(known.waiting) < 2 or not known.step_s:
        return
    slowest = min(range(len(known.waiting)), key=lambda rank: known.waiting[rank].mean)
    others = [wait for rank, wait in enumerate(known.waiting) if rank != slowest]
    if all(wait.low > STRAGGLING * known.step_s for wait in others):
        least = min(others, key=lambda wait: wait.mean)
        yield f"rank {slowest} computes at least {_interval(least)} a step longer than every other rank"


def _interval(found: estimates.Estimate) -> str:
    return units.format_duration_interval(found.mean, found.low, found.high)


_RULES: tuple[tuple[str, Callable[[Evidence], Iterator[str]], str], ...] = (
    ("ranks starved of cores", _starved, "fewer ranks, or cores of their own for each; do not carry these times over"),
    ("recompiling", _recompiling, "find the shape or Python value that changes from step to step"),
    (
        "straggler",
        _straggler,
        "look at what else runs on that rank's cores, at its clock, at its share of the work",
    ),
    ("host-bound", _host_bound, "compile more of the step in one program; larger steps; fewer operations dispatched"),
    (
        "not overlapped",
        _not_overlapped,
        "buckets, asynchronous collectives or the latency-hiding scheduler, so that they start before compute ends",
    ),
    ("contention", _contention, "leave cores or channels to the communication, or run it after the compute"),
    ("latency-bound", _latency_bound, "combine collectives: larger buckets, or a higher combine threshold"),
    ("uncombined", _uncombined, "larger buckets (DDP: bucket_cap_mb), or XLA's all-reduce combine threshold"),
    ("promoted on the wire", _promoted, "communicate in the narrow type; see which pass widens it (program census)"),
    (
        "all_gather as pad + all-reduce",
        _padded_gather,
        "torch_xla: pin_layout=False (pytorch/xla#3568); an all-reduce moves twice the bytes",
    ),
)
KINDS = tuple(kind for kind, _, _ in _RULES)
