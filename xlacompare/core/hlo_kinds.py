"""What each instruction of an optimised HLO program is, for events that name it: communication or compute, by opcode.

A reader of opcodes only, for processes that have no parser of programs; the census is that of `graph`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from xlacompare.core import timeline

COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast", "send", "recv"),
}
# They run other instructions, which have events of their own; their time is those'.
CONTAINERS = {"while", "conditional", "call"}
ASYNC = re.compile(r"-(start|update|done)$")
# Custom calls by target: mpi4jax's operations (mpi_allreduce_ffi, ...) are MPI's.
COMMUNICATING_TARGETS = ("mpi_",)
PRODUCTS = ("convolution", "dot")

_NAME = r"%?([\w.\-]+)"
_COMPUTATION = re.compile(rf"^(?:ENTRY )?{_NAME} \(.*\{{\s*$")
_INSTRUCTION = re.compile(rf"^\s+(?:ROOT )?{_NAME} = (.*)$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(rf"\b(?:calls|to_apply)={_NAME}")
_OPERAND = re.compile(r"%([\w.\-]+)")  # types and layouts hold no "%"
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_MODULE = re.compile(r"^HloModule ([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Of an instruction.

    Attributes:
      kind: "compute", "communication", or "" of a container, whose time is that of what it runs.
      operation: Its opcode, without "-start" and "-done"; of a fusion with a product also that ("fusion of dot").
      begun_by: Of the done of an asynchronous operation: name of its start; else "".
      readers: Names of the instructions that read its result.
    """

    kind: str
    operation: str
    begun_by: str = ""
    readers: tuple[str, ...] = dataclasses.field(default=(), compare=False)


def module_name(text: str) -> str:
    """Name of the module of a printed program; "" where it prints none."""
    found = _MODULE.match(text.lstrip())
    return found.group(1) if found else ""


def of_program(text: str) -> dict[str, Kind]:
    """Instruction name -> what it is, of every computation of a printed program."""
    bodies: dict[str, dict[str, str]] = {}  # computation -> instruction -> what follows its type
    body: dict[str, str] = {}
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            body = bodies.setdefault(opened.group(1), {})
        elif found := _INSTRUCTION.match(line):
            body[found.group(1)] = found.group(2)[_end_of_type(found.group(2)) :]
    made = {}
    for body in bodies.values():
        readers: dict[str, list[str]] = {}
        for name, rest in body.items():
            for operand in _operands(rest):
                readers.setdefault(operand, []).append(name)
        for name, rest in body.items():
            made[name] = dataclasses.replace(_kind(rest, body, bodies), readers=tuple(readers.get(name, ())))
    return made


def _end_of_type(text: str) -> int:
    """Place after the type: a tuple in parentheses, or a word."""
    return _closing(text) if text.startswith("(") else text.find(" ")


def _closing(text: str) -> int:
    """Place after the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")":
            return place + 1
    return len(text)


def _operands(rest: str) -> list[str]:
    """What stands in the parentheses behind the opcode."""
    return _OPERAND.findall(rest[: _closing(rest)])


def _opcode(rest: str) -> str:
    found = _OPCODE.match(rest)
    return found.group(1) if found else ""


def _kind(rest: str, home: dict[str, str], bodies: dict[str, dict[str, str]]) -> Kind:
    opcode = _opcode(rest)
    begun_by = next(iter(_operands(rest)), "") if opcode.endswith("-done") else ""
    if opcode == "async-done" and begun_by in home and not _CALLED.search(rest):
        return dataclasses.replace(_kind(home[begun_by], home, bodies), begun_by=begun_by)  # it says so at its start
    inside = list(_inside(rest, bodies)) if opcode.startswith(("fusion", "async-")) else []
    collective = next((one for one in map(_base, [opcode, *inside]) if one in COLLECTIVES), "")
    target = _TARGET.search(rest)
    if opcode == "custom-call" and target and target.group(1).startswith(COMMUNICATING_TARGETS):
        collective = target.group(1)
    if opcode in CONTAINERS:
        return Kind("", opcode)
    if collective:
        return Kind(timeline.COMMUNICATION, collective, begun_by)
    product = next((one for one in PRODUCTS if one in inside), "")
    return Kind(timeline.COMPUTE, f"fusion of {product}" if product else _base(opcode), begun_by)


def _base(opcode: str) -> str:
    return ASYNC.sub("", opcode)


def _inside(rest: str, bodies: dict[str, dict[str, str]]) -> Iterator[str]:
    """Opcodes of the computations that an instruction runs, those inside of them too."""
    for called in _CALLED.findall(rest):
        for inner in bodies.get(called, {}).values():
            yield _opcode(inner)
            if _opcode(inner) == "fusion":
                yield from _inside(inner, bodies)
