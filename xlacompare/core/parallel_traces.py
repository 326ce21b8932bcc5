"""Traces that the records of a parallel run hold, beside the effects of its arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlacompare.core import claims, effects, estimates, second_opinion, timeline
from xlacompare.core import parallel_results as results
from xlacompare.core import parallel_samples as samples


def of_world(
    world: samples.World, launches: Sequence[effects.Launch], found: Mapping[str, Sequence[claims.Effect]]
) -> dict[str, results.Traced]:
    """What the traces of each variant's `real` say, by variant; a variant that was not traced is not there.

    Args:
      world: With its records.
      launches: Its times.
      found: Variant -> effects of its arms; those that a check withheld are not compared.
    """
    made = {}
    for variant in world.variants:
        arm = world.arms.get((variant, effects.REAL))
        kept = [record["profile"] for record in arm.records if record.get("profile")] if arm is not None else []
        if kept:
            known = {effect.name: effect.estimate for effect in found.get(variant, ()) if effect.versus == ""}
            made[variant] = _of_variant(kept, known, _step_s(launches, variant))
    return made


def _of_variant(
    kept: Sequence[Mapping[str, Any]], known: Mapping[str, estimates.Estimate | None], step_s: float | None
) -> results.Traced:
    folders = tuple(dict.fromkeys(profile["folder"] for profile in kept))
    traced = [[timeline.Totals.from_dict(step) for step in profile["steps"]] for profile in kept if profile["steps"]]
    reasons = tuple(dict.fromkeys(profile["reason"] for profile in kept if profile["reason"]))
    if not traced or step_s is None:
        return results.Traced(None, folders, reasons or ("`real` has no time to set the traces beside",))
    notes = [note for profile in kept for note in profile["notes"]]
    sides = known.get(effects.EXPOSED), known.get(effects.HIDDEN)
    return results.Traced(second_opinion.compare(traced, *sides, step_s, notes), folders, reasons)


def _step_s(launches: Sequence[effects.Launch], variant: str) -> float | None:
    times = [launch.arms[variant, effects.REAL] for launch in launches if (variant, effects.REAL) in launch.arms]
    return float(np.mean([values.mean() for values in times])) if times else None
