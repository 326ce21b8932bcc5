"""The arms of JAX are what their names say, and its compile counters notice what they must."""

from __future__ import annotations

import re
import time

import jax
import pytest

from xlacompare import frameworks, workloads
from xlacompare.core import errors, xla_options
from xlacompare.frameworks.on_jax import arms, compiler


@pytest.fixture(scope="module")
def adapter():
    return frameworks.load_framework("jax")


def build(adapter, arm, name="mlp", batch_size=None):
    workload = workloads.load_workload(name, "tiny", batch_size=batch_size)
    given = workload.initial_parameters(0), workload.initial_buffers(), workload.batches(0, 2)
    return adapter.build(workload, *given, "float32", arm, {})


def plant(size):
    """A recompile as it happens to users: a program met with a new shape."""
    jax.jit(lambda x: x * 2)(jax.numpy.zeros(size)).block_until_ready()


def block(adapter, step, steps=3, sabotage=None):
    """Compiles inside a block of steps."""
    before = adapter.compile_count()
    for i in range(steps):
        step.run(i)
        if sabotage and i == 1:
            sabotage()
    step.synchronize()
    return adapter.compile_count() - before


@pytest.mark.parametrize("arm", arms.ARMS)
def test_a_planted_recompile_is_noticed(adapter, arm):
    step = build(adapter, arm)
    block(adapter, step)
    assert block(adapter, step) == 0
    assert block(adapter, step, sabotage=lambda: plant(1000 + list(arms.ARMS).index(arm))) > 0
    assert block(adapter, step) == 0


def test_eager_notices_a_batch_of_another_size(adapter):
    step = build(adapter, "eager")
    block(adapter, step)
    step._batches = build(adapter, "eager", batch_size=9)._batches
    assert block(adapter, step) > 10
    assert block(adapter, step) == 0


def test_eager_dispatches_op_by_op_and_compiled_is_one_program(adapter):
    """Batch size 13 occurs in no other test, so that every program that sees it is new."""
    before = adapter.compile_count()
    step = build(adapter, "compiled", batch_size=13)
    assert step.compile_times.disk_cache_hits == 0
    built = adapter.compile_count()
    step.run(0)
    step.synchronize()
    assert adapter.compile_count() == built
    assert 1 <= built - before < 20  # the step, and the zeros of the optimizer state

    eager = build(adapter, "eager", batch_size=13)
    assert eager.compile_times.trace_s is None
    assert block(adapter, eager, steps=1) > 30
    assert eager.compile_times.compile_s > 0
    with pytest.raises(AttributeError):
        eager.program.executable.as_text()


def test_the_whole_step_is_one_program(adapter):
    step = build(adapter, "compiled")
    before = adapter.compile_count()
    jitted = compiler.ahead_of_time(
        lambda state, batch: (state, batch["labels"].sum()), step._state, step._batches[0], False, {}
    )
    assert adapter.compile_count() - before == 1
    assert min(jitted.times.trace_s, jitted.times.lower_s, jitted.times.compile_s) > 0


def fused_operations(text):
    """Operations of every fusion in optimised HLO; the CPU compiler wraps even a lone operation into one."""
    bodies = dict(re.findall(r"^%?(\S+) \(.*\{\n((?:  .*\n)+)\}", text, re.MULTILINE))
    called = re.findall(r" fusion\(.*calls=%?([^\s,]+)", text)
    return [sum(" parameter(" not in line for line in bodies[name].splitlines()) for name in called]


def test_nofusion_fuses_nothing(adapter):
    texts = {arm: build(adapter, arm).program.executable.as_text() for arm in ("compiled", "nofusion", "opt0")}
    operations = {arm: fused_operations(text) for arm, text in texts.items()}
    assert max(operations["nofusion"]) == 1
    assert max(operations["compiled"]) > 3
    assert operations["opt0"] == operations["compiled"]


def test_an_unknown_compiler_option_is_an_error(adapter):
    """Options that were ignored would leave the expert arms equal to `compiled`."""
    step = build(adapter, "compiled")
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        compiler.ahead_of_time(
            lambda state, batch: (state, batch["labels"]),
            step._state,
            step._batches[0],
            False,
            {"xla_no_such_option": 1},
        )


@pytest.mark.quiet
def test_opt0_is_slower(adapter):
    """Unoptimised convolution loops: 20 times as slow where this was written."""
    seconds = {arm: fastest(build(adapter, arm, "convnet")) for arm in ("compiled", "opt0")}
    assert seconds["opt0"] > 3 * seconds["compiled"]


def fastest(step, steps=2, repeats=3):
    timed(step, steps)
    return min(timed(step, steps)[1] for _ in range(repeats))


def timed(step, steps):
    """Seconds until the last dispatch returned, and until all was done."""
    start = time.perf_counter()
    for i in range(steps):
        step.run(i)
    dispatched = time.perf_counter() - start
    step.synchronize()
    return dispatched, time.perf_counter() - start


@pytest.mark.quiet
def test_dispatch_returns_before_the_work_is_done(adapter):
    step = build(adapter, "compiled", batch_size=1024)
    timed(step, 4)
    dispatched, done = min((timed(step, 4) for _ in range(5)), key=lambda pair: pair[1])
    assert dispatched < 0.7 * done


@pytest.mark.quiet
def test_fenced_time_grows_with_the_steps(adapter):
    step = build(adapter, "compiled", batch_size=1024)
    timed(step, 4)
    short, long = (min(timed(step, steps)[1] for _ in range(5)) for steps in (4, 16))
    assert 2.8 < long / short < 5.6


CACHED = """
import sys
from xlacompare import frameworks, workloads
from xlacompare.core import errors, xla_options
adapter = frameworks.load_framework("jax")
workload = workloads.load_workload("mlp", "tiny", batch_size=8)
given = workload.initial_parameters(0), workload.initial_buffers(), workload.batches(0, 1)
before = adapter.compile_count()
times = adapter.build(workload, *given, "float32", sys.argv[1], {}).compile_times
print(times.disk_cache_hits, times.disk_cache_misses, adapter.compile_count() > before)
"""


@pytest.mark.parametrize("arm", ["compiled", "nofusion"])
def test_a_disk_cache_hit_is_counted(run_python, tmp_path, arm):
    env = {**arms.environment("cpu", 1), "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    cold, warm = (run_python(["-c", CACHED, arm], env=env) for _ in range(2))
    assert (cold.stdout.split(), warm.stdout.split()) == (["0", "1", "True"], ["1", "0", "True"]), cold.stderr


def test_without_a_cache_folder_nothing_hits(run_python):
    done = run_python(["-c", CACHED, "compiled"], env={**arms.environment("cpu", 1), "JAX_COMPILATION_CACHE_DIR": None})
    assert done.stdout.split() == ["0", "0", "True"], done.stderr


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_declared_options_are_known(platform):
    """jaxlib's options are those of all platforms but the TPU's; a name that went away must leave the table."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    for changed in xla_options.TABLES[platform]:
        lowered.compile(compiler_options=compiler.option(changed.text))


def test_an_option_that_xla_refuses(adapter):
    workload = workloads.load_workload("mlp", "tiny")
    given = workload.initial_parameters(0), workload.initial_buffers(), workload.batches(0, 1)
    for text, reason in (("xla_foo=1", xla_options.UNKNOWN), ("xla_cpu_enable_fast_math=1.5", xla_options.REFUSED)):
        with pytest.raises(errors.UnsupportedError, match=reason):
            adapter.build(workload, *given, "float32", "compiled", {xla_options.CHANGED: text})
