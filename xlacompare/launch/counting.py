"""The census as a part of the gate: asked of the workers after the last timed block of the first launch, then judged.

It costs a traced step per cell and one child process that reads programs; where that child has no parser (jaxlib is
not installed) the cells with a program are not checked, and say so.
"""

from __future__ import annotations

import pathlib
import time
from typing import Any

from xlacompare import workloads
from xlacompare.core import cell as cells
from xlacompare.core import census, work_gate
from xlacompare.graph import client, program_file
from xlacompare.launch import process


class Counting:
    """Counts the cells of one comparison in one launch.

    Attributes:
      found: What each cell's record says: {"status": "ok" or why it was not checked, "reason", "source", "seconds",
        "findings", "census"}.
    """

    def __init__(self, reader: client.Client, folder: pathlib.Path, deadline_s: float) -> None:
        """`reader`: the child that reads programs; `folder`: where workers leave them for it."""
        self._reader, self._folder, self._deadline_s = reader, folder, deadline_s
        self.found: dict[cells.Cell, dict[str, Any]] = {}

    def ask(self, worker: process.Worker, cell: cells.Cell) -> bool:
        """Counts one cell; returns whether its worker survived."""
        begin = time.perf_counter()
        path = self._folder / f"{program_file.folder_name(cell.id)}.mlirbc"
        try:
            answer = worker.ask({"op": "count", "cell": cell.id, "path": str(path)}, self._deadline_s)
        except process.WorkerError as error:
            self._keep(cell, error.status, error.reason, begin)
            return error.alive
        counted = answer["census"]
        try:
            counted = counted or self._reader.ask("count_bytecode", str(path), answer["inputs"])
        except client.ProblemError as problem:
            self._keep(cell, "unsupported", f"its program could not be read: {problem}", begin)
            return True
        finally:
            path.unlink(missing_ok=True)
        self._keep(cell, "ok", "", begin, source=answer["source"], census=counted)
        return True

    def _keep(self, cell: cells.Cell, status: str, reason: str, begin: float, **values: Any) -> None:
        seconds = time.perf_counter() - begin
        self.found[cell] = {"status": status, "reason": reason, "seconds": seconds, "findings": [], **values}

    def judge(self) -> dict[cells.Cell, str]:
        """Judges what was counted; cells that do other work, with the line that says which."""
        counted = {
            cell: census.Census.from_dict(values["census"])
            for cell, values in self.found.items()
            if values["status"] == "ok"
        }
        if not counted:
            return {}
        first = next(iter(counted))
        workload = workloads.load_workload(first.workload, first.preset, first.batch_size, first.optimizer)
        wrong = {}
        for cell, judgement in work_gate.judge(counted, workload.products_per_step()).items():
            self.found[cell]["findings"] = judgement.findings
            if judgement.problem:
                self.found[cell]["status"], self.found[cell]["reason"] = "mismatch", judgement.problem
                wrong[cell] = judgement.problem
        return wrong
