"""Records: JSON lines, appended as cells finish, raw samples inside, statistics never.

Schema history:
  1  first version. Kinds: `run` (configuration, plan, machine), `gate` (the float64 gate of a framework x workload),
     `cell` (one cell of one launch), `replay` (likewise; its cell's `program` names the framework whose program ran in
     this one's XLA, its `replay` has the client's name and version), `operations` (what two programs spend their time
     on in one client), `end` (exit code, where the time went).
A half-written last line (a kill, a full disk) loses only itself: reading skips it and says so.
A NaN or an infinity is written as null, since JSON has neither; readers take null as "not there".
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from xlacompare.core import errors

SCHEMA = 1
FILE_NAME = "records.jsonl"

# Environment keys that must agree before two cells of one comparison may be compared.
CHECKED_KEYS = ("machine", "platform", "pjrt_plugin", "num_cores", "data_sha256", "dtype_policy", "source_revision")
# Those that only matched cells share: the settings bar is about exactly these.
MATCHED_KEYS = ("threads", "matmul_precision")


@dataclasses.dataclass
class Records:
    """What a file held: the records in order, and one sentence per line that could not be read."""

    records: list[dict[str, Any]]
    problems: list[str]


class Writer:
    """Appends records to one file; each line is written with one call and flushed to the disk.

    Raises:
      BadInputError: The folder cannot be made or written, or another run writes there.
      RecordError: The disk is full (what was written before stays).
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
            self._lock()
            self._start_on_a_new_line()
        except OSError as error:
            raise errors.BadInputError(
                f"cannot write records to {str(folder)!r}: {error.strerror}; choose another --output_dir"
            ) from None

    def _lock(self) -> None:
        """Two runs at a time would interleave their records; the system frees the lock when this process ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise errors.BadInputError(
                f"another run is writing to {str(self.path)!r}; wait for its end, or choose another --output_dir"
            ) from None
        except OSError:
            return  # a file system without locks: as before there were any

    def _start_on_a_new_line(self) -> None:
        if self.path.stat().st_size:
            with open(self.path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
            if last != b"\n":  # a killed run left half a line; keep it apart from ours
                self._file.write(b"\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one record."""
        values = finite({"schema": SCHEMA, **record})
        line = json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = self._file.write(line)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise errors.RecordError(
                f"cannot append to {str(self.path)!r}: {error.strerror}; the records before this one are kept"
            ) from None
        if written != len(line):
            raise errors.RecordError(
                f"cannot append to {str(self.path)!r}: the disk is full; the records before this one are kept"
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def finite(value: Any) -> Any:
    """The same value with null for what JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: pathlib.Path) -> Records:
    """Reads the records of a file or of a run's folder.

    Raises:
      RecordError: There is no such file, or a record is of a schema that this version does not know.
    """
    file = path / FILE_NAME if path.is_dir() else path
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise errors.RecordError(f"cannot read records from {str(path)!r}: {error.strerror}") from None
    return parse(lines, str(file))


def parse(lines: Iterable[bytes], name: str) -> Records:
    """Parses lines; a broken line is a problem, a record of another schema is refused."""
    found = Records([], [])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:  # JSON and UTF-8 errors alike
            found.problems.append(f"{name}:{number}: half a line or not JSON; skipped")
            continue
        if not isinstance(record, dict) or "schema" not in record:
            found.problems.append(f"{name}:{number}: no record; skipped")
            continue
        if record["schema"] != SCHEMA:
            raise errors.RecordError(
                f"{name}:{number}: record of schema {record['schema']}, this version reads schema {SCHEMA}; "
                "read it with the xlacompare that wrote it"
            )
        found.records.append(record)
    return found


def of_run(records: Iterable[Mapping[str, Any]], run_id: str) -> list[Mapping[str, Any]]:
    """The records of one run of a folder that may hold several."""
    return [item for item in records if item.get("run") == run_id]


def check_comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Refuses two `cell` records whose checked environment keys differ.

    Raises:
      RecordError: Names the key and both values.
    """
    keys: tuple[str, ...] = CHECKED_KEYS
    if a["cell"]["label"] == b["cell"]["label"] == "matched":
        keys = CHECKED_KEYS + MATCHED_KEYS
    for key in keys:
        one, other = a["environment"]["checked"].get(key), b["environment"]["checked"].get(key)
        if one != other:
            raise errors.RecordError(
                f"records cannot be compared: {key} is {one!r} in {a['cell']['framework']} (launch {a['launch']}) and "
                f"{other!r} in {b['cell']['framework']} (launch {b['launch']}); run both again under the same {key}"
            )
