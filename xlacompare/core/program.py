"""A captured program: what a front end emitted for one training step, and what its inputs and outputs mean."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

ROLES = ("parameter", "buffer", "optimizer", "batch", "constant", "loss")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One input or output.

    Attributes:
      name: Neutral name of a parameter or buffer ("layer0.kernel"), of a batch's array ("inputs"), of the optimizer's
        state ("mu of layer0.kernel"); for what has no name "" (a scalar that the front end uploads).
      role: One of ROLES.
      dtype: NumPy's name, or "bfloat16".
      shape: Extents in the framework's own layout.
      donated: Whether the program may overwrite it.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    donated: bool = False

    @classmethod
    def of(cls, name: str, role: str, array: Any, donated: bool = False) -> Tensor:
        """For an array with a dtype and a shape."""
        return cls(name, role, str(array.dtype), tuple(array.shape), donated)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tensor:
        """Inverse of `to_dict`, also after JSON."""
        return cls(**{**values, "shape": tuple(values["shape"])})


@dataclasses.dataclass
class Program:
    """One program.

    Attributes:
      framework: Who emitted it.
      title: Which cell.
      stablehlo: Text, with locations where the front end has them.
      bytecode: A portable artifact (VHLO), for other versions of StableHLO.
      optimised: HLO after the framework's own compiler; "" where it cannot be had (a note says why).
      inputs: In call order.
      outputs: In the order of the results.
      arguments: Values of the inputs, the step's initial state and first batch; empty where not taken.
      expected: What the framework itself computed from them.
      sharding: As the front end says; "" for one device.
      notes: One sentence each.
      tolerances: Output's name -> absolute error that the gate allows the program's dtype; empty where it was captured
        without a gate.
    """

    framework: str
    title: str
    stablehlo: str
    bytecode: bytes
    optimised: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arguments: list[np.ndarray] = dataclasses.field(default_factory=list)
    expected: list[np.ndarray] = dataclasses.field(default_factory=list)
    sharding: str = ""
    notes: tuple[str, ...] = ()
    tolerances: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Of the StableHLO text, the same whatever values, functions and files are called."""
        return fingerprint(self.stablehlo)


_MARK = r"(?:tf\.aliasing_output = \d+ : i32|jax\.buffer_donor = true)"
DONATION = re.compile(rf", {_MARK}|{_MARK}(?:, )?")


def without_donation(captured: Program) -> bytes | str:
    """The program without the mark that an input may be overwritten, so that every run finds its inputs."""
    bare = DONATION.sub("", captured.stablehlo)
    return captured.bytecode if bare == captured.stablehlo else bare


_LOCATION_LINE = re.compile(r"^#loc.*$", re.MULTILINE)
_LOCATION = re.compile(r"\s*loc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\")*\))*\)")
_NAME = re.compile(r'[%@](?:"[^"]*"|[\w.$-]+)')


def fingerprint(text: str) -> str:
    """16 hexadecimal digits of a program's text without names and locations; names are numbered as they appear."""
    bare = _LOCATION.sub("", _LOCATION_LINE.sub("", text))
    numbers: dict[str, str] = {}
    plain = _NAME.sub(lambda found: numbers.setdefault(found.group(), f"%{len(numbers)}"), bare)
    return hashlib.sha256(" ".join(plain.split()).encode()).hexdigest()[:16]


_METADATA = re.compile(r',? metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_SOURCES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*", re.MULTILINE)
_MODULE = re.compile(r"^HloModule [^\s,]+", re.MULTILINE)


def optimised_fingerprint(text: str) -> str:
    """The same of HLO text: without the module's name and where in whose source each operation was written."""
    return fingerprint(_METADATA.sub("", _SOURCES.sub("", _MODULE.sub("HloModule", text))))
