"""A recompile inside a timed block is noticed, in every arm of every framework, and its block is no sample."""

from __future__ import annotations

import pytest

from tests.frameworks import cases, recompiles
from xlacompare import frameworks
from xlacompare.core import samples


def arm_of_every_framework():
    return [(name, arm) for name in frameworks.FRAMEWORKS for arm in frameworks.arms(name).ARMS]


EVERY_ARM = pytest.mark.parametrize(("framework_name", "arm"), arm_of_every_framework())


@EVERY_ARM
def test_a_planted_recompile_is_noticed(framework, arm):
    if arm in cases.shared_arms(framework.name):
        blocks = recompiles.blocks(framework, cases.shared_step(framework, arm), arm)
    else:
        _, blocks = cases.in_own_process(framework.name, arm)
    before, planted, after = (block["compiles"] for block in blocks)
    assert planted > 0
    assert (before, after) == (0, 0)
    assert samples_of(blocks).tolist() == [
        blocks[0]["total_s"] / recompiles.STEPS,
        blocks[2]["total_s"] / recompiles.STEPS,
    ]


def samples_of(blocks):
    """Seconds a step of the blocks that count, of a record with these."""
    columns = {key: [block[key] for block in blocks] for key in blocks[0]}
    columns |= {"series": ["main"] * 3, "disturbed": [False] * 3, "visit": [0, 0, 1]}
    return samples.launch_samples({"blocks": columns, "start": {"pid": 1}}).step_s
