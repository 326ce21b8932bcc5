"""Programs for another XLA build: bytecode of a version that it reads, without donation. Runs in the graph's child."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from xlacompare.core import errors, program
from xlacompare.graph import parsing

Version = tuple[int, ...]


def bytecode(captured: program.Program, newest: Version | None) -> bytes:
    """A portable artifact without the marks of donation, so that every run finds its inputs.

    Args:
      captured: The program.
      newest: StableHLO version that the other side reads up to; None where it does not say.

    Raises:
      BadInputError: Not StableHLO, damaged, too new for this jaxlib, or it has what the older version lacks.
    """
    parsing.computation(captured.bytecode)  # for its errors, each in one line
    ours = parsing.stablehlo_version()
    version = ".".join(map(str, min(ours, newest or ours)))
    try:
        text = _text(captured.bytecode)
        return bytes(stablehlo.serialize_portable_artifact_str(program.DONATION.sub("", text), version))
    except (RuntimeError, ValueError) as error:
        raise errors.BadInputError(
            f"the program cannot be written as StableHLO {version}, the newest that the plugin reads: "
            f"{str(error).splitlines()[0][:200]}; take a newer plugin"
        ) from None


def _text(source: bytes) -> str:
    """Text of a portable artifact; StableHLO text is taken as it is (programs that were written by hand)."""
    if not source.startswith(parsing.MAGIC):
        return source.decode()
    context = ir.Context()
    stablehlo.register_dialect(context)
    return str(stablehlo.deserialize_portable_artifact(context, source))
