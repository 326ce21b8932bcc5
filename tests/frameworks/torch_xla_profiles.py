"""A step of known compute and known collectives under torch_xla's profiler; one line of JSON.

python -m tests.frameworks.torch_xla_profiles MODE RANKS
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import time
from typing import Any

from tests.frameworks import torch_xla_ranks
from xlacompare.collectives import inputs
from xlacompare.collectives import request as requests
from xlacompare.core import errors, timeline

STEPS, PRODUCTS, SIDE, COUNT, LATE_S = 8, 3, 256, 1 << 20, 0.3


class Step:
    """Products, then a sum over ranks of COUNT elements that takes one of theirs; every lane the same."""

    def __init__(self, world: Any) -> None:
        import torch
        import torch_xla

        self._lanes, self._dumps = world.lanes, world.dumps
        self._given: dict[int, tuple[Any, Any]] = {}
        self._made: dict[int, Any] = {}

        def put(lane: int) -> None:
            device = world.lanes.devices[lane]
            self._given[lane] = torch.full((SIDE, SIDE), 1e-3).to(device), torch.ones(COUNT).to(device)
            torch_xla.sync()

        self._lanes.each(put)
        self._lanes.wait()
        self._dumps.clear()
        self._lanes.staged(self._launch)
        self._lanes.wait()
        self._dumps.keep(b"step")

    def _launch(self, lane: int) -> None:
        import torch
        import torch_xla
        from torch_xla.core import xla_model

        x, large = self._given[lane]
        y = x
        for _ in range(PRODUCTS):
            y = torch.tanh(y @ x)
        self._made[lane] = y, xla_model.all_reduce(xla_model.REDUCE_SUM, large * y[0, 0])
        torch_xla.sync()

    def run(self, index: int) -> None:
        self._lanes.each(self._launch)

    def synchronize(self) -> None:
        self._lanes.wait()

    def communications(self) -> dict[str, Any]:
        text = self._dumps.text(b"step")
        return {"source": "hlo", "text": text or "", "optimised": text is not None}

    def run_late(self, index: int) -> None:
        """The last lane launches late."""

        def launch(lane: int) -> None:
            if lane == len(self._lanes.devices) - 1:
                time.sleep(LATE_S)
            self._launch(lane)

        self._lanes.each(launch)


def main(mode: str, size: str) -> None:
    """One world."""
    world = torch_xla_ranks.start(mode, int(size))
    from xlacompare.frameworks.on_torch_xla import profiling

    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="xlacompare_tests_") as folder:
        if mode == "spmd":
            answer["reason"] = _refused(profiling, world, None, folder)
        else:
            step = Step(world)
            for name, run in (("step", step.run), ("late", step.run_late)):
                own = pathlib.Path(folder) / name
                step.run = run
                trace = profiling.profiled(world, step, STEPS, own)
                answer[name] = [found.to_dict() for found in timeline.totals(trace)]
                answer["names"] = sorted({(span.kind, span.operation, span.name) for span in trace.spans})
                answer["kept"] = [(own / file).stat().st_size for file in trace.files]
            answer["alone_s"] = _alone_s(world, int(size))
            answer["text"] = step.communications()["text"]
            step._dumps._kept.clear()
            answer["reason"] = _refused(profiling, world, step, folder)
    world.close()
    print(json.dumps(answer))


def _refused(profiling: Any, world: Any, step: Any, folder: str) -> str:
    try:
        profiling.profiled(world, step, 1, pathlib.Path(folder) / "refused")
    except errors.UnsupportedError as error:
        return str(error)
    return ""


def _alone_s(world: Any, size: int) -> list[float]:
    """Seconds of some sums of COUNT elements without compute."""
    request = requests.Request("all_reduce", "float32", COUNT, (size,), reduction="sum")
    step = world.build(request, {rank: inputs.values(request, rank, 1) for rank in world.local})
    found = []
    for index in range(STEPS):
        begin = time.perf_counter()
        step.run(index)
        step.synchronize()
        found.append(time.perf_counter() - begin)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
