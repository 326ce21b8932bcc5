"""Reads the line that XLA prints for one instruction it has parsed: types and attributes have no binding in jaxlib."""

from __future__ import annotations

import itertools
import math
import re

from xlacompare.graph import modules

OPENING = {"(": ")", "{": "}", "[": "]"}
CLOSING = set(OPENING.values())
MARK = re.compile(r'[][(){},]|"(?:[^"\\]|\\.)*"')  # a quoted text is one mark
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ?]*)\]")
HEAD = re.compile(r"^(ROOT )?%?([^\s=]+) = (.*)$", re.DOTALL)
OPCODE = re.compile(r"^\s*([a-z][a-z0-9-]*)\(")
KEY = re.compile(r"^([a-z_0-9]+)=")
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
IOTA = re.compile(r"^\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
NO_ATTRIBUTES = ("metadata", "backend_config", "frontend_attributes", "origin")
COMMENT = re.compile(r"/\*.*?\*/")


def parts(text: str) -> list[str]:
    """Splits at the commas outside of brackets and quotes."""
    found, depth, start = [], 0, 0
    for mark in MARK.finditer(text):
        letter = mark.group()
        if letter in OPENING:
            depth += 1
        elif letter in CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(text[start : mark.start()].strip())
            start = mark.end()
    last = text[start:].strip()
    return [*found, last] if last else found


def closing(text: str, start: int) -> int:
    """Place of the bracket that closes the one at `start`."""
    depth = 0
    for mark in MARK.finditer(text, start):
        letter = mark.group()
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth == 0:
            return mark.start()
    raise ValueError(f"no bracket closes the one at {start}: {text[:80]!r}")


def arrays(text: str) -> tuple[modules.Array, ...]:
    """Arrays of a printed type, a tuple flattened: "(f32[4]{0}, pred[])"."""
    return tuple(
        modules.Array(dtype, tuple(int(part.lstrip("<= ")) for part in extents.split(",") if part.strip()))
        for dtype, extents in ARRAY.findall(re.sub(r"\{[^{}]*\}", "", text))
    )


def instruction(text: str, name: str, operands: tuple[str, ...], root: bool = False) -> modules.Instruction:
    """The instruction of a printed line.

    Args:
      text: `HloInstruction.to_string()`.
      name: Its name.
      operands: Names of its operands, from the bindings.
      root: Whether it is the root of its computation.
    """
    head = HEAD.match(COMMENT.sub("", text.strip()))
    if head is None:
        raise ValueError(f"not an instruction: {text[:80]!r}")
    rest = head.group(3)
    end = closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:]
    called = OPCODE.match(rest)
    if called is None:
        raise ValueError(f"no opcode in {text[:80]!r}")
    inner = closing(rest, called.end() - 1)
    attributes = {
        found.group(1): part[found.end() :] for part in parts(rest[inner + 1 :]) if (found := KEY.match(part))
    }
    named = OP_NAME.search(attributes.get("metadata", ""))
    trips = TRIPS.search(attributes.get("backend_config", ""))
    return modules.Instruction(
        name=name,
        opcode=called.group(1),
        arrays=arrays(result),
        operands=operands,
        attributes={key: value for key, value in attributes.items() if key not in NO_ATTRIBUTES},
        literal="" if operands else rest[called.end() : inner],
        source=named.group(1) if named else "",
        trip_count=int(trips.group(1)) if trips else None,
        root=root,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks: "{{0,1},{2,3}}", the iota form "[2,2]<=[4]" or "[2,2]<=[2,2]T(1,0)", "{}" for one of all.

    The iota form counts 0, 1, ... in the right shape, transposes it as T says, and cuts it into rows
    (xla/hlo/ir/tile_assignment.h).
    """
    found = IOTA.match(text.strip())
    if found is None:
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,\s]+)\}", text))
    rows, extents = _numbers(found.group(1)), _numbers(found.group(2))
    order = _numbers(found.group(3)) if found.group(3) else tuple(range(len(extents)))
    strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    places = itertools.product(*(range(extents[axis]) for axis in order))
    flat = [sum(place * strides[axis] for place, axis in zip(where, order, strict=True)) for where in places]
    width = rows[-1] if len(rows) > 1 else math.prod(rows)
    return tuple(tuple(flat[start : start + width]) for start in range(0, len(flat), width))


def pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Pairs of a permutation: "{{0,1},{1,0}}"."""
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),\s*(\d+)\}", text))
