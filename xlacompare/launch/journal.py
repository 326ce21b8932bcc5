"""What every campaign keeps: its records, where the time went, and how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from xlacompare.core import errors, record


class Journal:
    """The keeping part of a campaign, whose fields these are."""

    writer: record.Writer
    run_id: str
    times: dict[str, float]
    records: list[dict[str, Any]]

    def append(self, kind: str, values: dict[str, Any]) -> None:
        """Writes a record and keeps it for the looks."""
        made = {"kind": kind, "run": self.run_id, "time": time.time(), **values}
        self.writer.append(made)
        self.records.append(made)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds of a block to a phase."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.times[phase] = self.times.get(phase, 0.0) + time.perf_counter() - begin

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Closes the records behind a block; the `end` record says how it ended, Ctrl-C included."""
        begin, ending = time.perf_counter(), "error"
        try:
            yield
            ending = "complete"
        except KeyboardInterrupt:
            ending = "interrupted"
            raise
        finally:
            self.times["total"] = time.perf_counter() - begin
            with contextlib.suppress(errors.RecordError):
                self.append("end", {"ending": ending, "times": self.times})
            self.writer.close()
