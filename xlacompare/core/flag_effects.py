"""What each XLA option does to the step: the cell with one option changed against the same cell with the default.

Inside one process by block pairs where the framework hands options to one compilation, else between launches. A table
of options is many verdicts: it is screening, adjusted by Benjamini and Hochberg (1995); the family is the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from xlacompare.core import comparisons, plan, results, samples, verdict, xla_options

FAMILY = "XLA options x workloads x frameworks"


def flag_effects(found: Mapping[str, samples.CellSamples], chosen: plan.Plan) -> list[results.FlagEffect]:
    """Every option against the default of its own cell, the fastest first; those without a time last."""
    made = []
    for entry in found.values():
        base = found.get(entry.cell.matched.id)
        if entry.cell.option is not None and base is not None:
            made.append(_effect(entry, base, chosen))
    return sorted(_adjusted(made), key=_rank)


def _effect(entry: samples.CellSamples, base: samples.CellSamples, chosen: plan.Plan) -> results.FlagEffect:
    text = str(entry.cell.option)
    declared = xla_options.find(text)
    mine, default = (str(side.records[0].get("optimised") or "") for side in (entry, base))
    return results.FlagEffect(
        option=text,
        note=declared.note if declared else "",
        effect=comparisons.compare(entry, base, chosen),
        status=entry.status,
        reason=entry.reason,
        same_program=mine == default if mine and default else None,
        acts_below=declared is None or declared.acts == xla_options.CODE,
    )


def _adjusted(made: list[results.FlagEffect]) -> list[results.FlagEffect]:
    judged = [found.effect.verdict for found in made if found.effect.verdict is not None]
    after = iter(verdict.benjamini_hochberg(judged, FAMILY))
    return [
        found
        if found.effect.verdict is None
        else dataclasses.replace(found, effect=dataclasses.replace(found.effect, verdict=next(after)))
        for found in made
    ]


def _rank(found: results.FlagEffect) -> tuple[bool, float]:
    judged = found.effect.verdict
    return (judged is None, 0.0 if judged is None else judged.estimate.mean)
