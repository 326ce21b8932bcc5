"""A captured program on disk: a folder with its texts, a JSON summary, and the values of its inputs and outputs."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np

from xlacompare.core import census, errors, program

TEXT, BYTECODE, OPTIMISED = "stablehlo.mlir", "program.mlirbc", "optimised.hlo"
SUMMARY, VALUES = "summary.json", "values.npz"
FORMAT = 1


def folder_name(title: str) -> str:
    """A cell's title as the name of a folder."""
    return re.sub(r"[^\w.=,-]+", "_", title).strip("_")


def save(captured: program.Program, folder: pathlib.Path) -> None:
    """Writes a program; whatever an earlier one left in the folder is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TEXT).write_text(captured.stablehlo, encoding="utf-8")
    (folder / BYTECODE).write_bytes(captured.bytecode)
    if captured.optimised:
        (folder / OPTIMISED).write_text(captured.optimised, encoding="utf-8")
    else:
        (folder / OPTIMISED).unlink(missing_ok=True)
    arrays = {f"input{place:05d}": _plain(array) for place, array in enumerate(captured.arguments)}
    arrays |= {f"output{place:05d}": _plain(array) for place, array in enumerate(captured.expected)}
    np.savez(folder / VALUES, **arrays)  # type: ignore[arg-type]
    summary = {
        "format": FORMAT,
        "framework": captured.framework,
        "title": captured.title,
        "fingerprint": captured.fingerprint,
        "inputs": [item.to_dict() for item in captured.inputs],
        "outputs": [item.to_dict() for item in captured.outputs],
        "donated": sum(item.donated for item in captured.inputs),
        "sharding": captured.sharding or "one device",
        "notes": list(captured.notes),
        "tolerances": captured.tolerances,
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def save_census(folder: pathlib.Path, framework: str, title: str, counted: census.Counted, reason: str) -> None:
    """Writes the summary of a cell that has no program: its census, and why there is no StableHLO."""
    assert counted.census is not None
    folder.mkdir(parents=True, exist_ok=True)
    for name in (TEXT, BYTECODE, OPTIMISED, VALUES):
        (folder / name).unlink(missing_ok=True)
    summary = {
        "format": FORMAT,
        "framework": framework,
        "title": title,
        "stablehlo": {"status": "unsupported", "reason": reason},
        "source": counted.source,
        "census": counted.census.to_dict(),
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def load_census(folder: pathlib.Path) -> dict[str, Any] | None:
    """The census that `save_census` wrote; None where the folder has a program, or nothing of ours."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found: dict[str, Any] | None = summary.get("census")
    return found


def load(folder: pathlib.Path) -> program.Program:
    """Reads what `save` wrote.

    Raises:
      BadInputError: Not such a folder, or a part of it is missing or damaged; or a cell that has no program.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if "stablehlo" in summary:
            raise errors.BadInputError(f"{folder} has a census and no program: {summary['stablehlo']['reason']}")
        text = (folder / TEXT).read_text(encoding="utf-8")
        bytecode = (folder / BYTECODE).read_bytes()
    except FileNotFoundError as error:
        name = pathlib.Path(error.filename).name
        raise errors.BadInputError(
            f"{folder} is no captured program: {name} is missing; write one with --save_program=DIR"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise errors.BadInputError(f"{folder} is no captured program: damaged file: {error}") from None
    if summary.get("format") != FORMAT:
        raise errors.BadInputError(
            f"{folder} has format {summary.get('format')}, this version reads {FORMAT}; capture the program again"
        )
    inputs = tuple(program.Tensor.from_dict(item) for item in summary["inputs"])
    outputs = tuple(program.Tensor.from_dict(item) for item in summary["outputs"])
    arguments, expected = _values(folder / VALUES, inputs, outputs)
    optimised = folder / OPTIMISED
    return program.Program(
        framework=summary["framework"],
        title=summary["title"],
        stablehlo=text,
        bytecode=bytecode,
        optimised=optimised.read_text(encoding="utf-8") if optimised.exists() else "",
        inputs=inputs,
        outputs=outputs,
        arguments=arguments,
        expected=expected,
        sharding="" if summary["sharding"] == "one device" else summary["sharding"],
        notes=tuple(summary["notes"]),
        tolerances=summary.get("tolerances", {}),  # folders of earlier versions have none
    )


def _plain(array: np.ndarray) -> np.ndarray:
    """NumPy's file format knows its own types only: bfloat16 and its like are saved as bits."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.isbuiltin != 1 else array


def _values(
    path: pathlib.Path, inputs: tuple[program.Tensor, ...], outputs: tuple[program.Tensor, ...]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    if not path.exists():
        return [], []
    with np.load(path) as data:
        found: dict[str, Any] = dict(data)

    def taken(kind: str, tensors: tuple[program.Tensor, ...]) -> list[np.ndarray]:
        names = sorted(name for name in found if name.startswith(kind))
        return [_typed(found[name], tensor) for name, tensor in zip(names, tensors, strict=True)] if names else []

    return taken("input", inputs), taken("output", outputs)


def _typed(array: np.ndarray, tensor: program.Tensor) -> np.ndarray:
    """`bfloat16` is the name of a NumPy type only once ml_dtypes is imported, which belongs to jaxlib."""
    if str(array.dtype) == tensor.dtype:
        return array
    return array.view(np.dtype(tensor.dtype))
