"""What the tests of torch_xla's collectives run in processes of their own, each one line of JSON.

python -m tests.frameworks.torch_xla_ranks table MODE RANKS    every collective, dtype and reduction
python -m tests.frameworks.torch_xla_ranks NAME                a fault of upstream: see torch_xla_upstream
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from xlacompare.collectives import check, inputs, request, sizes, table
from xlacompare.collectives import mesh as meshes
from xlacompare.core import errors
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_torch_xla import transports

SEED = 7
RUNS = 3
ODD_BYTES = 52  # 13 float32: no multiple of 2 or 4 ranks
LARGE_BYTES = 1 << 20  # XLA runs it asynchronously; below about 1000 operations it does not


def start(mode: str, size: int, **changed: str) -> ranks.Ranks:
    """Sets the variables and connects, as a rank's process does."""
    place = ranks.Place(rank=0, size=size, local_rank=0, address="", port=0, num_threads=2)
    for key, value in {**transports.environment("inprocess", mode, place), **changed}.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    from xlacompare.frameworks.on_torch_xla import collectives

    return collectives.connect("inprocess", mode, place)


def requests_of(n: int) -> Iterator[request.Request]:
    """The whole table over all ranks, then what only one dtype is asked for."""
    for dtype in table.ITEM_BYTES:
        for entry in table.TABLE.values():
            for reduction in entry.reductions or ("",):
                if table.unsupported(entry.name, reduction, dtype) is None and entry is not table.BARRIER:
                    yield make(entry.name, dtype, (n,), None, reduction)
    for name, reduction in (("all_reduce", "sum"), ("all_gather", ""), ("ppermute", ""), ("broadcast", "")):
        yield make(name, "float32", (n,), None, reduction, size=LARGE_BYTES)
    yield make("barrier", "float32", (n,), None)
    yield make("ppermute", "float32", (n,), None, pairs=((0, 1), (1, 1))[:1])
    yield make("ppermute", "float32", (n,), None, pairs=((0, 0), (1, 1)))
    yield make("all_reduce", "float32", (n,), None, "sum", placement="in_place")
    yield make("all_reduce", "float64", (n,), None, "mean", placement="in_place")
    yield make("broadcast", "float32", (n,), None, placement="in_place")
    if n == 4:
        yield from _of_axes()


def _of_axes() -> Iterator[request.Request]:
    for axis in (0, 1):
        for entry in table.TABLE.values():
            yield make(entry.name, "float32", (2, 2), axis, "sum" if entry.reductions else "")
        yield make("ppermute", "float32", (2, 2), axis, pairs=((0, 1),))


def make(name: str, dtype: str, mesh: tuple[int, ...], axis: int | None, reduction: str = "", **more: Any):
    """A request of an odd size."""
    n = meshes.group_size(mesh, axis)
    count, _ = sizes.counts(name, more.pop("size", ODD_BYTES), dtype, n)
    if name == "ppermute":
        more.setdefault("pairs", tuple((i, (i + 1) % n) for i in range(n)))
    if name == "broadcast":
        more["root"] = 1
    return request.Request(name, dtype, count, mesh, axis, reduction, **more)


def run_table(mode: str, size: str) -> dict[str, Any]:
    """Runs all requests in one world."""
    world = start(mode, int(size))
    found = [one(world, wanted) for wanted in requests_of(int(size))]
    world.barrier()
    described = world.describe()
    world.close()
    world.close()
    return {"local": world.local, "describe": described, "rows": found, "left": _dump_folders()}


def _dump_folders() -> list[str]:
    import tempfile

    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"xlacompare-hlo-{os.getpid()}-")]


def one(world: ranks.Ranks, wanted: request.Request) -> dict[str, Any]:
    """Builds, runs RUNS times, checks."""
    row: dict[str, Any] = {"request": wanted.to_dict(), "reason": ""}
    try:
        step = world.build(wanted, {rank: inputs.values(wanted, rank, SEED) for rank in world.local})
    except errors.UnsupportedError as error:
        return {**row, "reason": str(error)}
    before = world.compile_count(), executions()
    for index in range(RUNS):
        step.refill()
        world.barrier()
        step.run(index)
    step.synchronize()
    row["compiles"] = world.compile_count() - before[0]
    row["executions"] = executions() - before[1]
    results = [check.compare(wanted, rank, got, SEED) for rank, got in step.outputs().items()]
    row["problem"] = next((result.message for result in results if result.wrong), "")
    row["checked"] = len(results)
    row["lowered"] = step.lowered()
    row["copies"] = step.copy()
    step.close()
    return row


def executions() -> int:
    """Programs launched so far."""
    from torch_xla.debug import metrics

    data = metrics.metric_data("ExecuteTime")
    return (int(data[0]) if data else 0) + int(metrics.counter_value("ExecuteReplicated") or 0)


def main(name: str, *more: str) -> None:
    """Prints the answer; leaves without torch_xla's end, which waits for what hangs."""
    os.environ["PJRT_DEVICE"] = "CPU"  # torch_xla asks for it at its import
    from tests.frameworks import torch_xla_upstream

    answer = run_table(*more) if name == "table" else torch_xla_upstream.REPRODUCERS[name]()
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
