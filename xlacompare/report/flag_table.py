"""The ranked table of --ablate_flags: each XLA option, its effect on the step, whether the program changed at all."""

from __future__ import annotations

import itertools
import math

from xlacompare.core import plan, results, units, verdict, xla_options
from xlacompare.report import data, words
from xlacompare.report import page as pages

OPTION_WIDTH, EFFECT_WIDTH = 44, 22
HOW = {"blocks": "block pairs in one process", "launches": "between launches, in processes of their own"}
CHANGED, SAME = "program changed", "no change in the program"
SAME_HLO = "no change in the program (HLO); acts below it"
OTHER_CODE = "no change in the program (HLO), other code of its kernels"
SAME_CODE = "no change in the program nor in the code of its kernels"
NOT_SHOWN = "not shown to be in force by anything"


def write(page: pages.Page, summary: results.Summary) -> None:
    """Writes the table; nothing where no option was ablated."""
    if not summary.flags:
        return
    page.heading("XLA options against the default: step time [95% interval], - is faster; the largest first")
    called = data.names(summary.cells)
    ranked = sorted(summary.flags, key=_group)  # stable: the order within a group stays
    for key, members in itertools.groupby(ranked, key=_group):
        found = list(members)
        how = ", ".join(dict.fromkeys(HOW[f.effect.how] for f in found if f.effect.verdict is not None))
        page.line(f"{key[0]} {key[1]}, {called[key[2]]}" + (f": {how}" if how else ""), "bold")
        for effect in found:
            _row(page, effect)
    judged = [found.effect.verdict for found in summary.flags if found.effect.verdict is not None]
    if judged:
        page.line(f"screening; family: {judged[0].family}; in brackets what would decide", "dim")
        if any(result.busy for result in summary.cells if result.cell.option is not None):
            page.line("machine busy during most of it: small effects here are not to be trusted", "red")


def _group(found: results.FlagEffect) -> tuple[str, str, str]:
    cell = found.effect.b
    return (cell.framework, cell.compiler, cell.comparison)


def _row(page: pages.Page, found: results.FlagEffect) -> None:
    judged = found.effect.verdict
    if judged is None:
        page.line(f"{found.option}  {why_not(found)}", "red" if found.status in data.LOST else "dim", indent=4)
        return
    name = found.option
    if len(name) > OPTION_WIDTH:
        page.line(name, words.STYLES[judged.kind], indent=4)
        name = ""
    text = f"{name:<{OPTION_WIDTH}} {percent(judged):<{EFFECT_WIDTH}} {said(judged)}"
    page.verbatim(" " * 4 + text, words.STYLES[judged.kind])
    beside = "; ".join(filter(None, (found.note, program(found), shown(found))))
    if beside:
        page.line(beside, "dim", indent=8)


def why_not(found: results.FlagEffect) -> str:
    """Why an option has no effect to show."""
    since = f" (since: {found.since})" if found.since and found.reason.startswith(xla_options.UNKNOWN) else ""
    return f"{found.status}: {found.reason}{since}" if found.status != "ok" else found.effect.problem


def program(found: results.FlagEffect) -> str:
    """Whether the option changed the compiled program; "" where that is not known."""
    if found.same_program is None:
        return ""
    if not found.same_program:
        return CHANGED
    if found.same_code is not None:
        return SAME_CODE if found.same_code else OTHER_CODE
    return SAME_HLO if found.acts_below else SAME


def shown(found: results.FlagEffect) -> str:
    """That nothing shows the option to be in force; "" where something does."""
    return NOT_SHOWN if found.in_force is None else ""


def percent(judged: verdict.Verdict) -> str:
    """The effect on the step time, such as "+12.3% [+11.0, +13.7]"; an end that is not 0 is not printed as 0."""
    values = [100 * (ratio - 1) for ratio in judged.estimate.ratio()]
    places = 1 if max(map(abs, values)) < 100 else 0
    while places < 5 and any(end != 0 and round(end, places) == 0 for end in values[1:]):
        places += 1
    mean, low, high = (f"{value:+.{places}f}" if math.isfinite(value) else "inf" for value in values)
    return f"{mean}% [{low}, {high}]{' wide' if ' wide' in units.format_ratio(*judged.estimate.ratio()) else ''}"


def said(judged: verdict.Verdict) -> str:
    """The verdict in a few words."""
    if judged.kind == "no_difference":
        return f"no difference larger than {units.format_percent(judged.margin)}"
    if judged.kind == "difference":
        word = "slower" if judged.estimate.mean > 0 else "faster"
        return word + (f" (negligible: within {units.format_percent(judged.margin)})" if judged.negligible else "")
    if judged.p_value <= plan.OVERALL_ALPHA:
        return "inconclusive (not in its family)"
    if judged.launches_needed is None:
        return "inconclusive"
    return f"inconclusive ({judged.launches_needed} {judged.unit})"
