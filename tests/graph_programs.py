"""Small programs for the tests of the graph layer."""

from __future__ import annotations

import numpy as np

from xlacompare.core import program

STEP = """
module @step {
  func.func @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<16xf32>) -> tensor<4x16xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT]
      : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<16xf32>) -> tensor<4x16xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x16xf32>
    %3 = stablehlo.tanh %2 : tensor<4x16xf32>
    return %3 : tensor<4x16xf32>
  }
}
"""
CALLED = """
module @called {
  func.func private @other(%x: tensor<4x16xf32>, %y: tensor<4x16xf32>) -> tensor<4x16xf32> {
    %sum = stablehlo.add %y, %x : tensor<4x16xf32>
    return %sum : tensor<4x16xf32>
  }
  func.func @main(%in: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<4x16xf32> {
    %wide = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<16xf32>) -> tensor<4x16xf32>
    %dot = stablehlo.dot_general %in, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT]
      : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %sum = func.call @other(%dot, %wide) : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
    %out = stablehlo.tanh %sum : tensor<4x16xf32>
    return %out : tensor<4x16xf32>
  }
}
"""
LOOP = """HloModule loop

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %d = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[8,8]{1,0}) tuple(%n, %d)
}

%condition (q: (s32[], f32[8,8])) -> pred[] {
  %q = (s32[], f32[8,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%j, %end), direction=LT
}

ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,8]{1,0}) tuple(%zero, %a)
  %w = (s32[], f32[8,8]{1,0}) while(%start), condition=%condition, body=%body, backend_config={COUNT}
  ROOT %r = f32[8,8]{1,0} get-tuple-element(%w), index=1
}
""".replace("COUNT", '"known_trip_count":{"n":"5"}')


def captured(**changes) -> program.Program:
    random = np.random.default_rng(0)
    arguments = [random.normal(size=shape).astype(np.float32) for shape in ((4, 8), (8, 16), (16,))]
    values = {
        "framework": "hand",
        "title": "step",
        "stablehlo": STEP,
        "bytecode": STEP.encode(),
        "optimised": "",
        "inputs": tuple(
            program.Tensor.of(name, role, array, donated=role == "parameter")
            for name, role, array in zip(
                ("inputs", "layer0.kernel", "layer0.bias"), ("batch", "parameter", "parameter"), arguments, strict=True
            )
        ),
        "outputs": (program.Tensor("logits", "loss", "float32", (4, 16)),),
        "arguments": arguments,
        "expected": [np.tanh(arguments[0] @ arguments[1] + arguments[2])],
        "notes": ("made by hand",),
    }
    return program.Program(**{**values, **changes})
