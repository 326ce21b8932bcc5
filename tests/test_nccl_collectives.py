"""The framework-free NCCL baseline, over a fake of NCCL and CUDA; on a machine with GPUs also over the real ones."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import shutil
import socket
import subprocess

import numpy as np
import pytest

from tests import nccl_fake
from xlacompare import frameworks
from xlacompare.collectives import check, config, inputs, lowering, sizes, table
from xlacompare.collectives import mesh as meshes
from xlacompare.collectives import request as requests
from xlacompare.core import config as main_config
from xlacompare.core import errors
from xlacompare.core.census import LoweredCollective
from xlacompare.frameworks import ranks
from xlacompare.frameworks.on_nccl import collectives, device, meeting, transports
from xlacompare.launch import collective_grid, diagnosis, launchers
from xlacompare.launch import grid as main_grid

SEED = 5


def place(rank: int, size: int, port: int) -> ranks.Place:
    return ranks.Place(rank, size, rank, "127.0.0.1", port, 1, "gpu", 20.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_world(size, work):
    """`work(ranks, rank)` in a thread per rank; answers by rank, and the fakes."""
    nccl, runtime, port = nccl_fake.Nccl(), nccl_fake.Runtime(size), free_port()

    def rank_of(rank):
        joined = collectives.join(nccl, runtime, place(rank, size, port))
        answer = work(joined, rank)
        joined.close()
        joined.close()
        return answer

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_of, range(size))), nccl, runtime


def requests_of(size):
    for dtype in transports.DTYPES:
        for entry in table.TABLE.values():
            for reduction in entry.reductions or ("",):
                if table.unsupported(entry.name, reduction, dtype):
                    continue
                for mesh, axis in [((size,), None)] + [((2, 2), axis) for axis in (0, 1) if size == 4]:
                    n = meshes.group_size(mesh, axis)
                    count, _ = sizes.counts(entry.name, 133, dtype, n)
                    for pairs in (
                        (meshes.parse_pattern("ring", n), ((0, 1),), ((1, 1),)) if entry.name == "ppermute" else ((),)
                    ):
                        for placement in table.PLACEMENTS:
                            root = n - 1 if entry.name == "broadcast" else 0
                            yield requests.Request(
                                entry.name, dtype, count, mesh, axis, reduction, pairs, root, placement
                            )


def whole_table(joined, rank):
    problems = []
    for request in requests_of(joined.describe() and joined._place.size):
        if transports.unsupported("nccl", "process", request, "gpu"):
            continue
        step = joined.build(request, {rank: inputs.values(request, rank, SEED)})
        for index in range(2):
            step.refill()
            step.run(index)
        step.synchronize()
        result = check.compare(request, rank, step.outputs()[rank], SEED)
        joined.barrier()
        step.refill()
        ops = [LoweredCollective.from_dict(op) for op in step.lowered()["ops"]]
        if result.wrong:
            problems.append((request, result.message))
        wanted = request.collective not in ("ppermute", "all_to_all", "barrier")
        if wanted and lowering.judge(request, ops).findings:
            problems.append((request, lowering.judge(request, ops).findings))
        step.close()
    return problems


@pytest.mark.parametrize("size", [2, 4])
def test_whole_table(size):
    answers, nccl, runtime = run_world(size, whole_table)
    assert answers == [[]] * size
    assert not runtime.memory and not nccl.live, "everything was freed"


def test_a_wrong_result_is_seen(monkeypatch):
    """The fake moves real values: a wrong operation must show."""
    monkeypatch.setitem(collectives.communicator.OPERATIONS, "sum", 2)
    request = requests.Request("all_reduce", "float32", 8, (2,), reduction="sum")

    def work(joined, rank):
        step = joined.build(request, {rank: inputs.values(request, rank, SEED)})
        step.run(0)
        return check.compare(request, rank, step.outputs()[rank], SEED).wrong

    assert run_world(2, work)[0] == [8, 8]


def test_transfers_are_logged():
    request = requests.Request("all_to_all", "float16", 6, (2,))

    def work(joined, rank):
        return joined.build(request, {rank: inputs.values(request, rank, SEED)}).lowered()

    first, second = run_world(2, work)[0]
    assert first["source"] == "nccl"
    (op,) = first["ops"]
    assert (op["opcode"], op["operand_bytes"], op["result_bytes"]) == ("send-recv", 12, 12)
    assert set(op["pairs"]) == {(0, 0), (0, 1), (1, 0)} and set(second["ops"][0]["pairs"]) == {(1, 0), (0, 1), (1, 1)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transport": "gloo"}, "no other transport"), ({"mode": "spmd"}, "one process per device"),
        ({"platform": "cpu"}, "CUDA memory"), ({"placement": "in_place"}, "sends and receives"),
    ],
)  # fmt: skip
def test_unsupported(change, words):
    request = requests.Request("all_to_all", "float32", 4, (2,), placement=change.get("placement", "out_of_place"))
    asked = {"transport": "nccl", "mode": "process", "platform": "gpu", **change}
    reason = transports.unsupported(asked["transport"], asked["mode"], request, asked["platform"])
    assert words in reason and "\n" not in reason


def test_more_ranks_than_devices():
    with pytest.raises(errors.BadInputError, match="CUDA sees 1 device"):
        collectives.join(nccl_fake.Nccl(), nccl_fake.Runtime(1), place(1, 2, 1))


def test_an_error_of_cuda_is_raised():
    with pytest.raises(RuntimeError, match="cudaFree failed: invalid argument"):
        device.Device(nccl_fake.Runtime(1), 0).free(12345)


def test_nobody_listens():
    with pytest.raises(TimeoutError, match="rank 0 does not listen"):
        meeting.share(1, 2, "127.0.0.1", free_port(), 0.3, bytes(128))


def test_bfloat16_by_its_bits():
    values = np.array([1.0, -2.5, 0.0, 250.0], np.float32)
    assert (device.decode(device.encode(values, "bfloat16"), "bfloat16") == values).all()
    assert device.encode(values, "bfloat16").tolist() == [0x3F80, 0xC020, 0, 0x437A]


def test_joins_the_registry_without_the_main_job():
    assert "nccl" not in frameworks.FRAMEWORKS and "nccl" not in frameworks.known()
    assert frameworks.transports("nccl") is transports
    assert frameworks.entry("nccl").extra == "cuda12"


def grid(platform="gpu", transport="nccl"):
    asked = config.CollectiveConfig(("nccl",), transports=(transport,), sizes=(64,), platform=platform)
    return collective_grid.expand(asked)


def test_joins_a_collective_run(monkeypatch):
    """With its packages there: cells on GPUs, and the reason everywhere else."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: name)
    (cell,) = grid().cells
    assert (cell.framework, cell.transport, cell.mode) == ("nccl", "nccl", "process")
    spec = launchers.Spec("nccl", "nccl", "process", 2, "gpu", (0,), 30.0)
    assert launchers.environment(spec, place(0, 2, 1))["XLACOMPARE_PLATFORM"] == "gpu"
    for values, words in (({"platform": "cpu"}, "CUDA memory only"), ({"transport": "gloo"}, "no other transport")):
        made = grid(**values)
        assert not made.cells and words in made.unsupported[0][1]


def test_without_its_packages_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(errors.MissingFrameworkError, match=r"needs nccl, cuda, .* pip install -e '\.\[cuda12\]'$"):
        grid()


def test_the_main_job_refuses_it():
    """Before it asks for the packages: installing them would not help."""
    with pytest.raises(errors.MissingFrameworkError, match="collectives only, no models: give --collective"):
        main_grid.expand(main_config.RunConfig(("nccl",)))


def test_the_doctor_looks_at_it_when_asked(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    found = [f for f in diagnosis.examine(["nccl"], "gpu", 5.0) if (f.area, f.name) == ("framework", "nccl")]
    assert [(f.area, f.status, f.fix) for f in found] == [("framework", "lacking", "pip install -e '.[cuda12]'")]


def gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


@pytest.mark.skipif(not gpus(), reason="NCCL needs an NVIDIA GPU; this machine has none")
@pytest.mark.skipif(importlib.util.find_spec("nccl") is None, reason="needs nccl4py: pip install -e '.[cuda12]'")
def test_on_a_gpu():
    """One rank on one device, through the real libraries: the calls, the memory and the stream."""
    joined = collectives.connect("nccl", "process", place(0, 1, free_port()))
    for request in requests_of(1):
        if request.collective != "ppermute" and not transports.unsupported("nccl", "process", request, "gpu"):
            step = joined.build(request, {0: inputs.values(request, 0, SEED)})
            step.run(0)
            step.synchronize()
            assert not check.compare(request, 0, step.outputs()[0], SEED).wrong
            step.close()
    joined.close()
