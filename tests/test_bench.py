"""A built cell inside a worker, on the stand-in: what its memory means."""

from __future__ import annotations

import json
import sys

import pytest

# Two cells in one process, built in the order of the arguments; the adapter keeps 256 MiB from its first build on.
CODE = """
import json, sys
from xlacompare import frameworks
from xlacompare.core import cell
from xlacompare.launch import bench
from xlacompare.workloads import archive, load_workload, oracle

loaded = frameworks.load_framework("standin")
benches = {}
for size in map(int, sys.argv[1:]):
    workload = load_workload("mlp", "tiny", size, "sgd")
    inputs = archive.build(workload, 0, 2)
    reference = oracle.references(workload, inputs.parameters, inputs.buffers, inputs.batches, "float32", 2)
    made = cell.Cell("standin", "eager", "mlp", "tiny", "float32", size, "sgd")
    benches[size], _ = bench.build(loaded, workload, made, inputs, reference, 0.001, False)
for _ in range(2):
    for made in benches.values():
        made.block("block", untimed=True)
print(json.dumps({size: made.finish(rebuild=False)["memory"] for size, made in benches.items()}))
"""
SIZES = ("16", "1024")


def peaks(run_python, order) -> dict[str, float]:
    """Batch size -> MiB."""
    child = run_python(
        ["-c", CODE, *order],
        env={"XLACOMPARE_FRAMEWORKS": "standin=tests.standin", "STANDIN_KEEPS": "256", "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    return {size: memory["peak_bytes"] / 2**20 for size, memory in json.loads(child.stdout).items()}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_does_not_depend_on_what_else_the_process_holds_or_built(run_python):
    forwards, backwards = (peaks(run_python, order) for order in (SIZES, SIZES[::-1]))
    for size in SIZES:
        assert forwards[size] == pytest.approx(backwards[size], rel=0.1, abs=3)
    # The tape holds every layer's values in float64; the 256 MiB that the adapter keeps are no cell's.
    assert 8 < forwards["1024"] < 200
    assert forwards["16"] < forwards["1024"]
