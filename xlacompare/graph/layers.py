"""Which layer of the model an instruction belongs to.

The front ends' own metadata name primitives, not layers ("jit(train_step)/jvp()/dot_general"); what both programs have
are the model's parameters. An instruction belongs to the layer whose parameter it reads, through operations that only
move or convert it, or whose parameter's gradient it makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xlacompare.core import program
from xlacompare.graph import modules

Layers = Mapping[tuple[str, str], str]  # (computation, instruction) -> layer
THROUGH = {"convert", "bitcast", "copy", "reshape", "transpose", "broadcast", "reverse"}


def of_module(module: modules.Module, inputs: Sequence[program.Tensor]) -> dict[tuple[str, str], str]:
    """Layer of the entry's instructions, where it is known."""
    home = module.computations[module.entry]
    found: dict[tuple[str, str], str] = {}
    for item in home.instructions:
        if item.opcode != "parameter" or int(item.literal) >= len(inputs):
            continue
        tensor = inputs[int(item.literal)]
        if tensor.role == "parameter":
            _mark(home, item, tensor.name.rpartition(".")[0] or tensor.name, found)
        elif tensor.role == "optimizer" and " of " in tensor.name:
            name = tensor.name.partition(" of ")[2]
            _mark_update(home, item, name.rpartition(".")[0] or name, found)
    return found


def _mark(home: modules.Computation, item: modules.Instruction, layer: str, found: dict[tuple[str, str], str]) -> None:
    """Marks what reads a parameter, seen through moves."""
    waiting = [item]
    while waiting:
        made = waiting.pop()
        for user in home.users[made.name]:
            key = (home.name, user.name)
            if key in found:
                continue
            if user.opcode in THROUGH or user.opcode in ("dot", "convolution", "multiply", "add", "gather", "fusion"):
                found[key] = layer
            if user.opcode in THROUGH:
                waiting.append(user)


def _mark_update(
    home: modules.Computation, item: modules.Instruction, layer: str, found: dict[tuple[str, str], str]
) -> None:
    """Marks the dot or convolution that makes the gradient which an optimizer's state takes in."""
    shape = sorted(item.arrays[0].shape)
    for user in home.users[item.name]:
        waiting, depth = [user, *home.users[user.name]], 0
        while waiting and depth < 64:
            made = waiting.pop()
            depth += 1
            if made.opcode in ("dot", "convolution"):
                found.setdefault((home.name, made.name), layer)
            elif made.opcode in THROUGH | {"add", "multiply", "subtract"} and sorted(made.arrays[0].shape) == shape:
                waiting += [operand for operand in home.operands(made) if operand.name != item.name]
