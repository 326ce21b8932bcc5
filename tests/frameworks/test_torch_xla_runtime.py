"""The PyTorch/XLA runtime: the fence, arms that need flags, the environment."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch_xla

from xlacompare import frameworks, workloads
from xlacompare.core import errors, fence
from xlacompare.frameworks.on_torch_xla import arms, compiler


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("torch_xla")


class Chain:
    """A chain of matrix products: device work that outlasts its dispatch; nothing is donated."""

    def __init__(self, fence_function, size: int = 512, length: int = 24) -> None:
        generator = torch.Generator().manual_seed(0)
        device = torch_xla.device()
        self._start = torch.randn(size, size, generator=generator).to(device)
        self._factor = (torch.randn(size, size, generator=generator) / size**0.5).to(device)
        self._length, self.synchronize = length, fence_function
        self.run(0)
        compiler.fence()
        self.loss()

    def run(self, index: int) -> None:
        value = self._start
        for _ in range(self._length):
            value = torch.tanh(value @ self._factor)
        self._value = value[:1, :1].sum()
        del value
        torch_xla.sync()

    def loss(self) -> float:
        return self._value.item()


def waited(chain: Chain, function) -> tuple[float, float]:
    """Seconds inside `function` after a dispatch, and seconds that a real fence then still waits."""
    chain.run(0)
    start = time.perf_counter()
    function()
    middle = time.perf_counter()
    compiler.fence()
    return middle - start, time.perf_counter() - middle


@pytest.mark.quiet
def test_the_fence_waits_and_sync_does_not(adapter):
    chain = Chain(compiler.fence)
    safe = [waited(chain, compiler.fence) for _ in range(5)]
    unsafe = [waited(chain, compiler.unsafe_fence) for _ in range(5)]
    shares = [sorted(late / (inside + late) for inside, late in runs)[2] for runs in (safe, unsafe)]
    assert shares[0] < 0.3, shares
    assert shares[1] > 0.6, shares


@pytest.mark.quiet
def test_self_test_rejects_sync_with_wait(adapter):
    assert fence.self_test(Chain(compiler.fence), n=2).passed
    report = fence.self_test(Chain(compiler.unsafe_fence), n=2)
    assert not report.passed
    assert report.late_share > fence.MAX_LATE_SHARE


def build_mlp(adapter, arm: str):
    workload = workloads.load_workload("mlp", "tiny", batch_size=4)
    return adapter.build(workload, workload.initial_parameters(0), {}, workload.batches(0, 2), "float32", arm, {})


@pytest.mark.parametrize("arm", ["nofusion", "opt0"])
def test_expert_arms_refuse_a_process_without_their_flags(adapter, arm):
    with pytest.raises(errors.UnsupportedError, match="XLA_FLAGS"):
        build_mlp(adapter, arm)


@pytest.mark.parametrize("arm", ["captured", "inductor_model", "warp"])
def test_lacking_arms_are_refused(adapter, arm):
    with pytest.raises(errors.UnsupportedError, match=arm):
        build_mlp(adapter, arm)


PROGRAM = """
import dataclasses, pathlib, re
from xlacompare import frameworks, workloads
arm, folder = {arm!r}, {folder!r}
adapter = frameworks.load_framework("torch_xla")
workload = workloads.load_workload("mlp", "tiny", batch_size=4)
workload = dataclasses.replace(workload, config=dataclasses.replace(workload.config, hidden=(32,)))
adapter.build(workload, workload.initial_parameters(0), {{}}, workload.batches(0, 2), "float32", arm, {{}}).close()
texts = [p.read_text() for p in pathlib.Path(folder).glob("*SyncTensorsGraph*after_optimizations.txt")]
print(len(re.findall(r" fusion\\(", max(texts, key=len))))
"""


def test_nofusion_has_no_fusions(run_python, tmp_path):
    """In the optimised HLO of the step, in processes of their own."""
    counts = {}
    for arm in ("compiled", "nofusion"):
        folder = tmp_path / arm
        flags = f"{arms.ARMS[arm].environment.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        environment = {**arms.environment("cpu", 1), "XLA_FLAGS": flags.strip()}
        child = run_python(PROGRAM.format(arm=arm, folder=str(folder)), env=environment, timeout=100)
        assert child.returncode == 0, child.stderr
        counts[arm] = int(child.stdout.split()[-1])
    assert counts["nofusion"] == 0
    assert counts["compiled"] > 5


def test_environment():
    variables = arms.environment("cpu", 3)
    assert variables["PJRT_DEVICE"] == "CPU"
    assert variables["NPROC"] == variables["OMP_NUM_THREADS"] == "3"
    assert variables["XLA_SYNC_WAIT"] is None
    with pytest.raises(errors.UnsupportedError, match="gpu"):
        arms.environment("gpu", 1)


def test_describe(adapter):
    described = adapter.describe()
    assert described["platform"] == "cpu"
    assert described["device_count"] == 1
    assert "xla_cpu_enable_fast_math=false" in described["xla_flags"]  # torch_xla adds it by itself
    assert described["matmul_precision"] == os.environ.get(arms.MATMUL_PRECISION_VARIABLE, "default")
