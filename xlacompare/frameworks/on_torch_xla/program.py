"""The program of a built step: the lazy graph before it is launched. Private names of torch_xla 2.9.0 are here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch_xla
from torch_xla.core import xla_model

from xlacompare.core import census, errors, program, xla_dump
from xlacompare.frameworks.on_torch import arrays, dispatched
from xlacompare.frameworks.on_torch_xla import arms, compiler, framework

NO_OPTIMISED = (
    "torch_xla has no call that returns the HLO after its compiler; XLA writes it to a folder where the process was "
    f"started with {arms.DUMP_VARIABLE}=DIR (run --save_program does) and XLA_FLAGS names no other --xla_dump_to"
)
DUMPED = (
    "XLA wrote the optimised HLO to a folder while it compiled, in this launch alone: its times to compile hold that; "
    "its inputs stand in the order in which torch_xla made the tensors"
)


def capture(step: framework.Step, title: str = "") -> program.Program:
    """The program with the step's initial state and first batch; the step is reset before and after.

    The results are asked for in a known order (loss, parameters, buffers, optimizer); a launch takes the same tensors
    in the order in which they were made.

    Raises:
      UnsupportedError: The arm has no program of the step.
    """
    if compiler.BUILDERS[step.arm] is not compiler.lazy:
        raise errors.UnsupportedError(f"torch_xla's arm {step.arm!r} has no single program of the step")
    results, known = _traced(step)
    tensors = [tensor for _, tensor in results]
    identities, values = torch_xla._XLAC._get_tensors_xla_device_data_node(tensors)
    inputs, arguments = _inputs(identities, values, known)
    text = xla_model.get_stablehlo(tensors)
    bytecode = xla_model.get_stablehlo_bytecode(tensors)
    compiler.fence()
    expected = [_numpy(tensor) for tensor in tensors]
    outputs = tuple(
        program.Tensor.of(name, role, array) for ((name, role), _), array in zip(results, expected, strict=True)
    )
    step.reset()
    optimised = step.optimised()
    return program.Program(
        framework="torch_xla",
        title=title,
        stablehlo=text,
        bytecode=bytecode,
        optimised=optimised or "",
        inputs=inputs,
        outputs=outputs,
        arguments=arguments,
        expected=expected,
        notes=(DUMPED if optimised else NO_OPTIMISED,),
    )


def evidence(step: framework.Step) -> xla_dump.Evidence:
    """What XLA dumped while the step was built; empty where it was not told to (launch 0 of --ablate_flags does)."""
    return step.evidence


def count(step: framework.Step) -> census.Counted:
    """What the step does: its lazy graph before it is launched, or the aten operations of eager mode.

    Raises:
      UnsupportedError: The arm launches several programs.
    """
    if step.arm == "eager":
        with dispatched.Count({}, lambda tensor: None) as counted:
            step.run(0)
        step.synchronize()
        step.reset()
        return census.Counted("aten operations of one step in eager mode", counted.census())
    if compiler.BUILDERS[step.arm] is not compiler.lazy:
        raise errors.UnsupportedError(
            f"the programs of torch_xla's arm {step.arm!r} are Dynamo's, launched past the dispatcher"
        )
    results, known = _traced(step)
    tensors = [tensor for _, tensor in results]
    identities, values = torch_xla._XLAC._get_tensors_xla_device_data_node(tensors)
    bytecode = xla_model.get_stablehlo_bytecode(tensors)
    compiler.fence()
    step.reset()
    inputs = []
    for identity, value in zip(identities, values, strict=True):
        name, role = known.get(identity, ("", "constant"))
        inputs.append(program.Tensor(name, role, str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    return census.Counted("the StableHLO of the lazy graph", bytecode=bytecode, inputs=tuple(inputs))


Meaning = tuple[str, str]  # name and role


def _traced(step: framework.Step) -> tuple[list[tuple[Meaning, torch.Tensor]], dict[int, Meaning]]:
    """One step from the initial state on the first batch, traced and not launched.

    Returns:
      Its results in a known order (loss, parameters, buffers, optimizer), and what the tensors that it reads mean.
    """
    step.reset()
    batch, state = step._batches[0], _state(step)
    known = {_identity(tensor): meaning for meaning, tensor in [*state, *_batch(batch)]}
    return [(("loss", "loss"), step._training.step(batch)), *state], known


def _identity(tensor: torch.Tensor) -> int:
    return int(torch_xla._XLAC._xla_get_tensor_id(tensor))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    host = tensor.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()


def _state(step: framework.Step) -> list[tuple[Meaning, torch.Tensor]]:
    """Parameters, buffers and optimizer state with their neutral names."""
    training, workload = step._training, step._workload
    parameters = {arrays.torch_name(item.name): item.name for item in workload.parameters()}
    buffers = {arrays.torch_name(item.name): item.name for item in workload.buffers()}
    named = dict(training.model.named_parameters())
    found: list[tuple[Meaning, torch.Tensor]] = []
    found += [((parameters[name], "parameter"), tensor) for name, tensor in named.items()]
    held = dict(training.model.named_buffers())
    found += [((buffers[name], "buffer"), tensor) for name, tensor in held.items() if name in buffers]
    for name, parameter in named.items():
        for key, tensor in training.optimizer.state[parameter].items():
            found.append(((f"{key} of {parameters[name]}", "optimizer"), tensor))
    return found


def _batch(batch: Mapping[str, torch.Tensor]) -> list[tuple[Meaning, torch.Tensor]]:
    return [((name, "batch"), tensor) for name, tensor in batch.items()]


def _inputs(
    identities: list[int], values: list[Any], known: Mapping[int, Meaning]
) -> tuple[tuple[program.Tensor, ...], list[np.ndarray]]:
    """The program's inputs: device data in the order in which the graph is lowered."""
    donation = os.environ.get("XLA_ENABLE_PARAM_ALIASING", "1") != "0"
    arguments = [_numpy(value) for value in values]
    found = []
    for identity, array in zip(identities, arguments, strict=True):
        name, role = known.get(identity, ("", "constant"))
        found.append(program.Tensor.of(name, role, array, donation and role in ("parameter", "buffer", "optimizer")))
    return tuple(found), arguments
