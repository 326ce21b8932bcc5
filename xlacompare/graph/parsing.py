"""Programs read by XLA's own parsers, as `modules.Module`. Runs in the graph's child process: it imports jaxlib."""

from __future__ import annotations

import re

from jaxlib import _hlo, _jax  # type: ignore[attr-defined]
from jaxlib.mlir.dialects import stablehlo as dialects

from xlacompare.core import errors
from xlacompare.graph import hlo_text, modules

ENTRY = re.compile(r"^ENTRY %?([^\s(]+)", re.MULTILINE)
ROOT = re.compile(r"^\s*ROOT %?(\S+) =", re.MULTILINE)


def hlo(text: str) -> modules.Module:
    """Reads HLO text, optimised or not, also that of older XLA builds.

    Raises:
      BadInputError: XLA's parser refuses it.
    """
    if not text.startswith("HloModule"):
        raise errors.BadInputError(f"not HLO: the text begins with {text[:30]!r}, HLO with 'HloModule'")
    try:
        parsed = _hlo.hlo_module_from_text(text)
    except (RuntimeError, ValueError) as error:  # XlaRuntimeError is a RuntimeError
        lines = [line for line in str(error).splitlines() if "error:" in line] or [str(error)]
        raise errors.BadInputError(f"not HLO that this XLA reads: {lines[0][:200]}") from None
    return of(parsed, text)


VERSION = re.compile(rb"StableHLO_v(\d+)\.(\d+)\.(\d+)")
MAGIC = b"ML\xefR"
# NumPy's name -> XLA's.
NAMES = {
    **{
        f"{kind}{bits}": f"{short}{bits}"
        for kind, short in (("float", "f"), ("int", "s"), ("uint", "u"))
        for bits in (8, 16, 32, 64)
    },
    "bfloat16": "bf16",
    "bool": "pred",
    "complex64": "c64",
    "complex128": "c128",
}


def stablehlo(source: bytes | str) -> modules.Module:
    """Reads StableHLO, text or a portable artifact, as the HLO that XLA's own importer makes of it.

    Raises:
      BadInputError: See `computation`.
    """
    module = computation(source).get_hlo_module()
    return of(module, module.to_string())


def computation(source: bytes | str) -> _hlo.XlaComputation:
    """XLA's computation for StableHLO.

    Raises:
      BadInputError: Not StableHLO, damaged, or of a version that this jaxlib does not know.
    """
    if not source:
        raise errors.BadInputError("not StableHLO: empty")
    if isinstance(source, bytes):
        _check_version(source)
    try:
        return _jax.mlir.mlir_module_to_xla_computation(source, use_tuple_args=False, return_tuple=True)
    except RuntimeError as error:
        raise errors.BadInputError(_refused(source, str(error))) from None


def _refused(source: bytes | str, message: str) -> str:
    lines = [line.partition("error: ")[2] for line in message.splitlines() if "error: " in line]
    first = (lines or [message])[0][:200]
    if isinstance(source, bytes) and source.startswith(MAGIC):
        return f"StableHLO bytecode is damaged or cut short: {first}"
    return f"not StableHLO that this jaxlib reads: {first}"


def _check_version(source: bytes) -> None:
    found, ours = VERSION.search(source[:64]), stablehlo_version()
    if found and tuple(map(int, found.groups())) > ours:
        raise errors.BadInputError(
            f"bytecode is StableHLO {b'.'.join(found.groups()).decode()}, this jaxlib reads up to "
            f"{'.'.join(map(str, ours))}: install a newer jaxlib, or capture again with an older framework"
        )


def stablehlo_version() -> tuple[int, ...]:
    """Version of StableHLO that this jaxlib has."""
    return tuple(map(int, dialects.get_current_version().split(".")))


def parameters(source: bytes | str) -> list[tuple[str, tuple[int, ...]]]:
    """Element type (XLA's name) and extents of each input of a StableHLO program."""
    shapes = computation(source).program_shape().parameter_shapes()
    found = [hlo_text.arrays(str(shape))[0] for shape in shapes]
    return [(item.dtype, item.shape) for item in found]


def of(parsed: _hlo.HloModule, text: str) -> modules.Module:
    """Plain data of a parsed module; `text` names the entry and the roots, which the bindings do not."""
    roots = set(ROOT.findall(text))
    found = {item.name: _computation(item, roots) for item in parsed.computations()}
    named = ENTRY.search(text)
    entry = named.group(1) if named and named.group(1) in found else _uncalled(found)
    return modules.Module(parsed.name, found, entry)


def _computation(parsed: _hlo.HloComputation, roots: set[str]) -> modules.Computation:
    items = parsed.instructions()
    marked = [place for place, item in enumerate(items) if item.name in roots] or [len(items) - 1]
    made = [
        hlo_text.instruction(
            item.to_string(), item.name, tuple(operand.name for operand in item.operands()), root=place == marked[-1]
        )
        for place, item in enumerate(items)
    ]
    return modules.Computation(parsed.name, tuple(made))


def _uncalled(found: dict[str, modules.Computation]) -> str:
    called = {
        name
        for computation in found.values()
        for item in computation.instructions
        for key in ("calls", "to_apply", "body", "condition", *modules.BRANCHES)
        for name in modules.names(item.attributes.get(key, ""))
    }
    return [name for name in found if name not in called][-1]
