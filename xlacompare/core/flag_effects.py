"""What each XLA option does to the step: the cell with one option changed against the same cell with the default.

Inside one process by block pairs where the framework hands options to one compilation, else between launches. A table
of options is many verdicts: it is screening, adjusted by Benjamini and Hochberg (1995); the family is the report. An
option that XLA's own dump shows at the default's value was not ablated, and is no member of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from xlacompare.core import comparisons, plan, results, samples, verdict, xla_dump, xla_options

FAMILY = "XLA options x workloads x frameworks"
NOT_ABLATED = "not ablated: XLA compiled with the value of the default, which has it already or overrules it"


def flag_effects(found: Mapping[str, samples.CellSamples], chosen: plan.Plan) -> list[results.FlagEffect]:
    """Every option against the default of its own cell, the largest effect first; those without a time last."""
    made = []
    for entry in found.values():
        base = found.get(entry.cell.matched.id)
        if entry.cell.option is not None and base is not None:
            made.append(_effect(entry, base, chosen))
    return sorted(_adjusted(made), key=_rank)


def _effect(entry: samples.CellSamples, base: samples.CellSamples, chosen: plan.Plan) -> results.FlagEffect:
    text = str(entry.cell.option)
    declared = xla_options.find(text)
    mine, default = (xla_dump.Evidence.from_dict(side.records[0].get("evidence")) for side in (entry, base))
    in_force = xla_dump.in_force(*xla_options.split(text), mine, default)
    effect = comparisons.compare(entry, base, chosen)
    if in_force is False and effect.verdict is not None:
        effect = results.Comparison(effect.a, effect.b, effect.how, problem=NOT_ABLATED)
    return results.FlagEffect(
        option=text,
        note=declared.note if declared else "",
        since=declared.since if declared else "",
        effect=effect,
        status=entry.status,
        reason=entry.reason,
        in_force=in_force,
        same_program=xla_dump.same(mine.program, default.program),
        same_code=xla_dump.same(mine.code, default.code),
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
    return (judged is None, 0.0 if judged is None else -abs(judged.estimate.mean))
