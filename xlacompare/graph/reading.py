"""Programs as files: which of a folder's texts is read, and what the child process answers. Runs in the child."""

from __future__ import annotations

import pathlib
from typing import Any

from xlacompare.core import errors, program
from xlacompare.graph import census, diff, modules, parsing, program_file

STAGES = ("stablehlo", "optimised")


def load(path: str, stage: str) -> tuple[modules.Module, tuple[program.Tensor, ...]]:
    """A program from a folder that `--save_program` wrote, or from a file: HLO text, StableHLO text or bytecode.

    Raises:
      BadInputError: No such file, or not a program.
    """
    place = pathlib.Path(path)
    if place.is_dir():
        captured = program_file.load(place)
        if stage == "stablehlo":
            return parsing.stablehlo(captured.bytecode), captured.inputs
        if not captured.optimised:
            raise errors.BadInputError(f"{path} has no optimised HLO: {' '.join(captured.notes) or 'not captured'}")
        module = parsing.hlo(captured.optimised)
        return module, captured.inputs if _in_order(module, captured.inputs) else ()
    try:
        data = place.read_bytes()
    except OSError as error:
        raise errors.BadInputError(f"cannot read {path}: {error.strerror}; give a folder of --save_program") from None
    if data.startswith(parsing.MAGIC):
        return parsing.stablehlo(data), ()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise errors.BadInputError(f"{path} is no program: neither text nor StableHLO bytecode") from None
    return (parsing.hlo(text) if text.startswith("HloModule") else parsing.stablehlo(text)), ()


def _in_order(module: modules.Module, inputs: tuple[program.Tensor, ...]) -> bool:
    """Whether an optimised program takes its inputs in the order of the StableHLO (torch_xla launches another one)."""
    entry = module.computations[module.entry].instructions
    shapes = {int(item.literal): item.arrays[0].shape for item in entry if item.opcode == "parameter"}
    return shapes == {place: tensor.shape for place, tensor in enumerate(inputs)}


def count(path: str, stage: str) -> dict[str, Any]:
    """The census of a program, or the one that a dispatcher gave where there is none."""
    given = program_file.load_census(pathlib.Path(path)) if stage == "stablehlo" else None
    return given or census.count(*load(path, stage)).to_dict()


def count_bytecode(path: str, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """The census of a portable artifact; `inputs` as `core.program.Tensor.to_dict` gives them."""
    tensors = tuple(program.Tensor.from_dict(item) for item in inputs)
    return census.count(parsing.stablehlo(pathlib.Path(path).read_bytes()), tensors).to_dict()


def compare(left: str, right: str, stage: str) -> dict[str, Any]:
    """The diff of two programs."""
    return diff.compare(load(left, stage), load(right, stage)).to_dict()


def count_stablehlo(text: str) -> dict[str, Any]:
    """The census of StableHLO text."""
    return census.count(parsing.stablehlo(text)).to_dict()


def count_hlo(text: str) -> dict[str, Any]:
    """The census of HLO text."""
    return census.count(parsing.hlo(text)).to_dict()


def write_computation(folder: str, path: str) -> None:
    """Writes a captured program, without donation, as a serialised HLO module."""
    captured = program_file.load(pathlib.Path(folder))
    made = parsing.computation(program.without_donation(captured))
    pathlib.Path(path).write_bytes(made.as_serialized_hlo_module_proto())
