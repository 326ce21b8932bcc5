"""What a replay must be like in whichever framework's XLA: a foreign program, checked values, no further compile."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.frameworks import programs
from xlacompare.core import errors, program
from xlacompare.frameworks import interface
from xlacompare.graph import client, program_file
from xlacompare.launch import replay_bench

# Of no framework: 64-bit inputs, an input that is not read first, one that may be overwritten.
FOREIGN = """module @foreign {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<i64>,
      %arg2: tensor<3x3xf32>, %arg3: tensor<f64>) -> (tensor<4x3xf32>, tensor<f64>) {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0]
      : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    %1 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f64>
    %2 = stablehlo.add %1, %arg3 : tensor<f64>
    return %0, %2 : tensor<4x3xf32>, tensor<f64>
  }
}
"""


def foreign() -> program.Program:
    """The program, its inputs and what NumPy makes of them."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((4, 3), np.float32),
        np.array(7),
        rng.standard_normal((3, 3), np.float32),
        np.array(0.5),
    ]
    expected = [arrays[0] @ arrays[2], np.array(7.5)]
    inputs = tuple(program.Tensor.of(f"in{i}", "batch", array) for i, array in enumerate(arrays))
    outputs = tuple(program.Tensor.of(f"out{i}", "loss", array) for i, array in enumerate(expected))
    return program.Program("elsewhere", "foreign", FOREIGN, b"", "", inputs, outputs, arrays, expected)


def saved(made: program.Program, folder: pathlib.Path, reader: client.Client) -> pathlib.Path:
    """A folder as `launch.replaying` leaves it."""
    program_file.save(made, folder)
    reader.ask("computation", str(folder), str(folder / replay_bench.COMPUTATION))
    return folder


def built(framework: interface.Framework, folder: pathlib.Path, min_block_s: float):
    """As a worker builds it."""
    return replay_bench.build(framework, folder, folder / replay_bench.COMPUTATION, min_block_s)


def check_foreign(framework: interface.Framework, reader: client.Client, folder: pathlib.Path) -> None:
    """Runs it twice (nothing is donated), without compiling; other values are refused."""
    bench, answer = built(framework, saved(foreign(), folder, reader), 0.001)
    assert answer["replay"]["worst"]["of_allowed"] <= 1.0
    compiled = framework.compile_count()
    blocks = [bench.block("block", untimed=True) for _ in range(2)]
    assert framework.compile_count() == compiled and all(block.compiles == 0 for block in blocks)
    for one, other in zip(bench.made.results(), foreign().expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    bench.finish(rebuild=False)
    bench.finish(rebuild=False)
    wrong = foreign()
    wrong.expected[0][0, 0] += 0.1
    with pytest.raises(errors.MismatchError, match=r"elsewhere's program in .* computes other values: out0"):
        built(framework, saved(wrong, folder, reader), 0.001)


def own(
    framework: interface.Framework, variant: str, reader: client.Client, folder: pathlib.Path
) -> replay_bench.ReplayBench:
    """The framework's own program in its own XLA; its values are those of its step."""
    made = saved(programs.capture(framework, variant, folder), folder, reader)
    bench, answer = built(framework, made, 0.02)
    assert answer["replay"]["fingerprint"] == program_file.load(made).fingerprint
    return bench
