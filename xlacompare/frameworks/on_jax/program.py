"""The program of a built step: what JAX gave to the compiler, and what came out."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import jax
import numpy as np
from jaxlib import _jax
from jaxlib.mlir.dialects import stablehlo

from xlacompare.core import census, errors, program, xla_dump
from xlacompare.frameworks.on_jax import framework, primitives, private

# A consumer may be three months older, StableHLO's own promise for plugins.
COMPATIBILITY = stablehlo.StablehloCompatibilityRequirement.WEEK_12


def capture(step: framework.Step, title: str = "") -> program.Program:
    """The program with the step's initial state and first batch; the step is reset before and after.

    Raises:
      UnsupportedError: The arm has no program of the step (eager).
    """
    lowered = getattr(step.program, "lowered", None)
    if lowered is None:
        raise errors.UnsupportedError("jax's eager arm has no program of the step: Python dispatches every primitive")
    step.reset()
    given = (step._state, step._batches[0])
    flat, _ = jax.tree_util.tree_flatten_with_path(given)
    infos = jax.tree.leaves(lowered.args_info)
    kept = _kept(lowered, len(flat))
    inputs = [_meaning(step, path, leaf, infos[place].donated) for place, (path, leaf) in enumerate(flat)]
    arguments = [np.array(leaf) for _, leaf in flat]
    step.run(0)
    results = (step._state, step._loss)
    outputs = [_meaning(step, path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(results)[0]]
    expected = [np.array(leaf) for leaf in jax.tree.leaves(results)]
    step.reset()
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    return program.Program(
        framework="jax",
        title=title,
        stablehlo=text,
        bytecode=_portable(text),
        optimised=step.program.executable.as_text(),
        inputs=tuple(inputs[place] for place in kept),
        outputs=tuple(outputs),
        arguments=[arguments[place] for place in kept],
        expected=expected,
        notes=tuple(f"{inputs[place].name} is not read" for place in range(len(flat)) if place not in kept),
    )


def evidence(step: framework.Step) -> xla_dump.Evidence:
    """Compiles the step's program once more, with the options of its arm and cell, and has XLA dump what it does."""
    built = step.program
    if built.lowered is None:
        return xla_dump.Evidence()
    with tempfile.TemporaryDirectory(prefix="xlacompare-hlo-") as folder, private.without_disk_cache():
        built.lowered.compile(compiler_options={**built.options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        return xla_dump.read(pathlib.Path(folder))


def count(step: framework.Step) -> census.Counted:
    """What the step does: its program before the compiler, or the primitives that Python dispatches."""
    given = (step._state, step._batches[0])
    if step.program.function is not None:
        with step._scope():
            traced = jax.make_jaxpr(step.program.function)(*given)
        return census.Counted("primitives of one step, by a trace that runs nothing", primitives.of_jaxpr(traced))
    lowered = step.program.lowered
    flat, _ = jax.tree_util.tree_flatten_with_path(given)
    inputs = [_meaning(step, path, leaf) for path, leaf in flat]
    bytecode = _portable(str(lowered.compiler_ir("stablehlo")))
    kept = tuple(inputs[place] for place in _kept(lowered, len(flat)))
    return census.Counted("the StableHLO that was given to the compiler", bytecode=bytecode, inputs=kept)


def _portable(text: str) -> bytes:
    version = stablehlo.get_version_from_compatibility_requirement(COMPATIBILITY)
    return _jax.mlir.serialize_portable_artifact(text, version)


def _kept(lowered: Any, count: int) -> list[int]:
    """Arguments that the program takes: jit drops those that are not read. A private name (jax 0.10.2)."""
    return sorted(lowered._lowering.compile_args.get("kept_var_idx", range(count)))


def _meaning(step: framework.Step, path: tuple[Any, ...], leaf: jax.Array, donated: bool = False) -> program.Tensor:
    """What a leaf of (state, batch) or (state, loss) is, from its path."""
    network = step._network
    if path[0].idx == 1:
        role, name = ("batch", path[1].key) if len(path) > 1 else ("loss", "loss")
    elif path[1].idx == 0:
        role, name = "parameter", network.parameter_names[path[2].idx]
    elif path[1].idx == 1:
        role, name = "buffer", network.buffer_names[path[2].idx]
    else:
        role, name = "optimizer", _optimizer_name(path[2:], network.parameter_names)
    return program.Tensor.of(name, role, leaf, donated)


def _optimizer_name(path: tuple[Any, ...], names: tuple[str, ...]) -> str:
    """From optax's `[0].mu[3]`: "mu of layer0.kernel"."""
    fields = [key.name for key in path if hasattr(key, "name")]
    field = fields[-1] if fields else "state"
    last = path[-1]
    return f"{field} of {names[last.idx]}" if fields and hasattr(last, "idx") else field
