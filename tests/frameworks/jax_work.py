"""What the ranks of `jax_ranks` do: imported in their processes only."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import time
from typing import Any

from xlacompare.collectives import check, inputs
from xlacompare.collectives import request as requests
from xlacompare.core import errors
from xlacompare.frameworks import ranks

SEED = 7


def build(world: ranks.Ranks, request: requests.Request) -> ranks.CollectiveStep:
    """A step over the inputs that `wrong` expects."""
    return world.build(request, {rank: inputs.values(request, rank, SEED) for rank in world.local})


def wrong(world: ranks.Ranks, request: requests.Request, step: ranks.CollectiveStep) -> str:
    """The first wrong element of this process's ranks; "" where all are right."""
    got = step.outputs()
    assert tuple(got) == world.local
    return check.merge([check.compare(request, rank, got[rank], SEED) for rank in got]).message


def values(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Every request: "ok", the first wrong value, or the reason why it is unsupported."""
    answers, texts, compiles = {}, {}, 0
    for name, fields in work["requests"].items():
        request = requests.Request.from_dict(fields)
        try:
            step = build(world, request)
        except errors.UnsupportedError as error:
            answers[name] = f"unsupported: {error}"
            continue
        before = world.compile_count()
        for index in range(3):
            step.refill()
            step.run(index)
        step.synchronize()
        compiles += world.compile_count() - before
        answers[name] = wrong(world, request, step) or "ok"
        if name in work.get("lowered", ()):
            texts[name] = step.lowered()
        step.close()
        world.barrier()
    return {"answers": answers, "lowered": texts, "compiles": compiles, "describe": world.describe()}


def refilled(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """First elements of an in-place sum of ones per rank: after one run, after two, and after a refill and one."""
    request = requests.Request.from_dict(work["request"])
    ones = inputs.values(request, 0, SEED) * 0 + 1
    step = world.build(request, dict.fromkeys(world.local, ones))
    found = []
    for index in range(3):
        if index == 2:
            step.refill()
        step.run(index)
        found.append([float(array[0]) for array in step.outputs().values()])
    return {"found": found}


def overtaken(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Three programs dispatched in turn without a wait, at a pace of its own in every process."""
    pace = random.Random(place.rank)
    made = [requests.Request.from_dict(fields) for fields in work["requests"].values()]
    steps = [build(world, request) for request in made]
    for _ in range(20):
        for index, step in enumerate(steps):
            if pace.random() < 0.3:
                time.sleep(pace.random() * 0.003)
            step.run(index)
    return {"wrong": [wrong(world, request, step) for request, step in zip(made, steps, strict=True)]}


def blocks(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Seconds of blocks of runs by request: until dispatched, until the fence returned, of a read after it."""
    answers, ready = {}, []
    for name, fields in work["requests"].items():
        request = requests.Request.from_dict(fields)
        step = build(world, request)
        found = []
        for block in range(work["blocks"] + 1):
            world.barrier()
            marks = [time.perf_counter()]
            for index in range(work["n"]):
                step.run(index)
            marks.append(time.perf_counter())
            step.synchronize()
            marks.append(time.perf_counter())
            ready.append(step._last.is_ready())
            problem = wrong(world, request, step) if block == 0 else ""
            marks.append(time.perf_counter())
            step.outputs()
            found.append([marks[1] - marks[0], marks[2] - marks[0], time.perf_counter() - marks[3]])
            assert not problem, problem
        answers[name] = found[1:]
        step.close()
    return {"blocks": answers, "ready": ready, "barrier_s": [_barrier_s(world) for _ in range(work.get("barriers", 0))]}


def _barrier_s(world: ranks.Ranks) -> float:
    begin = time.perf_counter()
    world.barrier()
    return time.perf_counter() - begin


def late(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Seconds that each way to meet took while rank 1 came late: the barrier, and the collective called barrier."""
    step = build(world, requests.Request("barrier", "float32", 0, mesh=(place.size,)))

    def collective() -> None:
        step.run(0)
        step.synchronize()

    found = []
    for meet in (world.barrier, collective):
        meet()
        if place.rank == 1:
            time.sleep(work["late_s"])
        begin = time.perf_counter()
        meet()
        found.append(time.perf_counter() - begin)
    return {"waited_s": found}


def listening(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Addresses that this process listens on (as /proc/net/tcp has them, in hexadecimal)."""
    world.barrier()
    own = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        if entry.is_symlink():
            target = os.readlink(entry) if entry.exists() or entry.is_symlink() else ""
            own.add(target.removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                found.append(fields[1].partition(":")[0])
    return {"addresses": found}


def facts(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """See `jax_facts`; imported there, as it needs jax.shard_map programs of its own."""
    from tests.frameworks import jax_facts

    return jax_facts.collect(world)


def mpi_facts(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """See `jax_facts`."""
    from tests.frameworks import jax_facts

    return jax_facts.collect_mpi()


def missing(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 alone enters a collective, the others sleep: seconds until it was told, and what."""
    step = build(world, requests.Request.from_dict(work["request"]))
    step.run(0)
    step.synchronize()
    begin = time.perf_counter()
    told = ""
    if place.rank == 0:
        try:
            step.run(0)
            step.synchronize()
        except (RuntimeError, ValueError) as error:
            told = str(error)
    waited = time.perf_counter() - begin
    # Together to the end: the exit of one is an error to the coordination service of the others, which then abort.
    time.sleep(max(0, work["asleep_s"] - waited))
    told = {"rank": place.rank, "waited_s": waited, "told": told}
    sys.stdout.write(f"\n{work['mark']}{json.dumps(told)}\n")
    sys.stdout.flush()
    os._exit(0)  # the connection is broken: nothing to leave in order


def many(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Number of runs in some seconds, a fence every 200."""
    step = build(world, requests.Request.from_dict(work["request"]))
    runs, end = 0, time.monotonic() + work["seconds"]
    while time.monotonic() < end:
        for index in range(200):
            step.run(index)
        step.synchronize()
        runs += 200
    return {"runs": runs}


def flood(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """The same as a bare loop over the compiled program, with a wait after so many calls."""
    step = build(world, requests.Request("all_reduce", "float32", 1 << 18, (place.size,), reduction="sum"))
    call, argument = step._call, step._input
    runs, end = 0, time.monotonic() + work["seconds"]
    while time.monotonic() < end:
        for _ in range(work["in_flight"]):
            output = call(argument)
        output.block_until_ready()
        runs += work["in_flight"]
    return {"runs": runs}


def ordered(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Number of outputs that are not ready when the last one is."""
    late = 0
    for fields in work["requests"].values():
        step = build(world, requests.Request.from_dict(fields))
        for _ in range(40):
            outputs = [step._call(step._input) for _ in range(12)]
            outputs[-1].block_until_ready()
            late += sum(not output.is_ready() for output in outputs)
    return {"late": late}


def parallel(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Training steps over the ranks; see `jax_parallel`."""
    from tests.frameworks import jax_parallel  # only this work needs Flax and optax

    return jax_parallel.answer(world, place, work)


def parallel_facts(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """Why the strategies are made as they are; see `jax_parallel_facts`."""
    from tests.frameworks import jax_parallel_facts

    return jax_parallel_facts.collect()


def profiled(world: ranks.Ranks, place: ranks.Place, work: dict[str, Any]) -> dict[str, Any]:
    """See `jax_profiles`; imported there, as its programs are its own."""
    from tests.frameworks import jax_profiles

    return jax_profiles.collect(world, place, pathlib.Path(work["folder"]))
