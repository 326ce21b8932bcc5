"""Captured programs in torch_xla's XLA. These tests say when a private name of torch_xla changes."""

from __future__ import annotations

import time

import pytest
import torch_xla

from tests.frameworks import cases, replays
from xlacompare import frameworks
from xlacompare.frameworks.on_torch_xla import compiler, program


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("torch_xla")


def test_foreign_program(adapter, reader, tmp_path):
    replays.check_foreign(adapter, reader, tmp_path)


def test_a_step_goes_on_beside_a_replay(adapter, reader, tmp_path):
    """Preparing a replay drops what is pending in the process, and nothing that a step needs."""
    step = cases.build(adapter, "mlp", "compiled")
    step.run(0)
    before = step.loss()
    step.reset()
    replays.own(adapter, "mlp", reader, tmp_path).finish(rebuild=False)
    compiled = adapter.compile_count()
    step.run(0)
    assert step.loss() == before
    assert adapter.compile_count() == compiled


class OwnGraph:
    """The step's lazy graph by its hash: torch_xla's own way to an executable, without a computation from outside."""

    def __init__(self, step) -> None:
        step.reset()
        results = [step._training.step(step._batches[0]), *(tensor for _, tensor in program._state(step))]
        self._graph = torch_xla._XLAC._get_graph_hash(results)
        _, self._inputs = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
        torch_xla._XLAC._xla_warm_up_cache(results, [])
        torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))

    def run(self, index: int) -> None:
        self._last = torch_xla._XLAC._run_cached_graph(self._graph, self._inputs)

    def synchronize(self) -> None:
        compiler.wait()


def seconds(runnable, runs: int) -> float:
    runnable.synchronize()
    begin = time.perf_counter()
    for index in range(runs):
        runnable.run(index)
    runnable.synchronize()
    return (time.perf_counter() - begin) / runs


@pytest.mark.quiet
def test_own_program_takes_the_same_time_by_both_routes(adapter, reader, tmp_path):
    """Else the 2x2 would compare torch_xla's own executable with something else of the same program."""
    bench = replays.own(adapter, "transformer of 2", reader, tmp_path)
    graph = OwnGraph(cases.build(adapter, "transformer of 2", "compiled"))
    runs = max(10, bench.steps_per_block)
    ratios = sorted(seconds(bench, runs) / seconds(graph, runs) for _ in range(9))
    assert 0.8 < ratios[4] < 1.25, ratios
