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
        compiles = recompiles.blocks(framework, cases.shared_step(framework, arm), arm)
    else:
        _, compiles = cases.in_own_process(framework.name, arm)
    assert compiles["planted"] > 0
    assert (compiles["before"], compiles["after"]) == (0, 0)
    assert samples_of(compiles) == [1.0, 3.0]


def samples_of(compiles):
    """Seconds of the blocks that count, of a record with these three."""
    count = len(compiles)
    blocks = {
        "series": ["main"] * count,
        "mode": ["block"] * count,
        "total_s": [1.0, 2.0, 3.0],
        "dispatch_s": [0.1] * count,
        "n": [1] * count,
        "compiles": list(compiles.values()),
        "disturbed": [False] * count,
        "visit": [0, 0, 1],
    }
    return samples.launch_samples({"blocks": blocks, "start": {"pid": 1}}).step_s.tolist()
