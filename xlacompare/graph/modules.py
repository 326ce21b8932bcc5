"""A program as plain data: computations of instructions. What analysis reads, whoever parsed it."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

BITS = re.compile(r"^[a-z]+?(\d+)")


def bits(dtype: str) -> int:
    """Bits of an element, from XLA's name of the type ("f8e4m3fn" 8, "c64" 64); 0 for a token."""
    if dtype == "pred":
        return 8
    found = BITS.match(dtype)
    return int(found.group(1)) if found else 0


@dataclasses.dataclass(frozen=True)
class Array:
    """Type of one array: XLA's name of the element type, and the extents."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes, types of less than a byte packed."""
        return -(-self.elements * bits(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      name: Unique inside its computation.
      opcode: XLA's, with hyphens ("get-tuple-element").
      arrays: The result, a tuple flattened.
      operands: Names of instructions of the same computation.
      attributes: As XLA prints them, without metadata and backend_config ("dimensions" -> "{0}").
      literal: What stands in the parentheses of a constant or a parameter.
      source: The framework's own name for it ("jit(f)/psum"), where the metadata has it.
      trip_count: Of a while loop, where the compiler knows it.
      root: Whether it is the result of its computation.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    literal: str = ""
    source: str = ""
    trip_count: int | None = None
    root: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(array.bytes for array in self.arrays)


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order of the text."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Name -> instruction."""
        return {item.name: item for item in self.instructions}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Name -> the instructions that read it."""
        found: dict[str, list[Instruction]] = {item.name: [] for item in self.instructions}
        for item in self.instructions:
            for operand in dict.fromkeys(item.operands):
                found[operand].append(item)
        return found

    @property
    def root(self) -> Instruction:
        """The result."""
        return next(item for item in reversed(self.instructions) if item.root)

    def operands(self, item: Instruction) -> list[Instruction]:
        """The instructions that `item` reads."""
        return [self.by_name[name] for name in item.operands]


@dataclasses.dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
      name: As its maker called it.
      computations: Name -> computation.
      entry: Name of the computation that is the program.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str


@dataclasses.dataclass(frozen=True)
class Call:
    """A computation that an instruction runs.

    Attributes:
      computation: Its name.
      trips: How often; None where unknown (a loop without known count, a branch).
    """

    computation: str
    trips: int | None


RUNS = {"fusion": "calls", "call": "to_apply", "async-start": "calls"}
BRANCHES = ("branch_computations", "true_computation", "false_computation")


def names(text: str) -> list[str]:
    """Names in an attribute: "{%a, %b}" or "%a"."""
    return [part.strip().lstrip("%") for part in text.strip("{}").split(",") if part.strip()]


def calls(item: Instruction) -> list[Call]:
    """The computations that `item` runs as a part of the program; the function of a reduction is none of them."""
    if item.opcode in RUNS:
        return [Call(name, 1) for name in names(item.attributes.get(RUNS[item.opcode], ""))]
    if item.opcode == "while":
        body, condition = item.attributes["body"], item.attributes["condition"]
        again = None if item.trip_count is None else item.trip_count + 1
        return [Call(body.lstrip("%"), item.trip_count), Call(condition.lstrip("%"), again)]
    if item.opcode == "conditional":
        return [Call(name, None) for key in BRANCHES for name in names(item.attributes.get(key, ""))]
    return []


@dataclasses.dataclass(frozen=True)
class Visit:
    """An instruction where it runs.

    Attributes:
      item: The instruction.
      computation: Where it stands.
      trips: Times that it runs in one run of the program; None: unknown.
      inside: Opcodes of the instructions that run its computation, outermost first.
    """

    item: Instruction
    computation: Computation
    trips: int | None
    inside: tuple[str, ...]


def walk(module: Module) -> list[Visit]:
    """Every instruction that runs, through called computations; one called twice is visited twice."""
    found: list[Visit] = []

    def enter(name: str, trips: int | None, inside: tuple[str, ...]) -> None:
        computation = module.computations[name]
        for item in computation.instructions:
            found.append(Visit(item, computation, trips, inside))
            for call in calls(item):
                known = trips is not None and call.trips is not None
                times = trips * call.trips if known else None  # type: ignore[operator]
                enter(call.computation, times, (*inside, item.opcode))

    enter(module.entry, 1, ())
    return found
