"""Other tools' figures beside ours: `python -m xlacompare.importer --kind=nccl_tests --input=FILE,FILE`.

Turns outputs of nccl-tests, OSU and PARAM into records and prints them. Exit codes: 0 imported; 2 a file that is not
what --kind says, or lacks what a record needs; 130 interrupted.
"""

from __future__ import annotations

import datetime
import pathlib
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from absl import flags

from xlacompare import command
from xlacompare.collectives.importers import common, nccl_tests, osu, param
from xlacompare.core import errors, record
from xlacompare.report import render

Reader = Callable[[str, common.Told], list[dict[str, Any]]]
KINDS: dict[str, Reader] = {"nccl_tests": nccl_tests.read, "osu": osu.read, "param": param.read}


def define_flags() -> None:
    """Defines the flags. A function: absl's flags are global, and other commands have flags of the same names."""
    flags.DEFINE_enum("kind", None, list(KINDS), "The tool that wrote the files.")
    flags.DEFINE_list("input", [], "Files, separated by commas.")
    flags.DEFINE_string("transport", None, "What carried the bytes, where the file does not say it.")
    flags.DEFINE_string("collective", None, "Collective, where the file does not say it.")
    flags.DEFINE_integer("num_devices", None, "Ranks, where the file does not say it.", lower_bound=1)
    flags.DEFINE_string("output_dir", None, "Folder for the records (a run's: they are appended); default: runs/TIME.")
    flags.DEFINE_enum("format", "text", list(render.COLLECTIVE_FORMATS), "What is printed at the end.")
    flags.DEFINE_bool("expert", False, "Also print whole reasons and definitions.")


def read(kind: str, path: str) -> list[dict[str, Any]]:
    """Records of one file.

    Raises:
      BadInputError: The file cannot be read, or is not what `kind` says.
    """
    values = flags.FLAGS
    told = common.Told(pathlib.Path(path).name, values.transport, values.num_devices, values.collective)
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise errors.BadInputError(f"{path}: not a text file; give what the tool printed") from None
    except OSError as error:
        raise errors.BadInputError(f"{path}: {error.strerror}; --input names files, separated by commas") from None
    return KINDS[kind](text, told)


def body() -> int:
    """Imports what the flags say; returns the exit code."""
    values = flags.FLAGS
    if values.kind is None or not values.input:
        raise errors.BadInputError(f"give --kind ({', '.join(KINDS)}) and --input=FILE,FILE")
    made = [item for path in values.input for item in read(values.kind, path)]
    run_id = f"{datetime.datetime.now().strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = pathlib.Path(values.output_dir or pathlib.Path("runs") / run_id)
    writer = record.Writer(folder)
    for item in made:
        writer.append({"run": run_id, "time": time.time(), **item})
    writer.close()
    kept = record.read(folder)
    sys.stdout.write(render.of_records(kept.records, values.format, values.expert, kept.problems))
    sys.stderr.write(f"records: {writer.path}\n")
    return errors.EXIT_OK


if __name__ == "__main__":
    define_flags()
    command.launch(body)
