"""Records: appended whole, read with what a kill left behind, refused when they cannot be compared."""

from __future__ import annotations

import errno
import json
import math
import os

import numpy as np
import pytest

from xlacompare.core import errors, record


def test_records_come_back_in_order(tmp_path):
    writer = record.Writer(tmp_path / "new" / "folder")
    writer.append({"kind": "run", "value": 1.5})
    writer.append({"kind": "cell", "value": [1, 2]})
    writer.close()
    found = record.read(tmp_path / "new" / "folder")
    assert [r["kind"] for r in found.records] == ["run", "cell"]
    assert all(r["schema"] == record.SCHEMA for r in found.records)
    assert found.problems == []


def test_every_line_is_strict_json(tmp_path):
    """No NaN or Infinity, which only Python's own reader takes."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    writer = record.Writer(tmp_path)
    writer.append(
        {"kind": "run", "x": math.nan, "inside": {"a": [1.0, math.inf, {"b": (-math.inf, np.float64("nan"))}]}}
    )
    writer.append({"kind": "cell", "value": 0.1})
    writer.close()
    lines = (tmp_path / record.FILE_NAME).read_text(encoding="utf-8").splitlines()
    first, second = (json.loads(line, parse_constant=refuse) for line in lines)
    assert (first["x"], first["inside"]) == (None, {"a": [1.0, None, {"b": [None, None]}]})
    assert second["value"] == 0.1
    assert record.read(tmp_path).records == [first, second]


def test_half_a_line_loses_only_itself(tmp_path):
    writer = record.Writer(tmp_path)
    writer.append({"kind": "run"})
    writer.append({"kind": "cell", "launch": 0})
    writer.close()
    path = tmp_path / record.FILE_NAME
    path.write_bytes(path.read_bytes()[:-9])  # killed while writing
    again = record.Writer(tmp_path)
    again.append({"kind": "cell", "launch": 1})
    again.close()
    found = record.read(tmp_path)
    assert [r.get("launch") for r in found.records] == [None, 1]
    assert len(found.problems) == 1 and ":2:" in found.problems[0]


def test_another_schema_is_refused_by_name(tmp_path):
    (tmp_path / record.FILE_NAME).write_text(json.dumps({"schema": 99, "kind": "run"}) + "\n")
    with pytest.raises(errors.RecordError, match="schema 99"):
        record.read(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInputError, match="--output_dir"):
        record.Writer(tmp_path / "file" / "below")


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path, monkeypatch):
    writer = record.Writer(tmp_path)
    writer.append({"kind": "run"})

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None: ...

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(errors.RecordError, match="No space left on device; the records before this one are kept"):
        writer.append({"kind": "cell"})
    assert len(record.read(tmp_path).records) == 1


def _cell(framework: str, label: str = "matched", **checked):
    return {"cell": {"framework": framework, "label": label}, "launch": 0, "environment": {"checked": checked}}


def test_a_checked_key_that_differs_is_named_with_both_values():
    with pytest.raises(errors.RecordError, match=r"data_sha256 is 'x' in jax \(launch 0\) and 'y' in torch"):
        record.check_comparable(_cell("jax", data_sha256="x"), _cell("torch", data_sha256="y"))


def test_threads_must_agree_only_between_matched_cells():
    with pytest.raises(errors.RecordError, match="threads is 1"):
        record.check_comparable(_cell("jax", threads=1), _cell("torch", threads=2))
    record.check_comparable(_cell("jax", threads=1), _cell("torch", label="shipped", threads=2))
